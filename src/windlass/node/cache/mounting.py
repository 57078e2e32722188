"""Mount and unmount a FUSE file system: directly as root, through fusermount for other users."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import socket
import struct
import subprocess

from windlass.node.sys.identity import own_environ

MAX_READ = 1 << 20
_CLONE = 0x8004E500


def clone_device(device: int) -> int:
    """Return a second descriptor of the same connection with a separate queue, or the same one if not supported."""
    try:
        other = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return device
    try:
        fcntl.ioctl(other, _CLONE, struct.pack("<I", device))
    except OSError:
        os.close(other)
        return device
    return other


def mount(where: str, name: str, *, allow_other: bool) -> int:
    """Mount at `where` and return the device: directly as root, through fusermount for other users."""
    if os.geteuid() == 0:
        try:
            return _mount_directly(where, name, allow_other)
        except PermissionError:  # root of a container without permission to mount
            pass
    return _mount_through_fusermount(where, name, allow_other)


def _mount_directly(where: str, name: str, allow_other: bool) -> int:
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = "fd=%d,rootmode=40000,user_id=%d,group_id=%d,default_permissions,max_read=%d%s" % (
        device,
        os.getuid(),
        os.getgid(),
        MAX_READ,
        ",allow_other" if allow_other else "",
    )
    libc = ctypes.CDLL(None, use_errno=True)
    read_only_nosuid_nodev = 1 | 2 | 4
    if libc.mount(name.encode(), os.fsencode(where), b"fuse.windlass", read_only_nosuid_nodev, options.encode()):
        number = ctypes.get_errno()
        os.close(device)
        raise OSError(number, "mount %s: %s" % (where, os.strerror(number)))
    return device


def _mount_through_fusermount(where: str, name: str, allow_other: bool) -> int:
    program = fusermount()
    options = "ro,nosuid,nodev,fsname=%s,subtype=windlass,default_permissions,max_read=%d" % (name, MAX_READ)
    if allow_other:
        options += ",allow_other"
    mine, theirs = socket.socketpair()
    with mine, theirs:
        done = subprocess.run(
            [program, "-o", options, "--", where],
            env=dict(own_environ(), _FUSE_COMMFD=str(theirs.fileno())),
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=30,
            check=False,
        )
        if done.returncode:
            raise OSError(errno.EPERM, "%s: %s" % (program, done.stdout.decode(errors="replace").strip()))
        mine.settimeout(10)
        _, descriptors, _, _ = socket.recv_fds(mine, 1, 1)
    if not descriptors:
        raise OSError(errno.EPERM, "%s passed no descriptor" % program)
    os.set_inheritable(descriptors[0], False)
    return descriptors[0]


def fusermount() -> str:
    for program in ("fusermount3", "fusermount"):
        found = shutil.which(program)
        if found:
            return found
    raise FileNotFoundError(errno.ENOENT, "neither fusermount3 nor fusermount is installed on this node")


def unmount(where: str) -> None:
    """Unmount at once, even with open files. Does nothing if `where` is not mounted."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.umount2(os.fsencode(where), 2) == 0:
            return
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            [fusermount(), "-u", "-z", "--", where],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=30,
            check=False,
        )
