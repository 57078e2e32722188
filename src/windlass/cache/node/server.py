"""Connections on which other nodes, the mount process and the status tools ask this node.

Strangers are kept short: a limit on connections, a deadline for the proof, and no byte of an answer before it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from typing import Protocol

from . import wire
from .link import FrameReader, set_timeouts, short_path
from .store import Held

log = logging.getLogger("windlass.cache")
SEND_TIMEOUT_S = 15.0
WAIT_EVERY_S = 0.4
_MOST_ASKED = 20_000
Job = Callable[[], None]


class Service(Protocol):
    """What a node does with requests. `serve` must not block: it answers later, through the connection."""

    def serve(self, connection: Inbound, kind: int, request: int, body: bytes) -> None: ...


class Inbound:
    """One proven connection. Answers are queued and leave in order from one thread; streams send between them."""

    def __init__(self, connection: socket.socket, caller: int, local: bool, service: Service) -> None:
        self.caller = caller
        self.local = local
        self.closed = False
        self._connection = connection
        self._service = service
        self._open: set[int] = set()
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._send_lock = threading.Lock()
        self._reader_ident = 0
        self._reader = FrameReader(connection, wire.parse_request_head)
        self._asked: set[bytes] = set()
        set_timeouts(connection, 30.0, SEND_TIMEOUT_S)

    def run(self) -> None:
        """Reads requests until the other side leaves."""
        writer = threading.Thread(target=self._write, name="answers", daemon=True)
        writer.start()
        self._reader_ident = threading.get_ident()
        reader = self._reader
        try:
            while not self.closed:
                found = reader.next()
                if found is not None:
                    frame, body = found
                    if frame.request:
                        self._open.add(frame.request)
                    self._service.serve(self, frame.kind, frame.request, bytes(body))
        except (OSError, wire.ProtocolError, ValueError):
            pass  # gone, or not speaking the protocol: ValueError is a body that makes no sense
        finally:
            self.close()
            self._queue.put(None)
            writer.join()
            self._connection.close()

    def close(self) -> None:
        self.closed = True
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def is_reader(self) -> bool:
        """Whether this is the thread that reads the connection's requests: it may block, only its own caller waits."""
        return threading.get_ident() == self._reader_ident

    def is_idle(self) -> bool:
        """Whether this is the connection's own reader and its caller has asked for nothing else meanwhile."""
        return self.is_reader() and not self._reader.has_more()

    def asks(self, key: bytes) -> None:
        """Notes that the other side has or will have an object, so that no stream sends it again."""
        if len(self._asked) < _MOST_ASKED:
            self._asked.add(key)

    def has_asked(self, key: bytes) -> bool:
        return key in self._asked

    def later(self, job: Job) -> None:
        """Runs `job` on the connection's writing thread: the place for opening and sending a stored object."""
        self._queue.put(job)

    def send(self, kind: int, request: int, *parts: bytes | memoryview, last: bool = True) -> None:
        """Sends one frame now. A failure closes the connection and is not the caller's concern."""
        data = b"".join(parts)
        try:
            with self._send_lock:
                self._connection.sendall(wire.head(kind, request, len(data)) + data)
        except OSError:
            self.close()
        if last:
            self._open.discard(request)

    def send_file(self, request: int, prefix: bytes, held: Held, *, last: bool = True) -> None:
        """Sends an OBJECT whose data lies in the store, without bringing it into this process."""
        size = held.size
        try:
            with self._send_lock:
                start = wire.head(wire.OBJECT, request, len(prefix) + size) + prefix
                self._connection.sendall(start, socket.MSG_MORE)
                sent = 0
                while sent < size:
                    step = os.sendfile(self._connection.fileno(), held.fd, held.offset + sent, size - sent)
                    if step == 0:
                        raise ConnectionError("stored object shrank")
                    sent += step
        except OSError:
            self.close()
        if last:
            self._open.discard(request)

    def _write(self) -> None:
        while True:
            try:
                job = self._queue.get(timeout=WAIT_EVERY_S)
            except queue.Empty:
                if self._open and not self.closed:
                    self.send(wire.WAIT, 0)
                continue
            if job is None:
                return
            try:
                job()
            except Exception:  # out of descriptors, say: the other side asks elsewhere
                log.exception("answer failed")
                self.close()


class Listener:
    """Accepts connections on one socket and hands proven ones to the service, each on its own thread."""

    MAX_CONNECTIONS = 512
    MAX_STRANGERS = 64
    PROOF_S = 2.0

    def __init__(self, sock: socket.socket, key: bytes, node: int, service: Service, *, local: bool) -> None:
        self._socket = sock
        self._key = key
        self._node = node
        self._service = service
        self._local = local
        self._lock = threading.Lock()
        self._proven: set[Inbound] = set()
        self._strangers = 0
        self.refused = 0
        self._closed = False
        self._thread = threading.Thread(target=self._accept, name="listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in list(self._proven):
            connection.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                time.sleep(0.05)  # closing, or out of descriptors: others will close theirs
                continue
            with self._lock:
                full = self._strangers >= self.MAX_STRANGERS or len(self._proven) >= self.MAX_CONNECTIONS
                self._strangers += not full
                self.refused += full
            if full:
                connection.close()
                continue
            threading.Thread(target=self._greet, args=(connection,), name="inbound", daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        caller = None
        try:
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(self.PROOF_S)
            caller = wire.prove_as_called(connection, self._key, self._node, time.monotonic() + self.PROOF_S)
        except (OSError, wire.ProtocolError):
            connection.close()
        with self._lock:
            self._strangers -= 1
            if caller is None:
                self.refused += 1
                return
            inbound = Inbound(connection, caller, self._local, self._service)
            self._proven.add(inbound)
        try:
            inbound.run()
        finally:
            with self._lock:
                self._proven.discard(inbound)


def listen_tcp(host: str, ports: tuple[int, ...]) -> socket.socket:
    """A listening socket on the first free port; `OSError` where all are taken."""
    last: OSError = OSError("no port to try")
    for port in ports:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family)
        try:
            # Without SO_REUSEADDR a port that a job just left would be refused for a minute.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            sock.listen(256)
            return sock
        except OSError as error:
            sock.close()
            last = error
    raise last


def listen_unix(path: str) -> socket.socket:
    """A listening socket that only this user can reach, however long the path is."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    sock = socket.socket(socket.AF_UNIX)
    with short_path(path) as short:
        sock.bind(short)
    os.chmod(path, 0o600)
    sock.listen(64)
    return sock
