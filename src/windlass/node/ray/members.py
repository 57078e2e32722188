"""The connections between the head of a Ray cluster and its workers, for as long as the run lasts.

Ray notices a lost node after a minute, and its processes stay when a script ends. Each worker therefore holds one
connection to the head, which both sides authenticate with the key of the run. The head sends Ray's address. The worker
reports that its node is up. A connection that ends without a farewell means that the other side has died.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable

from windlass.node.wire.dial import Target, dial
from windlass.node.wire.proof import Channel, Identity, ProtocolError

END = "end"
_FRAME = 128
_PIECE_S = 0.2
_DIAL_S = 5.0
SERVICE = "ray"


class PeerLostError(Exception):
    """The connection to the other side has ended, or carried something else than its messages."""


def send(channel: Channel, text: str) -> None:
    """Send one short message. Raises `PeerLostError`."""
    try:
        channel.socket.sendall(channel.seal(text.encode().ljust(_FRAME)[:_FRAME]))
    except OSError as error:
        raise PeerLostError(str(error)) from error


def receive(channel: Channel) -> str:
    """Wait for one message. Raises `PeerLostError`, also after the timeout of the socket."""
    data = b""
    want = _FRAME + channel.tag_bytes
    try:
        while len(data) < want:
            piece = channel.socket.recv(want - len(data))
            if not piece:
                raise PeerLostError("the connection has ended")
            data += piece
        channel.check(data[:_FRAME], data[_FRAME:])
    except (OSError, ProtocolError) as error:
        raise PeerLostError(str(error)) from error
    return data[:_FRAME].decode().strip()


def keep_alive(connection: socket.socket) -> None:
    """Let the kernel notice within about a minute that the other node is dead."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 4)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def join(address: str, port: int, identity: Identity, timeout_s: float, check: Callable[[], None]) -> Channel:
    """Connect to the head, which may start later than this worker. Raises `PeerLostError` at the deadline.

    `check` is called repeatedly and may raise.
    """
    end = time.monotonic() + timeout_s
    while True:
        check()
        try:
            channel, _ = dial(Target(address, (port,), 0), identity, _DIAL_S)
        except (OSError, ProtocolError) as error:
            if time.monotonic() >= end:
                raise PeerLostError("no answer within %g s: %s" % (timeout_s, error)) from error
            time.sleep(_PIECE_S)
            continue
        channel.socket.settimeout(_DIAL_S)
        keep_alive(channel.socket)
        return channel


class Members:
    """The workers that the head knows. `serve` runs in one thread per worker."""

    def __init__(self) -> None:
        self._address = ""
        self._started = threading.Event()
        self._channels: dict[int, Channel] = {}
        self._ending = False
        self.up: dict[int, str] = {}
        """Nodes whose worker is up, with their names."""
        self.lost: dict[int, str] = {}
        """Nodes whose connection ended before the end of the run."""

    def announce(self, address: str) -> None:
        """Let the workers start Ray with this address."""
        self._address = address
        self._started.set()

    def serve(self, channel: Channel) -> None:
        """Serve one worker until its connection ends."""
        host = "node %d" % channel.node
        self._channels[channel.node] = channel
        try:
            channel.socket.settimeout(None)
            keep_alive(channel.socket)
            host = receive(channel)
            self._started.wait()
            send(channel, self._address)
            self.up[channel.node] = receive(channel)
            receive(channel)
        except PeerLostError:
            if not self._ending:
                self.lost[channel.node] = host
        finally:
            self._channels.pop(channel.node, None)

    def end(self, timeout_s: float) -> None:
        """Ask all workers to end, and wait until they have."""
        self._ending = True
        for channel in list(self._channels.values()):
            with contextlib.suppress(PeerLostError):
                send(channel, END)
        end = time.monotonic() + timeout_s
        while self._channels and time.monotonic() < end:
            time.sleep(0.05)
