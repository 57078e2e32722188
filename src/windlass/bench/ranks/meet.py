"""A barrier among ranks with nothing but sockets, for programs that must not need torch."""

from __future__ import annotations

import os
import socket
import time

from windlass.errors import MachineError

_WAIT_S = 600.0
_RETRY_S = 0.05


class Meeting:
    """All ranks of a run. The first one listens at the run's rendezvous; nothing but single bytes is exchanged."""

    def __init__(self, rank: int, size: int, *, wait_s: float = _WAIT_S) -> None:
        self._rank, self._size, self._wait_s = rank, size, wait_s
        self._others: list[socket.socket] = []
        if size > 1:
            address = (os.environ.get("MASTER_ADDR", "localhost"), int(os.environ["MASTER_PORT"]))
            self._others = self._gather(address[1]) if rank == 0 else [self._reach(address)]

    def _gather(self, port: int) -> list[socket.socket]:
        end = time.monotonic() + self._wait_s
        found: list[socket.socket] = []
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        dual = family == socket.AF_INET6
        with socket.create_server(("", port), family=family, dualstack_ipv6=dual, backlog=self._size) as server:
            while len(found) < self._size - 1:
                server.settimeout(max(0.01, end - time.monotonic()))
                try:
                    found.append(server.accept()[0])
                except TimeoutError:
                    raise MachineError(f"only {len(found) + 1} of {self._size} ranks came to the meeting") from None
        return found

    def _reach(self, address: tuple[str, int]) -> socket.socket:
        end = time.monotonic() + self._wait_s
        while True:
            try:
                return socket.create_connection(address, timeout=5)
            except OSError as error:
                if time.monotonic() > end:
                    raise MachineError(f"rank 0 cannot be reached at {address[0]}:{address[1]}: {error}") from error
                time.sleep(_RETRY_S)

    def wait(self) -> None:
        """Return when every rank has called this; an error where one is gone or does not come in time."""
        try:
            for other in self._others:
                other.settimeout(self._wait_s)
                if self._rank != 0:
                    other.sendall(b".")
                if not other.recv(1):
                    raise MachineError("a rank left the meeting", hint="see `windlass logs --rank all`")
            if self._rank == 0:
                for other in self._others:
                    other.sendall(b".")
        except OSError as error:
            raise MachineError(f"the ranks lost each other: {error}", hint="see `windlass logs --rank all`") from error

    def close(self) -> None:
        for other in self._others:
            other.close()
