from __future__ import annotations

import threading
import time

import pytest

from windlass.node.wire.timers import Pool, Timers


def test_a_pool_runs_jobs_side_by_side_up_to_its_limit() -> None:
    pool = Pool(3, "test")
    lock, running, most, done = threading.Lock(), [0], [0], threading.Semaphore(0)

    def job() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.05)
        with lock:
            running[0] -= 1
        done.release()

    for _ in range(12):
        pool.submit(job)
    for _ in range(12):
        assert done.acquire(timeout=30)
    assert most[0] == 3
    pool.close()
    with pytest.raises(RuntimeError):
        pool.submit(job)


def test_a_pool_survives_a_job_that_fails() -> None:
    pool = Pool(1, "test")
    done = threading.Event()
    pool.submit(lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    pool.submit(done.set)
    assert done.wait(5)
    pool.close()


def test_a_pool_reuses_an_idle_thread() -> None:
    pool = Pool(8, "reuse")
    for _ in range(20):
        done = threading.Event()
        pool.submit(done.set)
        assert done.wait(5)
        time.sleep(0.005)
    assert sum(t.name == "reuse" for t in threading.enumerate()) <= 2
    pool.close()


def test_timers_run_in_order_of_their_time_and_not_after_close() -> None:
    timers, seen, done = Timers(), [], threading.Event()
    timers.after(0.15, done.set)
    timers.after(0.10, lambda: seen.append("second"))
    timers.after(0.05, lambda: seen.append("first"))
    assert done.wait(5)
    assert seen == ["first", "second"]
    timers.after(0.05, lambda: seen.append("late"))
    timers.close()
    time.sleep(0.1)
    assert seen == ["first", "second"]
