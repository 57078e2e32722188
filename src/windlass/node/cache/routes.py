"""The nodes that have an object, computed from the placement and the tree of the job. Values only."""

from __future__ import annotations

from windlass.node.cache.config import PARTITION, NodeConfig
from windlass.node.cache.keys import CHUNK, parse_key, stripe_of
from windlass.node.wire.tree import STANDBYS, owner_route, owners, position_of, tree_route


class Routes:
    """The routes of one node. This node reads an object with an empty route from the shared file system."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._trees = tuple(
            tree_route(config.node, stripe, config.stripes, config.nodes, config.children_each)
            for stripe in range(config.stripes)
        )

    def of(self, key: bytes) -> tuple[int, ...]:
        """Return the nodes to ask for `key`, best first. Raises `BadKeyError` for a key that names nothing."""
        parse_key(key)
        config = self._config
        if config.nodes == 1:
            return ()
        if config.placement == PARTITION and key[0] == CHUNK:
            return owner_route(key, config.node, config.nodes)
        return self._tree(key)

    def is_anothers(self, key: bytes) -> bool:
        """Whether another node keeps this object for all nodes.

        Such an object is evicted first when space is needed.
        """
        config = self._config
        if config.placement != PARTITION or key[0] != CHUNK:
            return False
        return config.node != owners(key, config.nodes)[0]

    def pushed_from(self, node: int, key: bytes) -> str:
        """Return the origin of a pushed object. A stream comes from the parent unless the parent is gone."""
        route = self._tree(key)
        return "parent" if route and route[0] == node else "peer"

    def is_standby(self, key: bytes) -> bool:
        """Whether this node is among the first to read the object if its reader is gone."""
        config = self._config
        stripe = stripe_of(key, config.stripes)
        return position_of(config.node, stripe, config.stripes, config.nodes) <= STANDBYS

    def _tree(self, key: bytes) -> tuple[int, ...]:
        return self._trees[stripe_of(key, self._config.stripes)]
