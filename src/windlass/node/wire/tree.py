"""Which node asks which: pure functions of the number of nodes, never of the network's state.

`replicate` spreads every object over a k-ary tree. There is one tree per reader of the shared file system (a stripe).
The trees are rotations of each other. A node that forwards in one tree is a leaf in the others, and all links carry
load. `partition` gives each object a short list of owners by rendezvous hashing.

In every order produced here, a node asks only nodes that precede it for that object. Nodes can therefore never wait for
each other in a cycle, even if some nodes are dead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

STANDBYS = 2
_GROUP = 64
_MASK = (1 << 64) - 1


def parent_position(position: int, fanout: int) -> int:
    return (position - 1) // fanout


def child_positions(position: int, fanout: int, nodes: int) -> range:
    first = position * fanout + 1
    return range(min(first, nodes), min(first + fanout, nodes))


def rotation(stripe: int, stripes: int, nodes: int) -> int:
    """Return the node at the root of a stripe."""
    return stripe * nodes // stripes


def position_of(node: int, stripe: int, stripes: int, nodes: int) -> int:
    return (node - rotation(stripe, stripes, nodes)) % nodes


def node_at(position: int, stripe: int, stripes: int, nodes: int) -> int:
    return (position + rotation(stripe, stripes, nodes)) % nodes


def ancestors(node: int, stripe: int, stripes: int, nodes: int, fanout: int) -> tuple[int, ...]:
    """Return the ancestors, parent first. The last one reads the stripe from the shared file system.

    Empty for the reader itself.
    """
    chain = []
    position = position_of(node, stripe, stripes, nodes)
    while position > 0:
        position = parent_position(position, fanout)
        chain.append(node_at(position, stripe, stripes, nodes))
    return tuple(chain)


def children(node: int, stripe: int, stripes: int, nodes: int, fanout: int) -> tuple[int, ...]:
    position = position_of(node, stripe, stripes, nodes)
    return tuple(node_at(p, stripe, stripes, nodes) for p in child_positions(position, fanout, nodes))


def tree_route(node: int, stripe: int, stripes: int, nodes: int, fanout: int) -> tuple[int, ...]:
    """Return the nodes to ask, best first: the ancestors, then standby readers that precede this node."""
    chain = ancestors(node, stripe, stripes, nodes, fanout)
    position = position_of(node, stripe, stripes, nodes)
    standbys = (node_at(p, stripe, stripes, nodes) for p in range(1, min(1 + STANDBYS, position)))
    return chain + tuple(s for s in standbys if s not in chain)


def _mix(value: int) -> int:
    """Compute one round of splitmix64. It is cheap enough to weigh every node for every chunk."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _ranked(seed: int, candidates: Sequence[int], count: int) -> list[int]:
    return sorted(candidates, key=lambda c: (_mix(seed ^ _mix(c + 1)), c), reverse=True)[:count]


def owners(key: bytes, nodes: int, count: int = 1 + STANDBYS) -> tuple[int, ...]:
    """Return the owner and the stand-ins of an object, best first, by rendezvous hashing.

    Beyond 64 nodes the selection has two rounds: groups, then members. A choice among 10,000 nodes then computes some
    220 weights and not 10,000. The stand-ins are the winners of the next groups, so they are in different groups.
    """
    seed = int.from_bytes(hashlib.sha256(key).digest()[:8], "little")
    if nodes <= _GROUP:
        return tuple(_ranked(seed, range(nodes), count))
    groups = (nodes + _GROUP - 1) // _GROUP
    chosen = _ranked(seed ^ 0x5DEECE66D, range(groups), count)
    return tuple(_ranked(seed, range(g * _GROUP, min((g + 1) * _GROUP, nodes)), 1)[0] for g in chosen)


def owner_route(key: bytes, node: int, nodes: int) -> tuple[int, ...]:
    """Return the owners to ask before this node reads the shared file system: those that rank before it."""
    ranked = owners(key, nodes)
    return ranked[: ranked.index(node)] if node in ranked else ranked
