"""Reading /sys and /proc, whose files may be missing, empty, refused or odd: every answer has a calm default."""

from __future__ import annotations

import os
import re

from windlass.node.sys.text import CpuListError, cpus_of
from windlass.node.sys.tools import text_of

_PCI = re.compile(r"^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
_DIGITS = re.compile(r"(\d+)")


class SysReader:
    """A folder of small text files. Paths are relative, with slashes. Nothing here raises for what it finds."""

    def __init__(self, root: str) -> None:
        self._root = root

    def path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def text(self, name: str) -> str:
        """The file's text without surrounding space; empty where it cannot be read."""
        return text_of(f"{self._root}/{name}")

    def number(self, name: str) -> int | None:
        """The file's number, decimal or with a 0x prefix."""
        try:
            return int(self.text(name), 0)
        except ValueError:
            return None

    def cpus(self, name: str) -> tuple[int, ...]:
        """The file's CPU list; empty where it is none."""
        return cpulist_or_none(self.text(name))

    def names(self, name: str) -> tuple[str, ...]:
        """Names in a folder in human order (`cxi2` before `cxi10`); empty where there is none."""
        try:
            return tuple(sorted(os.listdir(f"{self._root}/{name}"), key=human_order))
        except OSError:
            return ()

    def exists(self, name: str) -> bool:
        return os.path.exists(f"{self._root}/{name}")

    def target(self, name: str) -> str:
        """Last word of what a link points at (a driver's name); empty where it is no link."""
        try:
            return os.path.basename(os.readlink(f"{self._root}/{name}"))
        except OSError:
            return ""

    def pci_address(self, name: str) -> str:
        """PCI address of the nearest PCI device in the real path; virtio and RDMA devices hang below one."""
        if not self.exists(name):
            return ""
        real = os.path.realpath(f"{self._root}/{name}")
        return next((part for part in reversed(real.split("/")) if _PCI.match(part)), "")


def cpulist_or_none(text: str) -> tuple[int, ...]:
    """CPUs of a list as the kernel writes it; none where it is no list."""
    try:
        return cpus_of(text)
    except CpuListError:
        return ()


def human_order(name: str) -> tuple[tuple[int, int | str], ...]:
    """A sort key that counts digits as numbers."""
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in _DIGITS.split(name))


def pci_order(address: str) -> tuple[int, ...]:
    """A sort key for PCI addresses: domain, bus, device, function, all hexadecimal."""
    try:
        return tuple(int(part, 16) for part in re.split(r"[:.]", address))
    except ValueError:
        return (1 << 32,)


def properties(text: str, separator: str | None = None) -> dict[str, str]:
    """Lines of `name value` (or `name: value` with a separator) as a mapping."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(separator) if separator else line.partition(" ")
        found[name.strip()] = value.strip()
    return found
