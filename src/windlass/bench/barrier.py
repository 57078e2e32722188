"""A barrier among ranks that uses only sockets, for programs that must not need torch."""

from __future__ import annotations

import hashlib
import hmac
import socket
import time

from windlass.bench.rank import World
from windlass.errors import MachineError

_WAIT_S = 600.0
_RETRY_S = 0.05
_SHOW_S = 5.0


class RankBarrier:
    """A barrier of all ranks of a run. Rank 0 listens at the run's rendezvous address.

    A rank that connects sends the hash of `word`. After that, only single bytes are exchanged.
    """

    def __init__(self, world: World, word: str, *, wait_s: float = _WAIT_S) -> None:
        self._rank, self._size, self._wait_s = world.rank, world.size, wait_s
        self._word = hashlib.sha256(word.encode()).digest()
        self._others: list[socket.socket] = []
        if world.size > 1:
            if world.rendezvous is None:
                raise MachineError(f"{world.size} ranks without MASTER_PORT", hint="start them with a launcher")
            self._others = self._gather(world.rendezvous[1]) if world.first else [self._reach(world.rendezvous)]

    def _gather(self, port: int) -> list[socket.socket]:
        end = time.monotonic() + self._wait_s
        found: list[socket.socket] = []
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        dual = family == socket.AF_INET6
        with socket.create_server(("", port), family=family, dualstack_ipv6=dual, backlog=self._size) as server:
            while len(found) < self._size - 1:
                server.settimeout(max(0.01, end - time.monotonic()))
                try:
                    came = server.accept()[0]
                except TimeoutError:
                    raise MachineError(
                        f"only {len(found) + 1} of {self._size} ranks reached the barrier",
                        hint="one rank failed or hangs: see the logs of the others (`windlass logs --rank all`)",
                    ) from None
                if self._is_ours(came):
                    found.append(came)
                else:
                    came.close()
        return found

    def _is_ours(self, came: socket.socket) -> bool:
        """Whether the connection comes from a rank of our run. Other programs can find the port too."""
        came.settimeout(_SHOW_S)
        try:
            return hmac.compare_digest(came.recv(len(self._word), socket.MSG_WAITALL), self._word)
        except OSError:
            return False

    def _reach(self, address: tuple[str, int]) -> socket.socket:
        end = time.monotonic() + self._wait_s
        while True:
            try:
                reached = socket.create_connection(address, timeout=5)
                reached.sendall(self._word)
                return reached
            except OSError as error:
                if time.monotonic() > end:
                    raise MachineError(
                        f"rank 0 cannot be reached at {address[0]}:{address[1]}: {error}",
                        hint="`windlass doctor` checks the network between the nodes",
                    ) from error
                time.sleep(_RETRY_S)

    def wait(self) -> None:
        """Return when every rank has called this. Raise an error if a rank is gone or does not arrive in time."""
        try:
            for other in self._others:
                other.settimeout(self._wait_s)
                if self._rank != 0:
                    other.sendall(b".")
                if not other.recv(1):
                    raise MachineError("a rank left the barrier", hint="see `windlass logs --rank all`")
            if self._rank == 0:
                for other in self._others:
                    other.sendall(b".")
        except OSError as error:
            raise MachineError(f"the ranks lost each other: {error}", hint="see `windlass logs --rank all`") from error

    def close(self) -> None:
        for other in self._others:
            other.close()
