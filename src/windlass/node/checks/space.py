"""Check the free space on the node and the limits of a process.

Space: node-local directories, shared memory, and the user's home. Limits: open files, locked memory, processes, address
space. Launchers may pass on the limits of the submitting shell.
"""

from __future__ import annotations

import contextlib
import glob
import os
import resource
import tempfile
from collections.abc import Sequence

from windlass.node.checks.finding import Finding, fail, ok, warn
from windlass.node.sys.text import binary_size, listed

LOW_BYTES = 2 << 30
FULL_BYTES = 64 << 20
LOW_SHARE = 0.02
LOW_FILES = 1000
SHARED_MEMORY = "/dev/shm"
SMALL_SHARED_BYTES = 1 << 30
"""Containers get 64 MB by default, which a few batches fill."""

Room = tuple[int, int, int]
"""Free bytes for a user, total bytes, free inodes (-1: the file system does not count them)."""


def room_of(path: str) -> Room | None:
    try:
        stat = os.statvfs(path)
    except OSError:
        return None
    files = stat.f_favail if stat.f_files else -1
    return stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize, files


def check_local_space(folders: Sequence[str]) -> Finding:
    """Check the free space in node-local directories, and that files can be created there."""
    rooms: dict[str, Room | None] = {}
    refused: dict[str, str] = {}
    for folder in dict.fromkeys(os.path.expandvars(name) for name in folders):
        there = _existing(folder)
        rooms[folder] = room_of(there)
        error = _write_error(there)
        if error:
            refused[folder] = error
    return judge_space(rooms, refused)


def judge_space(rooms: dict[str, Room | None], refused: dict[str, str]) -> Finding:
    bad: list[str] = []
    poor: list[str] = []
    good: list[str] = []
    for folder, room in rooms.items():
        if room is None:
            bad.append("%s does not exist" % folder)
            continue
        free, size, files = room
        text = "%s has %s free" % (folder, binary_size(free))
        if free < FULL_BYTES or folder in refused:
            bad.append(text + (" (%s)" % refused[folder] if folder in refused else ""))
        elif 0 <= files < LOW_FILES:
            bad.append("%s has room for %d files only" % (folder, files))
        elif folder == SHARED_MEMORY and size < SMALL_SHARED_BYTES:
            poor.append("%s holds %s in all" % (folder, binary_size(size)))
        elif free < LOW_BYTES and free < size * 0.5:
            poor.append(text)
        else:
            good.append(text)
    if bad or poor:
        remedy = "remove what earlier jobs left there, or use another node: caches, snapshots and shared memory need it"
        if not bad and all(text.startswith(SHARED_MEMORY) for text in poor):
            remedy = (
                "DataLoader workers hand batches over through it: give the container more (--shm-size 8g, --ipc host)"
            )
        return (fail if bad else warn)("local-space", "; ".join(bad + poor), remedy)
    return ok("local-space", "; ".join(good), free_bytes=[room[0] for room in rooms.values() if room])


def _existing(folder: str) -> str:
    """Return the directory, or its nearest ancestor that exists."""
    while not os.path.isdir(folder) and folder not in {"/", ""}:
        folder = os.path.dirname(folder)
    return folder or "/"


def _write_error(folder: str) -> str:
    """Return why no file can be created there. Empty if a file can be created.

    Writes one page, because a full file system may still accept new names.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"w" * 4096)
            file.flush()
        return ""
    except OSError as error:
        return os.strerror(error.errno or 0)


def check_home(environ: dict[str, str], uid: int, first: bool = True) -> Finding:
    """Check that the user's home is writable. Caches and histories go there by default.

    Only the first node writes, because a thousand writers would overload a shared home.
    """
    home = environ.get("HOME") or ""
    if not os.path.isdir(home):
        seen = "%s does not exist on this node" % (home or "$HOME")
        return warn("home", seen, "set HOME to a folder that nodes have")
    if os.statvfs(home).f_flag & os.ST_RDONLY:
        return fail("home", "%s is mounted read-only on this node" % home, "leave the node out, and tell the site")
    if first and os.stat(home).st_uid != uid and not os.access(home, os.W_OK):
        return warn("home", "%s belongs to another user" % home, "set HOME to a folder that you own")
    clear = "clear ~/.cache (pip, huggingface, torch), or point HF_HOME, TORCH_HOME and XDG_CACHE_HOME to scratch"
    error = _write_error(home) if first else ""
    if error:
        return fail("home", "no file can be written to %s: %s" % (home, error), clear)
    inside = [name for name in CACHES if _below(environ.get(name) or _default(name, home), home)]
    room = room_of(home)
    if room and room[0] < FULL_BYTES:
        return fail("home", "%s has %s free on this node" % (home, binary_size(room[0])), clear)
    if room and room[0] < LOW_BYTES and inside:
        remedy = "point %s to scratch: models fill a home quickly" % ", ".join(inside)
        return warn("home", "%s has %s free" % (home, binary_size(room[0])), remedy)
    return ok("home", "%s can be written%s" % (home, ", %s free" % binary_size(room[0]) if room else ""))


def check_locks(environ: dict[str, str], now: float) -> Finding:
    """Find locks of killed builds of torch extensions. Every later import waits for them."""
    folder = environ.get("TORCH_EXTENSIONS_DIR") or "%s/torch_extensions" % (
        environ.get("XDG_CACHE_HOME") or "%s/.cache" % environ.get("HOME", "")
    )
    old = []
    for path in (*glob.glob(folder + "/*/lock"), *glob.glob(folder + "/*/*/lock")):
        with contextlib.suppress(OSError):
            if now - os.stat(path).st_mtime > STALE_LOCK_S:
                old.append(path)
    if old:
        remedy = "unless a build runs, remove it: rm %s" % " ".join(old[:4])
        return warn("extension-lock", "left by a build that died: %s" % listed(old), remedy)
    return ok("extension-lock", "no build of an extension left a lock")


def check_tmpdir(environ: dict[str, str]) -> Finding:
    """Check that the directory in TMPDIR exists and is writable. Compilers and libraries fail without it."""
    folder = environ.get("TMPDIR") or ""
    if not folder:
        return ok("tmpdir", "TMPDIR is not set, so programs use /tmp")
    error = "it does not exist" if not os.path.isdir(folder) else _write_error(folder)
    if error:
        return fail("tmpdir", "TMPDIR is %s: %s" % (folder, error), "unset TMPDIR, or name a folder that nodes have")
    return ok("tmpdir", "TMPDIR is %s" % folder)


CACHES = ("HF_HOME", "TORCH_HOME", "XDG_CACHE_HOME")


def _default(name: str, home: str) -> str:
    return {"HF_HOME": home + "/.cache/huggingface", "TORCH_HOME": home + "/.cache/torch"}.get(name, home + "/.cache")


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


STALE_LOCK_S = 3600.0

Limits = dict[str, int]
_LIMITS = (
    ("files", resource.RLIMIT_NOFILE, "n", "open files", 1024, 4096),
    ("processes", resource.RLIMIT_NPROC, "u", "processes", 512, 4096),
    ("locked", resource.RLIMIT_MEMLOCK, "l", "of locked memory", 64 << 20, 0),
    # Drivers reserve address space for all memory of the node and its devices. Importing torch takes 10 GiB.
    ("addresses", resource.RLIMIT_AS, "v", "of address space", 64 << 30, 0),
    ("data", resource.RLIMIT_DATA, "d", "of data segment", 64 << 30, 0),
    ("written", resource.RLIMIT_FSIZE, "f", "in one file", 64 << 30, 0),
    ("cpu_s", resource.RLIMIT_CPU, "t", "seconds of CPU time", 30 * 86400, 0),
    ("stack", resource.RLIMIT_STACK, "s", "of stack", 1 << 20, 0),
)
"""Name, number, letter of `ulimit`, description, minimum for all runs, minimum for large runs (0: same)."""
_COUNTS = frozenset("nut")
_ENOUGH = {"n": "4096", "u": "4096", "s": "8192"}


def read_limits() -> Limits:
    """Return the soft limits of this process. -1 means unlimited."""
    soft = {name: resource.getrlimit(number)[0] for name, number, *_ in _LIMITS}
    return {name: -1 if value == resource.RLIM_INFINITY else value for name, value in soft.items()}


def judge_limits(limits: Limits, rdma: bool) -> Finding:
    """Judge the limits. `rdma`: there are devices whose memory must be locked."""
    wrong: list[str] = []
    remedies: list[str] = []
    bad = False
    for name, _, letter, text, least, good in _LIMITS:
        value = limits.get(name, -1)
        if 0 <= value < max(least, good) and (rdma or name != "locked"):
            wrong.append("%s (ulimit -%s)" % (_limit_text(letter, value, text), letter))
            remedies.append("ulimit -%s %s" % (letter, _ENOUGH.get(letter, "unlimited")))
            bad = bad or value < least
    if not wrong:
        shown = [_limit_text(letter, limits.get(name, -1), text) for name, _, letter, text, *_ in _LIMITS[:3]]
        return ok("ulimits", ", ".join(shown), **limits)
    remedy = "raise it before the job starts (%s in the shell that submits; Slurm hands limits on)" % "; ".join(
        remedies
    )
    return (fail if bad else warn)("ulimits", "too low: %s" % ", ".join(wrong), remedy, **limits)


def _limit_text(letter: str, value: int, text: str) -> str:
    amount = "unlimited" if value < 0 else str(value) if letter in _COUNTS else binary_size(value)
    return "%s %s" % (amount, text)
