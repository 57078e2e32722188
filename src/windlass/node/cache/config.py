"""The configuration of a node's cache: one value, one JSON file. The key is a secret and stays in a separate file."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, dataclass, fields
from typing import Any

from windlass.node.cache.roots import Root
from windlass.node.sys.reading import read_text
from windlass.node.wire.proof import Identity

VERSION = 1
REPLICATE = "replicate"
PARTITION = "partition"
CHAIN_NODES = 8
TREE_CHILDREN = 4


class ConfigFileError(Exception):
    """A configuration or key file is unusable. The message names the file and the reason."""


@dataclass(frozen=True)
class NodeConfig:
    """The cache of one node.

    `hosts[i]` is the address of node i. The list is the same on all nodes. `node` differs per node.
    """

    job: str
    node: int
    hosts: tuple[str, ...]
    roots: tuple[Root, ...]
    state_dir: str
    key_file: str
    mount: str = ""
    store_dir: str = ""
    budget_bytes: int = 2 << 30
    chunk_bytes: int = 96 << 10
    fanout: int = 0
    """Children of each node. 0 means one child for few nodes and four for many."""
    readers: int = 1
    placement: str = REPLICATE
    trace_in: str = ""
    trace_out: str = ""
    trace_limit_bytes: int = 1 << 30
    pack_limit_bytes: int = 1 << 30
    peer_timeout_s: float = 2.0
    give_up_s: float = 20.0
    start_grace_s: float = 20.0
    source_threads: int = 8
    fallback_rate: float = 500.0
    fuse_threads: int = 0
    warm: bool = True
    live: bool = True
    live_limit_bytes: int = 1 << 30
    fuse_flags_mask: int = 0xFFFFFFFFFFFFFFFF
    allow_other: bool = False
    owner_pids: tuple[int, ...] = ()
    version: int = VERSION

    def identity(self, key: bytes) -> Identity:
        """Return the identity with which this node authenticates to the other nodes of the job."""
        return Identity(key, self.job, "cache", self.node)

    @property
    def nodes(self) -> int:
        return len(self.hosts)

    @property
    def children_each(self) -> int:
        """Return the number of children per node in the tree.

        In a chain, each node answers one node and sends every byte once. With many nodes the last node of a chain would
        wait too long.
        """
        return self.fanout or (1 if len(self.hosts) <= CHAIN_NODES else TREE_CHILDREN)

    @property
    def stripes(self) -> int:
        return max(1, min(self.readers, len(self.hosts)))

    @property
    def mount_threads(self) -> int:
        """Return the number of threads that answer the kernel.

        One thread is cheapest for many small requests. Large reads gain from several threads.
        """
        return self.fuse_threads or (1 if self.placement == REPLICATE else 4)

    @property
    def sparse(self) -> bool:
        """Whether large files are read at scattered offsets, like programs and libraries, and not sequentially."""
        return self.placement == REPLICATE

    @property
    def store(self) -> str:
        """The directory of the objects, below `store_dir`, or an empty string for memory.

        Its name contains the job and the node, so that the sweep can identify the owner.
        """
        if not self.store_dir:
            return ""
        return os.path.join(self.store_dir, "windlass-%s-%d" % (self.job, self.node))

    @property
    def socket(self) -> str:
        return os.path.join(self.state_dir, "peer.sock")


def state_folder(folder: str, run_id: str, node: int | str) -> str:
    """Return the state directory of the cache of one node.

    `view` in it is the mount. `front` holds scripts of the environments, with the interpreter of the view in their
    first line. The node number is in the name because nodes may share a directory (on one machine they do).
    """
    return "%s/c/%s.%s" % (folder, run_id, node)


def dump_config(config: NodeConfig) -> str:
    values = asdict(config)
    values["hosts"] = list(config.hosts)
    # Paths are bytes. JSON holds them as text, and each byte that is not UTF-8 is escaped.
    values["roots"] = [[os.fsdecode(r.view), os.fsdecode(r.real)] for r in config.roots]
    return json.dumps(values, indent=1, sort_keys=True)


def parse_config(text: str) -> NodeConfig:
    """Parse the configuration. Raise `ConfigFileError` for an unknown key, a newer version or a value out of range."""
    values: dict[str, Any] = json.loads(text)
    known = {f.name for f in fields(NodeConfig)}
    if values.get("version", 0) > VERSION:
        raise ConfigFileError("cache configuration of version %s, this code knows %d" % (values["version"], VERSION))
    unknown = sorted(set(values) - known)
    if unknown:
        raise ConfigFileError("unknown setting in cache configuration: %s" % ", ".join(unknown))
    values["hosts"] = tuple(values["hosts"])
    values["owner_pids"] = tuple(values.get("owner_pids", ()))
    values["roots"] = tuple(Root(os.fsencode(v), os.fsencode(r)) for v, r in values["roots"])
    config = NodeConfig(**values)
    if not 0 <= config.node < config.nodes:
        raise ConfigFileError("node %d of %d" % (config.node, config.nodes))
    if config.placement not in (REPLICATE, PARTITION):
        raise ConfigFileError("unknown placement %r" % config.placement)
    if config.chunk_bytes % 4096 or not 4096 <= config.chunk_bytes <= 16 << 20:
        raise ConfigFileError("chunk_bytes must be a multiple of 4096 up to 16 MiB, not %d" % config.chunk_bytes)
    if config.fanout < 0:
        raise ConfigFileError("fanout must be at least 1, or 0 to leave it to the number of nodes")
    return config


def read_config(path: str) -> NodeConfig:
    return parse_config(read_text(path))


def read_key(path: str) -> bytes:
    """Read the job's key. Refuse it if other users can read it, because such a key proves nothing."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:
            raise ConfigFileError("%s: the key file must be readable by its owner only (chmod 600)" % path)
        if status.st_uid not in (os.getuid(), 0):
            raise ConfigFileError("%s: the key file belongs to another user" % path)
        key = os.read(fd, 4096)
    finally:
        os.close(fd)
    if len(key) < 16:
        raise ConfigFileError("%s: a key has at least 16 bytes, not %d" % (path, len(key)))
    return key
