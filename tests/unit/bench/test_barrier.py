"""The barrier among ranks that have nothing but sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import pytest

from windlass.bench.barrier import RankBarrier
from windlass.bench.rank import World
from windlass.errors import MachineError


@pytest.fixture
def port() -> int:
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


def _world(rank: int, size: int, port: int) -> World:
    return World(rank=rank, size=size, local_rank=rank, local_size=size, rendezvous=("localhost", port))


def _together(*works: Callable[[], None]) -> list[BaseException]:
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in threads)
    return errors


def test_nobody_goes_on_before_the_last_has_come(port: int) -> None:
    come: list[int] = []
    seen: list[int] = []

    def rank(number: int, delay_s: float) -> None:
        barrier = RankBarrier(_world(number, 3, port), "word", wait_s=20)
        time.sleep(delay_s)
        come.append(number)
        barrier.wait()
        seen.append(len(come))
        barrier.wait()
        barrier.close()

    assert _together(lambda: rank(0, 0.0), lambda: rank(1, 0.3), lambda: rank(2, 0.1)) == []
    assert seen == [3, 3, 3]


def test_a_stranger_is_no_rank(port: int) -> None:
    def stranger() -> None:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                with socket.create_connection(("localhost", port), timeout=20) as other:
                    other.sendall(b"x" * 32)
                    assert other.recv(1) == b""
                    return
            except ConnectionRefusedError:
                time.sleep(0.01)

    def rank(number: int, delay_s: float) -> None:
        time.sleep(delay_s)
        barrier = RankBarrier(_world(number, 2, port), "word", wait_s=20)
        barrier.wait()
        barrier.close()

    assert _together(stranger, lambda: rank(0, 0.0), lambda: rank(1, 0.5)) == []


def test_a_rank_that_does_not_come_or_leaves_is_an_error_not_a_hang(port: int) -> None:
    with pytest.raises(MachineError, match="only 1 of 2 ranks"):
        RankBarrier(_world(0, 2, port), "word", wait_s=0.3)

    def leaves() -> None:
        RankBarrier(_world(1, 2, port), "word", wait_s=5).close()

    def waits() -> None:
        barrier = RankBarrier(_world(0, 2, port), "word", wait_s=5)
        barrier.wait()

    (error,) = _together(waits, leaves)
    assert isinstance(error, MachineError)


def test_one_rank_waits_for_nobody() -> None:
    RankBarrier(_world(0, 1, 1), "word").wait()
