"""Room on the node: node-local folders, shared memory, and the user's home.

Limits of a process: open files, locked memory, processes, addresses. The launcher may hand on the shell's.
"""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Sequence

from windlass.node.checks.finding import Finding, expanded, fail, ok, warn
from windlass.node.sys.text import binary_size

LOW_BYTES = 2 << 30
FULL_BYTES = 64 << 20
LOW_SHARE = 0.02
LOW_FILES = 1000
SHARED_MEMORY = "/dev/shm"
SMALL_SHARED_BYTES = 1 << 30
"""Containers get 64 MB unless someone asks for more, which a few batches fill."""

Room = tuple[int, int, int]
"""Free bytes for a user, all bytes, free file entries (-1: the file system does not count them)."""


def room_of(path: str) -> Room | None:
    try:
        stat = os.statvfs(path)
    except OSError:
        return None
    files = stat.f_favail if stat.f_files else -1
    return stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize, files


def check_local_space(folders: Sequence[str]) -> Finding:
    """Room in node-local folders, and that a file can be made there."""
    rooms: dict[str, Room | None] = {}
    refused: dict[str, str] = {}
    for folder in dict.fromkeys(expanded(name) for name in folders):
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
    """The folder, or the nearest one above it that is there already."""
    while not os.path.isdir(folder) and folder not in {"/", ""}:
        folder = os.path.dirname(folder)
    return folder or "/"


def _write_error(folder: str) -> str:
    """Why no file can be made there; empty where one can. A page is written: a full one may still take names."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"w" * 4096)
            file.flush()
        return ""
    except OSError as error:
        return os.strerror(error.errno or 0)


def check_home(environ: dict[str, str], uid: int) -> Finding:
    """The user's home can be written: caches and histories go there unless somebody says otherwise."""
    home = environ.get("HOME") or ""
    if not os.path.isdir(home):
        return warn(
            "home", "%s does not exist on this node" % (home or "$HOME"), "set HOME to a folder that nodes have"
        )
    if os.stat(home).st_uid != uid and not os.access(home, os.W_OK):
        return warn("home", "%s is not ours" % home, "set HOME to a folder of yours")
    error = _write_error(home)
    if error:
        remedy = "clear ~/.cache (pip, huggingface, torch), or point HF_HOME, TORCH_HOME and XDG_CACHE_HOME to scratch"
        return fail("home", "no file can be written to %s: %s" % (home, error), remedy)
    inside = [name for name in CACHES if _below(environ.get(name) or _default(name, home), home)]
    room = room_of(home)
    if room and room[0] < FULL_BYTES:
        return fail("home", "%s has %s free" % (home, binary_size(room[0])), "clear ~/.cache, or get a larger quota")
    if room and room[0] < LOW_BYTES and inside:
        remedy = "point %s to scratch: models fill a home quickly" % ", ".join(inside)
        return warn("home", "%s has %s free" % (home, binary_size(room[0])), remedy)
    return ok("home", "%s can be written%s" % (home, ", %s free" % binary_size(room[0]) if room else ""))


def check_home_mount(environ: dict[str, str]) -> Finding:
    """For every node but the first: whether the home is there and mounted for writing. Writes nothing, because a
    shared home does not like a thousand writers."""
    home = environ.get("HOME") or ""
    try:
        read_only = bool(os.statvfs(home).f_flag & os.ST_RDONLY)
    except OSError as error:
        text = "%s cannot be used on this node: %s" % (home or "$HOME", os.strerror(error.errno or 0))
        return warn("home", text, "set HOME to a folder that nodes have")
    if read_only:
        return fail("home", "%s is mounted read-only on this node" % home, "leave the node out, and tell the site")
    return ok("home", "%s is mounted for writing" % home)


def check_tmpdir(environ: dict[str, str]) -> Finding:
    """The folder that TMPDIR names is there and can be written. Compilers and libraries fail without it."""
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


MIN_FILES = 1024
GOOD_FILES = 4096
MIN_LOCKED = 64 << 20
MIN_ADDRESSES = 64 << 30
"""Drivers of devices reserve address space for all memory of the node and its devices; importing torch takes 10 GiB."""
MIN_PROCESSES = 512
GOOD_PROCESSES = 4096

Limits = dict[str, int]


def read_limits() -> Limits:
    """Soft limits of this process; -1 is none."""
    names = {
        "files": resource.RLIMIT_NOFILE,
        "locked": resource.RLIMIT_MEMLOCK,
        "processes": resource.RLIMIT_NPROC,
        "addresses": resource.RLIMIT_AS,
    }
    found = {}
    for name, number in names.items():
        soft, _ = resource.getrlimit(number)
        found[name] = -1 if soft == resource.RLIM_INFINITY else soft
    return found


def judge_limits(limits: Limits, rdma: bool) -> Finding:
    """`rdma`: there are devices whose memory has to be locked."""
    bad: list[tuple[str, str]] = []
    poor: list[tuple[str, str]] = []
    files, locked, processes = limits["files"], limits["locked"], limits["processes"]
    if 0 <= files < GOOD_FILES:
        text = ("%d open files (ulimit -n)" % files, "ulimit -n %d" % GOOD_FILES)
        (bad if files < MIN_FILES else poor).append(text)
    if 0 <= processes < GOOD_PROCESSES:
        text = ("%d processes (ulimit -u)" % processes, "ulimit -u %d" % GOOD_PROCESSES)
        (bad if processes < MIN_PROCESSES else poor).append(text)
    if rdma and 0 <= locked < MIN_LOCKED:
        bad.append(("%s of locked memory (ulimit -l)" % binary_size(locked), "ulimit -l unlimited"))
    addresses = limits.get("addresses", -1)
    if 0 <= addresses < MIN_ADDRESSES:
        bad.append(("%s of address space (ulimit -v)" % binary_size(addresses), "ulimit -v unlimited"))
    wrong = bad + poor
    if not wrong:
        return ok("ulimits", "files %s, locked memory %s, processes %s" % _texts(limits), **limits)
    seen = ", ".join(seen for seen, _ in wrong)
    remedy = "raise it before the job starts (%s in the shell that submits; Slurm hands limits on)" % "; ".join(
        remedy for _, remedy in wrong
    )
    return (fail if bad else warn)("ulimits", "too low: %s" % seen, remedy, **limits)


def _texts(limits: Limits) -> tuple[str, str, str]:
    locked = limits["locked"]
    return _text(limits["files"]), "unlimited" if locked < 0 else binary_size(locked), _text(limits["processes"])


def _text(limit: int) -> str:
    return "unlimited" if limit < 0 else str(limit)
