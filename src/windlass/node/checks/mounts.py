"""Which file system a path lies on, by /proc/self/mountinfo, and whether thousands of nodes share it."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from windlass.node.checks.finding import read_text

MOUNTINFO = "/proc/self/mountinfo"
_SLOW = {
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
    "9p": "9p",
    "fuse.sshfs": "sshfs",
}
_MEMORY = {"tmpfs", "ramfs", "rootfs"}
_QUICK_FUSE = ("squash", "windlass", "overlay", "copper")


class Mount(NamedTuple):
    """One mounted file system."""

    path: str
    kind: str
    source: str


def parse_mountinfo(text: str) -> list[Mount]:
    """The mounts in the form of /proc/PID/mountinfo, in its order."""
    found = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        fields, rest = left.split(), right.split()
        if separator and len(fields) >= 5 and len(rest) >= 2:
            found.append(Mount(_unescaped(fields[4]), rest[0], _unescaped(rest[1])))
    return found


def _unescaped(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), word)


def mount_of(path: str, mounts: list[Mount]) -> Mount:
    """The mount that holds this path: of those above it the deepest, and of equals the last one, which hides others."""
    best = Mount("/", "unknown", "")
    for mount in mounts:
        inside = path == mount.path or path.startswith(mount.path.rstrip("/") + "/")
        if inside and len(mount.path) >= len(best.path):
            best = mount
    return best


def own_mounts() -> list[Mount]:
    return parse_mountinfo(read_text(MOUNTINFO))


def resolved(path: str) -> str:
    return os.path.realpath(path)


def place_kind(mount: Mount) -> str:
    """`memory`, `local`, `image`, `shared`: who serves a read there."""
    if mount.kind in _MEMORY:
        return "memory"
    if mount.kind in {"squashfs", "erofs", "iso9660"} or any(word in mount.kind for word in _QUICK_FUSE):
        return "image"
    if mount.kind in _SLOW or mount.kind.startswith("fuse"):
        return "shared"
    return "local"


def file_system(mount: Mount) -> str:
    """As people call it."""
    return _SLOW.get(mount.kind, mount.kind)
