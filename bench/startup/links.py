"""Nodes with a network of their own on one machine: a namespace each, joined by a bridge, over links of a known rate.

The bridge has a namespace too, so nothing of this machine's own network is touched. Names say whose they are: what a
killed measurement left is swept by the next one, and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from windlass.base.procs.command import run_command, which
from windlass.errors import MachineError, WindlassError
from windlass.node.sys.identity import start_of

_SPACES = Path("/run/netns")
_MARK = "wlpush"
_NAME = re.compile(rf"{_MARK}-(\d+)-(\d+)-\w+")
_COMMAND_S = 20.0
_PROGRAMS = ("ip", "tc", "nsenter")


@dataclass(frozen=True, kw_only=True, slots=True)
class Links:
    """The nodes that are there. `hosts` are their addresses."""

    hosts: tuple[str, ...]
    spaces: tuple[str, ...]

    def inside(self, node: int) -> tuple[str, ...]:
        """Words before a command that make it run on a node: only its network differs."""
        return ("nsenter", f"--net={_SPACES / self.spaces[node]}")


def why_not() -> str:
    """Why no such nodes can be made here; empty where they can."""
    if os.geteuid() != 0:
        return "network namespaces with limited links need root"
    missing = [name for name in _PROGRAMS if which(name) is None]
    return f"not installed: {', '.join(missing)} (iproute2, util-linux)" if missing else ""


@contextlib.contextmanager
def linked(nodes: int, bits_per_s: int | None) -> Iterator[Links]:
    """`nodes` nodes while the block runs, each sending and receiving at most `bits_per_s`. Raises `MachineError`."""
    reason = why_not()
    if reason:
        raise MachineError(reason, hint="run as root on a machine of your own, or leave --link out")
    sweep()
    mark = f"{_MARK}-{os.getpid()}-{start_of(os.getpid())}"
    links = Links(
        hosts=tuple(f"10.83.0.{node + 1}" for node in range(nodes)),
        spaces=tuple(f"{mark}-{node}" for node in range(nodes)),
    )
    switch = f"{mark}-sw"
    try:
        _build(links, switch, bits_per_s)
        yield links
    finally:
        for space in (*links.spaces, switch):
            with contextlib.suppress(WindlassError):
                _ip("netns", "del", space)


def sweep() -> tuple[str, ...]:
    """Remove the namespaces of measurements that are gone; returns their names."""
    swept = []
    for path in sorted(_SPACES.glob(f"{_MARK}-*")) if _SPACES.is_dir() else ():
        named = _NAME.fullmatch(path.name)
        if named is not None and start_of(int(named[1])) != named[2]:
            with contextlib.suppress(WindlassError):
                _ip("netns", "del", path.name)
                swept.append(path.name)
    return tuple(swept)


def _build(links: Links, switch: str, bits_per_s: int | None) -> None:
    _ip("netns", "add", switch)
    _ip("-n", switch, "link", "add", "switch0", "type", "bridge")
    _ip("-n", switch, "link", "set", "switch0", "up")
    for node, space in enumerate(links.spaces):
        _ip("netns", "add", space)
        _ip("-n", space, "link", "set", "lo", "up")
        _ip("-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", f"p{node}", "netns", switch)
        _ip("-n", switch, "link", "set", f"p{node}", "master", "switch0", "up")
        _ip("-n", space, "addr", "add", f"{links.hosts[node]}/24", "dev", "eth0")
        _ip("-n", space, "link", "set", "eth0", "up")
        if bits_per_s is not None:
            _limit(space, "eth0", bits_per_s)
            _limit(switch, f"p{node}", bits_per_s)


def _limit(space: str, device: str, bits_per_s: int) -> None:
    """What leaves the device: at the end of the node that is what it sends, at the bridge's what it receives."""
    burst = max(256 << 10, bits_per_s // 8 // 100)  # a packet before segmentation is 64 KiB, a tick 10 ms at most
    words = ("rate", f"{bits_per_s}bit", "burst", str(burst), "latency", "50ms")
    run_command(("tc", "-n", space, "qdisc", "add", "dev", device, "root", "tbf", *words), timeout_s=_COMMAND_S)


def _ip(*words: str) -> None:
    run_command(("ip", *words), timeout_s=_COMMAND_S)
