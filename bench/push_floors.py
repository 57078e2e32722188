"""What a pushed byte costs at least in pure Python: processor seconds per GB of each step of a hop, on one thread.

    python bench/push_floors.py

Nothing of windlass is in it: standard library calls that do one step each. Records: `results/start/push-floors-*.json`.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable

_BYTES = 256 << 20
_PIECE = 1 << 20


def main() -> None:
    data = memoryview(bytearray(os.urandom(_PIECE)))
    store = os.memfd_create("floors")
    steps = range(0, _BYTES, _PIECE)
    found = {
        "sha256": _spent(lambda: [hashlib.sha256(data).digest() for _ in steps]),
        "sha1": _spent(lambda: [hashlib.sha1(data).digest() for _ in steps]),
        "blake2b": _spent(lambda: [hashlib.blake2b(data).digest() for _ in steps]),
        "store: write": _spent(lambda: [os.pwrite(store, data, at) for at in steps]),
        "store: read": _spent(lambda: [os.preadv(store, [data], at) for at in steps]),
        **_sent(store),
    }
    record = {"cpus": os.cpu_count(), "python": sys.version.split()[0], "processor_s_per_gb": found}
    sys.stdout.write(json.dumps(record, indent=1) + "\n")


def _spent(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return round((time.thread_time() - began) / (_BYTES / 1e9), 3)


def _sent(store: int) -> dict[str, float]:
    """From the store to a child, over loopback."""
    received: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        receiver = threading.Thread(target=lambda: received.append(_spent(lambda: _receive(server))))
        receiver.start()
        with socket.create_connection(server.getsockname(), timeout=60.0) as connection:
            connection.settimeout(None)
            sent = _spent(lambda: _send(connection, store))
        receiver.join(60.0)
    return {"socket: sendfile": sent, "socket: receive": received[0]}


def _send(connection: socket.socket, store: int) -> None:
    at = 0
    while at < _BYTES:
        at += os.sendfile(connection.fileno(), store, at, min(_PIECE, _BYTES - at))


def _receive(server: socket.socket) -> None:
    connection, _ = server.accept()
    buffer = memoryview(bytearray(_PIECE))
    with connection:
        while connection.recv_into(buffer):
            pass


if __name__ == "__main__":
    main()
