"""Staging as a service of the agent: sources of the shared file system become copies on the node, without any mount.

Bytes come from the node's cache peer, so that they travel down the tree once, are verified by digest at every hop, and
a dead neighbour costs time and not bytes. What is being written lies under a name that nobody reads; it gets its own
name in one step when it is complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from windlass.agent.node.host import AgentError, Node, expand, say
from windlass.cache.node import control
from windlass.cache.node.backend import Backend
from windlass.cache.node.config import NodeConfig
from windlass.cache.node.keys import chunk_count, chunk_key, chunk_length, directory_key
from windlass.cache.node.listing import Listing, attr_mode, attr_pin
from windlass.cache.node.roots import Root

from .cache import reachable_hosts

_WINDOW = 48
_CHUNK_S = 120.0
_TELL_EVERY_S = 1.0
_PARTIAL = ".windlass-stage."
_TAR_OPTIONS = {".tar": (), ".tar.gz": ("-z",), ".tgz": ("-z",), ".tar.zst": ("--zstd",), ".tzst": ("--zstd",)}
_TAR_OPTIONS.update({".tar.xz": ("-J",), ".txz": ("-J",), ".tar.bz2": ("-j",), ".tbz2": ("-j",)})


class Piece(NamedTuple):
    """A file of the source: where it is seen, and its attributes."""

    path: bytes
    attr: bytes

    @property
    def size(self) -> int:
        return attr_pin(self.attr).size


def make(node: Node, settings: dict[str, Any]) -> StageService:
    return StageService(node, settings)


class StageService:
    """`start` returns when everything is in its place on this node."""

    def __init__(self, node: Node, settings: dict[str, Any]) -> None:
        self._node = node
        self._told = settings
        self._state = os.path.join(node.folder, "c", "%s.%d" % (node.run_id, node.number))
        self._mounts: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._files = 0
        self._bytes = 0
        self._last_told = time.monotonic()

    def start(self) -> None:
        target = expand(self._told["to"]).replace("{node}", str(self._node.number))
        os.makedirs(target, exist_ok=True)
        sweep_partial(target)
        key_file = os.path.join(os.path.dirname(self._node.bundle), "key")
        with open(os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(self._node.key)
        config = self._config(key_file)
        control.start(config, float(self._told.get("start_s", 30.0)))
        backend = Backend(config, self._node.key)
        backend.start(time.monotonic() + 30.0)
        try:
            fetcher = Fetcher(backend, config.chunk_bytes)
            for at, source in enumerate(self._told["sources"]):
                self._stage(fetcher, at, source, target)
        finally:
            backend.close()

    def _config(self, key_file: str) -> NodeConfig:
        number = str(self._node.number)
        roots = [
            Root(
                os.fsencode(s["path"]),
                os.fsencode(s["real"].replace("{node}", number) if self._told.get("per_node") else s["real"]),
            )
            for s in self._told["sources"]
        ]
        return NodeConfig(
            job=self._node.run_id,
            node=self._node.number,
            hosts=reachable_hosts(self._node.hosts, self._node.number),
            roots=tuple(roots),
            state_dir=self._state,
            key_file=key_file,
            owner_pid=os.getpid(),
            **self._told.get("config", {}),
        )

    def news(self) -> list[str]:
        return []

    def end(self) -> dict[str, Any]:
        for where, server in reversed(self._mounts):
            end_mount(where, server)
        control.stop(self._state, 10.0)
        return {"files": self._files, "bytes": self._bytes}

    # One source

    def _stage(self, fetcher: Fetcher, at: int, source: dict[str, Any], target: str) -> None:
        path = os.fsencode(source["path"])
        attr = fetcher.attr_of(path)
        name = os.path.basename(source["path"])
        shard = (self._node.number, len(self._node.hosts)) if self._told.get("shard") else None
        partial = os.path.join(target, "%s%s.%d" % (_PARTIAL, self._node.run_id, at))
        with partial_place(partial) as place:
            if stat.S_ISDIR(attr_mode(attr)):
                final = os.path.join(target, name)
                os.mkdir(place)
                self._copy_tree(fetcher, path, place, shard)
            elif shard is not None and at % shard[1] != shard[0]:
                return
            elif self._told.get("extract") and tar_options(name) is not None:
                final = os.path.join(target, tar_stem(name))
                os.mkdir(place)
                self._extract(fetcher, Piece(path, attr), place, tar_options(name) or ())
            else:
                final = os.path.join(target, name)
                self._copy_file(fetcher, Piece(path, attr), place)
            put_in_place(place, final)
        if self._told.get("extract") and is_squashfs(final):
            where = os.path.join(target, os.path.splitext(name)[0])
            self._mounts.append((where, start_mount(final, where)))

    def _copy_tree(self, fetcher: Fetcher, top: bytes, place: str, shard: tuple[int, int] | None) -> None:
        folders: list[tuple[str, bytes]] = []
        pieces: list[tuple[Piece, str]] = []
        for path, listing in walk(fetcher, top):
            here = place + os.fsdecode(path[len(top) :])
            if path != top:
                os.mkdir(here)
            folders.append((here, listing.attr))
            for entry in listing.entries():
                file = os.path.join(here, os.fsdecode(entry.name))
                if entry.target is not None:
                    os.symlink(entry.target, os.fsencode(file))
                elif stat.S_ISREG(attr_mode(entry.attr)):
                    pieces.append((Piece(path.rstrip(b"/") + b"/" + entry.name, entry.attr), file))
        if shard is not None:
            pieces = [piece for at, piece in enumerate(pieces) if at % shard[1] == shard[0]]
        self._write_pieces(fetcher, pieces)
        for here, attr in reversed(folders):
            settle(here, attr)

    def _copy_file(self, fetcher: Fetcher, piece: Piece, place: str) -> None:
        self._write_pieces(fetcher, [(piece, place)])

    def _write_pieces(self, fetcher: Fetcher, pieces: list[tuple[Piece, str]]) -> None:
        """Chunks of all files in one pipelined row: a small file does not wait for its own round trip."""
        keys = (key for piece, _ in pieces for key in fetcher.keys(piece))
        data = fetcher.read(keys)
        for piece, file in pieces:
            with open(file, "xb") as out:
                for _ in range(chunk_count(piece.size, fetcher.chunk_bytes)):
                    out.write(next(data))
                    self._tell(fetcher)
                if out.tell() != piece.size:
                    raise AgentError("%s: %d bytes instead of %d" % (file, out.tell(), piece.size))
            settle(file, piece.attr)
            self._files += 1
            self._bytes += piece.size

    def _extract(self, fetcher: Fetcher, piece: Piece, place: str, options: tuple[str, ...]) -> None:
        """Hands the archive to `tar` while it arrives."""
        unpack = subprocess.Popen(
            ["tar", "-x", "-f", "-", *options, "-C", place, "--no-same-owner"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert unpack.stdin is not None and unpack.stderr is not None
        try:
            for chunk in fetcher.read(fetcher.keys(piece)):
                unpack.stdin.write(chunk)
                self._tell(fetcher)
            unpack.stdin.close()
            said = unpack.stderr.read().decode(errors="replace").strip()
        except BrokenPipeError:
            said = unpack.stderr.read().decode(errors="replace").strip()
        finally:
            if unpack.poll() is None and not unpack.stdin.closed:
                unpack.kill()
        if unpack.wait(_CHUNK_S):
            raise AgentError("tar: %s" % said[-200:])
        self._files += 1
        self._bytes += piece.size

    def _tell(self, fetcher: Fetcher) -> None:
        now = time.monotonic()
        if now - self._last_told > _TELL_EVERY_S:
            self._last_told = now
            say(node=self._node.number, staged=fetcher.bytes)


class Fetcher:
    """Objects in order from the node's peer, many asked for at once."""

    def __init__(self, backend: Backend, chunk_bytes: int) -> None:
        self._backend = backend
        self.chunk_bytes = chunk_bytes
        self.bytes = 0

    def keys(self, piece: Piece) -> Iterator[tuple[bytes, int]]:
        """Key and length of every chunk of a file."""
        pin = attr_pin(piece.attr)
        for index in range(chunk_count(pin.size, self.chunk_bytes)):
            yield chunk_key(piece.path, pin, index), chunk_length(pin.size, self.chunk_bytes, index)

    def read(self, keys: Iterator[tuple[bytes, int]]) -> Iterator[bytes]:
        """The bytes of each key, in order. Raises `OSError` where one cannot be had, `TimeoutError` at the deadline."""
        waiting: deque[tuple[bytes, int, _Answer]] = deque()
        left = iter(keys)
        while True:
            while len(waiting) < _WINDOW:
                wanted = next(left, None)
                if wanted is None:
                    break
                waiting.append((*wanted, self._ask(wanted[0])))
            if not waiting:
                return
            key, length, answer = waiting.popleft()
            data = self._take(key, length, answer)
            self.bytes += len(data)
            yield data

    def listing(self, path: bytes) -> Listing:
        found = self._backend.listing(path)
        for again in range(4):
            if found is not None:
                return found
            self._ask(directory_key(path), again=again > 0).wait()
            found = self._backend.listing(path)
        raise OSError("folder %s comes and goes" % os.fsdecode(path))

    def attr_of(self, path: bytes) -> bytes:
        parent, _, name = path.rpartition(b"/")
        listing = self.listing(parent or b"/")
        place = listing.place(name)
        if place is None:
            raise FileNotFoundError("%s is not there" % os.fsdecode(path))
        return listing.attr_at(place)

    def _ask(self, key: bytes, *, again: bool = False) -> _Answer:
        answer = _Answer()
        self._backend.fetch(key, answer.done, again=again)
        return answer

    def _take(self, key: bytes, length: int, answer: _Answer) -> bytes:
        buffer = bytearray(length)
        for _ in range(4):
            answer.wait()
            if self._backend.read_into(key, 0, memoryview(buffer)) == length:
                return bytes(buffer)
            answer = self._ask(key, again=True)  # it was here, and had to make room before we came
        raise OSError("a chunk comes and goes: the memory of the cache is too small")


class _Answer:
    def __init__(self) -> None:
        self._event = threading.Event()
        self._error: OSError | None = None

    def done(self, error: OSError | None) -> None:
        self._error = error
        self._event.set()

    def wait(self) -> None:
        if not self._event.wait(_CHUNK_S):
            raise TimeoutError("nothing came for %.0f s" % _CHUNK_S)
        if self._error is not None:
            raise self._error


def walk(fetcher: Fetcher, top: bytes) -> Iterator[tuple[bytes, Listing]]:
    """Every folder below `top`, parents first."""
    todo = [top]
    while todo:
        path = todo.pop()
        listing = fetcher.listing(path)
        yield path, listing
        for entry in listing.entries():
            if stat.S_ISDIR(attr_mode(entry.attr)):
                todo.append(path.rstrip(b"/") + b"/" + entry.name)


# Places


class partial_place:  # noqa: N801 - used as a function in a with statement
    """A name to write under, locked while we live, and gone afterwards where it did not get its own."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> str:
        self._lock = os.open(self._path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return self._path

    def __exit__(self, *_: object) -> None:
        remove(self._path)
        remove(self._path + ".lock")
        os.close(self._lock)


def put_in_place(partial: str, final: str) -> None:
    """The finished copy gets its name; one that stood there before is taken away."""
    try:
        os.rename(partial, final)
    except OSError:
        old = partial + ".old"
        os.rename(final, old)
        os.rename(partial, final)
        remove(old)


def sweep_partial(target: str) -> None:
    """Removes what a killed agent left half-done: partial copies whose lock nobody holds."""
    for name in os.listdir(target):
        if not (name.startswith(_PARTIAL) and name.endswith(".lock")):
            continue
        lock = os.path.join(target, name)
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        finally:
            os.close(fd)
        for rest in ("", ".old", ".lock"):
            remove(lock[: -len(".lock")] + rest)


def remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        for folder, _, _ in os.walk(path):
            os.chmod(folder, 0o700)
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        os.unlink(path)


def settle(path: str, attr: bytes) -> None:
    """Mode and date as in the source."""
    mtime_ns = attr_pin(attr).mtime_ns
    os.chmod(path, stat.S_IMODE(attr_mode(attr)) | (0o700 if os.path.isdir(path) else 0o400))
    os.utime(path, ns=(mtime_ns, mtime_ns))


def tar_options(name: str) -> tuple[str, ...] | None:
    ending = next((end for end in _TAR_OPTIONS if name.endswith(end)), None)
    return _TAR_OPTIONS[ending] if ending is not None else None


def tar_stem(name: str) -> str:
    return name[: -len(next(end for end in _TAR_OPTIONS if name.endswith(end)))]


# Images


def is_squashfs(path: str) -> bool:
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"hsqs"


def start_mount(image: str, where: str) -> subprocess.Popen[bytes]:
    """Mounts a squashfs image with squashfuse, which lives as long as we do."""
    program = shutil.which("squashfuse_ll") or shutil.which("squashfuse")
    if program is None:
        raise AgentError("no squashfuse on this node to mount %s with" % image)
    os.makedirs(where, exist_ok=True)
    server = subprocess.Popen(
        [program, "-f", image, where], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    wait_for(lambda: os.path.ismount(where) or server.poll() is not None, 10.0)
    if not os.path.ismount(where):
        server.kill()
        said = server.communicate(timeout=10)[1].decode(errors="replace").strip()
        raise AgentError("squashfuse could not mount %s: %s" % (image, said[-200:]))
    return server


def end_mount(where: str, server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(10.0)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait(10.0)
    if os.path.ismount(where):
        program = shutil.which("fusermount3") or shutil.which("fusermount") or "umount"
        subprocess.run([program, *(["-u", "-z"] if "fuser" in program else ["-l"]), where], timeout=10, check=False)
    with contextlib.suppress(OSError):
        os.rmdir(where)


def wait_for(condition: Callable[[], bool], timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
