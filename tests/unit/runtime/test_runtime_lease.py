"""One run per folder: who holds it, who is told so, and when a holder is replaced."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from windlass.errors import MachineError
from windlass.runtime import codes
from windlass.runtime.lease import HOLDER, HeldError, Holder, acquire, read_holder, this_process

HOLD_AND_WAIT = """
import sys
from pathlib import Path
from windlass.runtime.lease import acquire
lease = acquire(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def elsewhere(**changes: object) -> Holder:
    """A holder on another machine, whose process cannot be looked up from here."""
    return dataclasses.replace(this_process({}), host="nid9", boot="another", **changes)  # type: ignore[arg-type]


def plant(folder: Path, holder: Holder) -> Path:
    path = folder / HOLDER
    path.write_text(json.dumps(dataclasses.asdict(holder)))
    return path


def test_a_folder_is_made_held_and_given_back(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    lease = acquire(folder)
    assert lease.still_mine()
    lease.release()
    lease.release()
    assert list(folder.iterdir()) == []


def test_a_second_run_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD_AND_WAIT, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(HeldError) as caught:
            acquire(tmp_path)
        assert f"process {other.pid} of" in caught.value.message and caught.value.transient
    finally:
        other.kill()
        other.communicate(timeout=30)
    acquire(tmp_path).release()


def test_a_killed_holder_that_nobody_reaped_is_replaced_at_once(tmp_path: Path) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD_AND_WAIT, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        other.kill()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # dead, and still a zombie
        acquire(tmp_path, lease_s=60).release()
    finally:
        other.communicate(timeout=30)


def test_a_living_holder_elsewhere_is_seen_by_its_renewals(tmp_path: Path) -> None:
    path = plant(tmp_path, elsewhere())
    renewer = threading.Timer(0.5, lambda: os.utime(path))
    renewer.start()
    try:
        with pytest.raises(HeldError, match="nid9"):
            acquire(tmp_path, lease_s=20)
    finally:
        renewer.join()


def test_a_silent_holder_elsewhere_is_replaced_after_the_lease(tmp_path: Path) -> None:
    plant(tmp_path, elsewhere())
    told: list[str] = []
    lease = acquire(tmp_path, lease_s=0.6, tell=told.append)
    assert lease.still_mine() and "nid9" in told[0]
    lease.release()


def test_a_holder_silent_for_very_long_is_replaced_without_waiting(tmp_path: Path) -> None:
    path = plant(tmp_path, elsewhere())
    os.utime(path, (1_000_000, 1_000_000))
    told: list[str] = []
    acquire(tmp_path, lease_s=30, tell=told.append).release()
    assert told == []


def test_the_next_attempt_of_the_same_run_takes_over_at_once(tmp_path: Path) -> None:
    plant(tmp_path, elsewhere(run_id="r1", attempt=0))
    me = this_process({codes.RUN_ID: "r1", codes.ATTEMPT: "1"})
    acquire(tmp_path, me=me, lease_s=60).release()


def test_a_damaged_holder_file_does_not_lock_the_folder_for_ever(tmp_path: Path) -> None:
    (tmp_path / HOLDER).write_text("{")
    acquire(tmp_path).release()


def test_a_holder_that_lost_the_folder_may_not_commit_and_leaves_the_new_one_alone(tmp_path: Path) -> None:
    lease = acquire(tmp_path, renew_s=0.05)
    plant(tmp_path, elsewhere())
    with pytest.raises(HeldError, match="no longer held by this run"):
        lease.require()
    lease.release()
    found = read_holder(tmp_path)
    assert found is not None and found.host == "nid9"


def test_of_many_that_come_at_once_exactly_one_gets_the_folder(tmp_path: Path) -> None:
    plant(tmp_path, elsewhere())
    os.utime(tmp_path / HOLDER, (1_000_000, 1_000_000))
    winners, refused = [], []

    def come() -> None:
        try:
            winners.append(acquire(tmp_path, lease_s=30))
        except HeldError as error:
            refused.append(error)

    threads = [threading.Thread(target=come) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (len(winners), len(refused)) == (1, 7)
    assert winners[0].still_mine()
    winners[0].release()


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError) as caught:
        acquire(tmp_path / "file" / "ckpt")
    assert str(tmp_path / "file") in caught.value.message and caught.value.hint
