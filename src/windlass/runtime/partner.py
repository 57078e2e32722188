"""Copies of snapshot files on other nodes: each node sends its newest files to a partner, which keeps them in memory.

Nodes are paired: 0 with 1, 2 with 3. Without a pair, the last node uses the first one. One process per node (the one
that leads its fast tier) listens. Connections are authenticated with a key that the ranks exchange, and every file is
checked against its SHA-256 when it arrives.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import socket
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from windlass.errors import MachineError
from windlass.node.sys.memory import memory_left
from windlass.node.sys.reading import open_plain
from windlass.node.wire.accept import Acceptor
from windlass.node.wire.dial import Target, dial
from windlass.node.wire.link import set_timeouts
from windlass.node.wire.ports import listen_tcp
from windlass.node.wire.proof import TAG_BYTES, Channel, Identity, ProtocolError
from windlass.runtime.store import CorruptError, FileEntry, is_plain_name, open_closed

_HEAD_BYTES = 1024
_PIECE_BYTES = 4 << 20
_DIAL_S = 10.0
_SILENT_S = 20.0
_RESERVE = 0.1
"""Part of a node's free memory that copies leave free."""


def partner_of(node: int, nodes: int) -> int:
    """Return the node that keeps the copies of this node."""
    other = node ^ 1
    return other if other < nodes else 0


def room_for(folder: Path, size_bytes: int) -> bool:
    """Return whether this many bytes fit into the file system and into the node's free memory."""
    space = os.statvfs(folder)
    return size_bytes <= (1 - _RESERVE) * min(space.f_bavail * space.f_frsize, memory_left())


class Partners:
    """The other nodes, as one rank sees them. `serve` is True on the one rank of the node that listens."""

    def __init__(self, folder: Path, run: str, key: bytes, node: int, *, serve: bool, near: str) -> None:
        self._folder = folder
        self._identity = Identity(key, run, "partner", node)
        self._places: tuple[tuple[str, int], ...] = ()
        self._acceptor: Acceptor | None = None
        self.place: tuple[str, int] | None = None
        """Address and port of this rank, if it listens."""
        if serve:
            host = _address_towards(near)
            listening = listen_tcp(host, (0,))
            self.place = (host, listening.getsockname()[1])
            self._acceptor = Acceptor(listening, self._identity, self._answer, max_proven=16)

    def meet(self, places: Iterable[tuple[str, int]]) -> None:
        """Set the places of all nodes, in the order of their numbers."""
        self._places = tuple(places)

    @property
    def node(self) -> int:
        return self._identity.node

    @property
    def nodes(self) -> int:
        return len(self._places)

    def close(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()

    def send(self, step: Path, entries: Iterable[FileEntry], cancelled: threading.Event) -> None:
        """Send files of a snapshot to this node's partner. Raises `MachineError` with the reason if it has no copy."""
        other = partner_of(self._identity.node, self.nodes)
        try:
            with self._connection(other) as channel:
                for entry in entries:
                    ask = {"do": "put", "step": step.name, "name": entry.name}
                    _request(channel, {**ask, "size": entry.size_bytes, "sha256": entry.sha256})
                    with open_plain(step / entry.name) as file:
                        while not cancelled.is_set() and (piece := file.read(_PIECE_BYTES)):
                            channel.socket.sendall(piece)
                    if cancelled.is_set():
                        raise InterruptedError("the save was cancelled")
                    _expect_success(channel)
        except (OSError, ProtocolError) as error:
            host = self._places[other][0]
            raise MachineError(
                f"partner node {other} ({host}) has no copy of {step.name}: {error}",
                hint="check the network between the nodes with `windlass doctor`",
            ) from None

    def fetch(self, step: Path, entry: FileEntry, nodes: Iterable[int]) -> None:
        """Get a file of a snapshot from the first of these nodes that has it intact. Raises `CorruptError`."""
        problems = []
        with open(step / f".{entry.name}.lock", "wb", opener=open_closed) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another rank of this node may need the file too
            if (step / f".{entry.name}.fetched").exists():
                return
            for node in nodes:
                try:
                    with self._connection(node) as channel:
                        _request(channel, {"do": "get", "step": step.name, "name": entry.name})
                        if problem := _receive_file(channel.socket, step / entry.name, entry):
                            raise OSError(problem)
                    (step / f".{entry.name}.fetched").touch()
                    return
                except (OSError, ProtocolError) as error:
                    problems.append(f"node {node}: {error}")
        raise CorruptError(f"{entry.name} of {step.name} cannot be fetched: {'; '.join(problems) or 'no node has it'}")

    @contextlib.contextmanager
    def _connection(self, node: int) -> Any:
        host, port = self._places[node]
        channel, _ = dial(Target(host, (port,), node), self._identity, _DIAL_S)
        with channel.socket:
            set_timeouts(channel.socket, _SILENT_S, _SILENT_S)
            yield channel

    def _answer(self, channel: Channel) -> None:
        """Serve one connection of another node until it ends."""
        set_timeouts(channel.socket, _SILENT_S, _SILENT_S)
        with contextlib.suppress(OSError, ProtocolError):  # the other side reports it
            while True:
                asked = _hear(channel)
                if not (is_plain_name(asked["step"]) and is_plain_name(asked["name"]) and asked.get("size", 0) >= 0):
                    raise ProtocolError("the request has a wrong name or size")
                path = self._folder / asked["step"] / asked["name"]
                if asked["do"] == "get":
                    self._give(channel, path)
                    continue
                entry = FileEntry(name=path.name, size_bytes=asked["size"], sha256=asked["sha256"])
                room = room_for(self._folder, entry.size_bytes)
                _tell(channel, {"problem": "" if room else f"not enough memory for {entry.size_bytes} bytes"})
                if room:
                    _tell(channel, {"problem": _receive_file(channel.socket, path, entry)})

    def _give(self, channel: Channel, path: Path) -> None:
        try:
            file = open_plain(path)
        except OSError as error:
            _tell(channel, {"problem": str(error)})
            return
        with file:
            _tell(channel, {"problem": ""})
            channel.socket.sendfile(file)


def _tell(channel: Channel, message: Mapping[str, Any]) -> None:
    channel.socket.sendall(channel.seal(json.dumps(message).encode().ljust(_HEAD_BYTES)))


def _hear(channel: Channel) -> dict[str, Any]:
    data = b"".join(_pieces(channel.socket, _HEAD_BYTES + TAG_BYTES))
    channel.check(data[:_HEAD_BYTES], data[_HEAD_BYTES:])
    message: dict[str, Any] = json.loads(data[:_HEAD_BYTES])
    return message


def _request(channel: Channel, message: Mapping[str, Any]) -> None:
    _tell(channel, message)
    _expect_success(channel)


def _expect_success(channel: Channel) -> None:
    if problem := _hear(channel)["problem"]:
        raise OSError(problem)


def _pieces(connection: socket.socket, size: int) -> Iterable[bytes]:
    while size:
        piece = connection.recv(min(size, _PIECE_BYTES))
        if not piece:
            raise ConnectionError("the connection ended")
        size -= len(piece)
        yield piece


def _receive_file(connection: socket.socket, path: Path, entry: FileEntry) -> str:
    """Write the file under its name once all of it has arrived intact. Returns the problem of a damaged one, or ""."""
    digest = hashlib.sha256()
    part = path.with_name(f".{path.name}.part")
    with open(part, "wb", opener=open_closed) as file:
        for piece in _pieces(connection, entry.size_bytes):
            digest.update(piece)
            file.write(piece)
    if digest.hexdigest() != entry.sha256:
        part.unlink()
        return f"{entry.name} does not match its checksum"
    part.rename(path)
    return ""


def _address_towards(near: str) -> str:
    """Return the address of this node on the network of another host. No packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect((near, 9))
        return str(probe.getsockname()[0])
    return socket.gethostbyname(socket.gethostname())
