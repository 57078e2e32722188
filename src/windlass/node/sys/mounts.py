"""The mounts of this node, from the kernel's table. Never accesses a mount, because a dead mount blocks."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

_NAMES = {
    "lustre": "Lustre",
    "nfs": "NFS",
    "nfs4": "NFS",
    "gpfs": "GPFS",
    "beegfs": "BeeGFS",
    "beegfs_nodev": "BeeGFS",
    "ceph": "CephFS",
    "dvs": "DVS",
    "panfs": "PanFS",
    "wekafs": "WekaFS",
    "afs": "AFS",
    "cifs": "CIFS",
    "smb3": "CIFS",
    "fuse.sshfs": "sshfs",
}
_MEMORY = frozenset({"devtmpfs", "ramfs", "rootfs", "tmpfs"})
_IMAGE = frozenset({"erofs", "iso9660", "squashfs"})
_LOCAL = frozenset(
    {"bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "fuseblk", "jfs", "overlay", "vfat", "virtiofs"}
    | {"xfs", "zfs"}
)
BENCH_SOURCE = "windlass-bench"
"""The mount source of the simulated shared file system of `bench/start.py`."""
_QUICK_FUSE = ("squash", "windlass", "overlay", "copper")


class MountPoint(NamedTuple):
    place: str
    kind: str
    source: str
    uid: int | None = None
    """The user who mounted it. The kernel reports this only for FUSE."""
    root: str = "/"
    """The directory of the file system that is mounted there."""
    options: tuple[str, ...] = ()

    @property
    def served_by(self) -> str:
        """Return what serves reads there: `memory`, `image`, `local` or `shared`.

        An unknown type counts as shared. The list of types that belong to one machine is short, and sites use shared
        file systems that are not in any list.
        """
        if self.kind in _MEMORY:
            return "memory"
        if self.source == BENCH_SOURCE:
            return "shared"
        if self.kind in _IMAGE or (self.kind.startswith("fuse") and any(word in self.kind for word in _QUICK_FUSE)):
            return "image"
        return "local" if self.kind in _LOCAL else "shared"

    @property
    def file_system(self) -> str:
        """The common name of the file system."""
        return _NAMES.get(self.kind, self.kind)


def mounts(table: str = "/proc/self/mountinfo") -> list[MountPoint]:
    """Return every mount that this process sees."""
    with open(table, "rb") as file:
        return parse_mountinfo(file.read())


def parse_mountinfo(text: bytes) -> list[MountPoint]:
    """Parse the format of /proc/PID/mountinfo, in its order. Ignore lines in another format."""
    found = []
    for line in text.splitlines():
        left, _, right = line.partition(b" - ")
        fields, rest = left.split(), right.split()
        if len(fields) >= 5 and len(rest) >= 2:
            options = tuple(os.fsdecode(b"".join(rest[2:3])).split(","))
            owner = next((int(name[8:]) for name in options if re.match(r"user_id=\d+$", name)), None)
            kind, source = os.fsdecode(rest[0]), _path(rest[1])
            found.append(MountPoint(_path(fields[4]), kind, source, owner, _path(fields[3]), options))
    return found


def mount_of(path: str, table: Sequence[MountPoint]) -> MountPoint:
    """Return the mount that holds this path.

    This is the deepest mount above the path. If several are equally deep, the last one hides the others.
    """
    best = MountPoint("/", "unknown", "")
    for mount in table:
        inside = path == mount.place or path.startswith(mount.place.rstrip("/") + "/")
        if inside and len(mount.place) >= len(best.place):
            best = mount
    return best


def real_place(where: str) -> str:
    """Return a mount point as the kernel reports it. Does not access the mount, which may be dead."""
    return os.path.join(os.path.realpath(os.path.dirname(where)), os.path.basename(where))


def _path(field: bytes) -> str:
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), field))
