"""Nodes with a network of their own: one namespace each, joined by a bridge, whose links can be cut."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"


class Network:
    """`count` namespaces with addresses 10.77.0.1 and up; names hold the test's mark so that leaks are found."""

    def __init__(self, mark: str, count: int) -> None:
        self._mark = mark
        self.hosts = tuple(f"10.77.0.{node + 1}" for node in range(count))
        self._spaces = [f"{mark}n{node}" for node in range(count)]
        self._switch = f"{mark}sw"

    def build(self) -> None:
        ip("netns", "add", self._switch)
        ip("-n", self._switch, "link", "add", "switch0", "type", "bridge")
        ip("-n", self._switch, "link", "set", "switch0", "up")
        for node, space in enumerate(self._spaces):
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
            ip("-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", f"p{node}", "netns", self._switch)
            ip("-n", self._switch, "link", "set", f"p{node}", "master", "switch0", "up")
            ip("-n", space, "addr", "add", f"{self.hosts[node]}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")

    def inside(self, node: int) -> list[str]:
        """Words before a command that make it run on a node: only its network differs, mounts stay visible."""
        return ["nsenter", f"--net=/run/netns/{self._spaces[node]}"]

    def cut(self, node: int) -> None:
        ip("-n", self._switch, "link", "set", f"p{node}", "down")

    def join(self, node: int) -> None:
        ip("-n", self._switch, "link", "set", f"p{node}", "up")

    def remove(self) -> None:
        for space in (*self._spaces, self._switch):
            with contextlib.suppress(AssertionError):
                ip("netns", "del", space)


@contextlib.contextmanager
def network(mark: str, count: int) -> Iterator[Network]:
    made = Network(mark, count)
    try:
        made.build()
        yield made
    finally:
        made.remove()
