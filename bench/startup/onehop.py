"""The plain copy that a push is held against: one TCP connection on loopback, `sendfile` here, `recv` there.

Nothing is verified and nobody else is fed: what a hop costs at the very least, to memory or to a file.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

from windlass.errors import MachineError

_PIECE = 1 << 20
_SILENT_S = 60.0


def one_hop(source: Path, copy: Path | None) -> float:
    """Seconds until all bytes of `source` have arrived, and are written to `copy` where one is given."""
    size = source.stat().st_size
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(_SILENT_S)
        sender = threading.Thread(target=_send, args=(source, server.getsockname(), size), daemon=True)
        sender.start()
        receiving, _ = server.accept()
    receiving.settimeout(None)
    began = time.monotonic()
    with receiving:
        got = _receive(receiving, copy)
    seconds = time.monotonic() - began
    sender.join(_SILENT_S)
    if got != size:
        raise MachineError(
            f"{got:,} of {size:,} bytes came through loopback",
            hint="is something else using up the memory of this machine?",
        )
    return seconds


def _send(source: Path, address: tuple[str, int], size: int) -> None:
    # A plain blocking socket: with a timeout in Python every call would be preceded by another one.
    with source.open("rb") as file, socket.create_connection(address) as connection:
        sent = 0
        while sent < size:
            step = os.sendfile(connection.fileno(), file.fileno(), sent, size - sent)
            if step == 0:
                return
            sent += step


def _receive(connection: socket.socket, copy: Path | None) -> int:
    memory = memoryview(bytearray(_PIECE))
    out = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600) if copy is not None else -1
    total = 0
    try:
        while got := connection.recv_into(memory, 0, socket.MSG_WAITALL):
            total += got
            done = 0
            while out >= 0 and done < got:
                done += os.write(out, memory[done:got])
        return total
    finally:
        if out >= 0:
            os.close(out)
