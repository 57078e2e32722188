"""Disks that fill up, processes that die while saving, and the fast tier: real files, real processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from requirements import require_torch
from unit.runtime.ranks import SCRIPT, Training, environment, free_port, losses, train
from windlass.runtime import RESUME_ME, store

require_torch()
pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]


def saved_steps(folder: Path) -> list[int]:
    return [found.step for found in store.list_snapshots(folder)]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def being_written(folder: Path) -> bool:
    try:
        return any(folder.glob(".saving-*/*.distcp"))
    except FileNotFoundError:  # renamed while we looked
        return False


def stop_while_saving(pid: int, folder: Path, deadline_s: float = 60.0) -> None:
    """Stop the process at a moment at which one snapshot is committed and the next one is being written."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        if being_written(folder) and saved_steps(folder):
            os.kill(pid, signal.SIGSTOP)
            if being_written(folder):
                return
            os.kill(pid, signal.SIGCONT)
    raise AssertionError("no save was seen under way")


def may_mount() -> bool:
    probe = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(probe, capture_output=True, timeout=20).returncode == 0


def test_a_full_disk_is_named_and_what_was_saved_stays(tmp_path: Path) -> None:
    """On a tmpfs of its own mount namespace: the mount is gone with the process."""
    if not may_mount():
        pytest.skip("needs the right to mount a tmpfs in a namespace")
    mount, kept = tmp_path / "disk", tmp_path / "kept"
    mount.mkdir()
    script = (
        'mount -t tmpfs -o size=7m none "$1"; "$2" "$3" "$1/ckpt" 9 --width 30000 --every-steps 2 --keep 3 --blocking;'
        ' code=$?; cp -a "$1/ckpt" "$4"; exit $code'
    )
    argv = ["unshare", "-m", "sh", "-c", script, "sh", str(mount), sys.executable, str(SCRIPT), str(kept)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env=environment(0, 1, free_port()))
    assert done.returncode == 1, done.stderr
    assert "was not saved: rank 0: cannot write" in done.stderr and "No space left on device" in done.stderr
    assert "MachineError" in done.stderr
    assert saved_steps(kept) == [1]
    assert store.check_snapshot(store.list_snapshots(kept)[0].path).step == 1
    assert sorted(p.name for p in kept.iterdir()) == ["step-000000001"]


def test_a_disk_that_is_full_for_a_while_does_not_end_the_run(tmp_path: Path) -> None:
    """One failed save, then room again: the run goes on and saves later steps."""
    if not may_mount():
        pytest.skip("needs the right to mount a tmpfs in a namespace")
    mount, kept = tmp_path / "disk", tmp_path / "kept"
    mount.mkdir()
    script = (
        'mount -t tmpfs -o size=16m none "$1"; mkdir "$1/ckpt"; head -c 15m /dev/zero > "$1/ballast";'
        '("$2" "$3" "$1/ckpt" 60 --width 30000 --every-steps 20 --blocking --pause 0.02 2>"$5"; echo $? > "$1/code") &'
        'for i in $(seq 600); do grep -q "was not saved" "$5" && break; sleep 0.1; done; rm "$1/ballast"; wait;'
        'cp -a "$1/ckpt" "$4"; exit $(cat "$1/code")'
    )
    errors = tmp_path / "errors"
    errors.touch()
    argv = ["unshare", "-m", "sh", "-c", script, "sh", mount, sys.executable, SCRIPT, kept, errors]
    done = subprocess.run(list(map(str, argv)), capture_output=True, timeout=150, env=environment(0, 1, free_port()))
    assert done.returncode == 0, errors.read_text()
    assert errors.read_text().count("was not saved") >= 1
    assert saved_steps(kept)[0] == 59


def test_a_limit_on_file_size_of_one_rank_fails_the_save_on_all(tmp_path: Path) -> None:
    train(2, tmp_path, 4, "--kind", "ddp", "--every-steps", 2, "--blocking", "--width", 30000)
    before = contents(tmp_path)
    with Training(
        2, tmp_path, 40, "--kind", "ddp", "--every-steps", 2, "--blocking", "--width", 30000, "--file-limit", "100000:1"
    ) as training:
        ended = training.wait()
    assert [e.code for e in ended] == [1, 1], [e.output for e in ended]
    assert "step 5 was not saved: rank 1: cannot write" in ended[0].output and "File too large" in ended[0].output
    assert all("MachineError: rank 1: cannot write" in e.output for e in ended)
    assert contents(tmp_path) == before


def test_killed_hard_in_the_middle_of_a_save_the_former_snapshot_counts(tmp_path: Path) -> None:
    wide = ("--width", 400_000, "--every-steps", 3)
    with Training(1, tmp_path / "b", 60, "--losses", tmp_path / "b.txt", *wide) as training:
        stop_while_saving(training.ranks[0].pid, tmp_path / "b")
        os.kill(training.ranks[0].pid, signal.SIGKILL)
        training.wait()
    assert being_written(tmp_path / "b")
    newest = saved_steps(tmp_path / "b")[0]
    said = train(1, tmp_path / "b", newest + 3, "--losses", tmp_path / "b.txt", *wide)
    assert f"resuming after step {newest}" in said
    assert not any((tmp_path / "b").glob(".saving-*"))
    train(1, tmp_path / "a", newest + 3, "--losses", tmp_path / "a.txt", "--width", 400_000)
    again, whole = losses(tmp_path / "b.txt"), losses(tmp_path / "a.txt")
    assert {k: again[k] for k in whole} == whole


def test_the_fast_tier_is_drained_to_the_shared_folder(tmp_path: Path) -> None:
    fast = tmp_path / "node{rank}"
    options = ("--kind", "fsdp", "--every-steps", 3, "--fast", fast, "--blocking")
    train(2, tmp_path / "ckpt", 8, *options)
    found = store.list_snapshots(tmp_path / "ckpt")[0]
    assert store.check_snapshot(found.path).step == 7
    shared = {p.name for p in found.path.glob("*.distcp")}
    parts = [{p.name for p in tmp_path.glob(f"node{rank}/windlass-*/step-*/*.distcp")} for rank in (0, 1)]
    assert parts[0] and parts[1] and parts[0] | parts[1] == shared and not parts[0] & parts[1]
    assert all(len(list(tmp_path.glob(f"node{rank}/windlass-*/step-*"))) == 1 for rank in (0, 1))


@pytest.mark.parametrize("node_lost", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_snapshot_that_only_the_nodes_have_is_drained_by_the_next_start(tmp_path: Path, node_lost: bool) -> None:
    options = ("--kind", "fsdp", "--every-steps", 3, "--fast", tmp_path / "node{rank}")
    again = (tmp_path / "ckpt", 12, *options)
    train(2, *again, "--kill-self", "SIGTERM:6", code=RESUME_ME)
    newest, *older = saved_steps(tmp_path / "ckpt")
    assert older
    # As after a death between the local commit and the end of the drain.
    shutil.rmtree(tmp_path / "ckpt" / f"step-{newest:09d}")
    if node_lost:
        shutil.rmtree(tmp_path / "node1")
    said = train(2, *again)
    drained = f"step {newest} was only on the nodes' local disks"
    assert (drained in said) != node_lost
    assert f"resuming after step {older[0] if node_lost else newest}" in said


def newest_local(fast: Path) -> int:
    """Of the snapshots that every node of two has committed on its own disk."""
    steps = [{int(p.name[5:]) for p in fast.glob(f"node{node}/windlass-*/step-*")} for node in (0, 1)]
    return max(steps[0] & steps[1], default=-1)


@pytest.mark.slow
def test_killed_hard_before_the_drain_has_ended_nothing_is_lost(tmp_path: Path) -> None:
    wide = ("--kind", "fsdp", "--width", 200_000, "--every-steps", 3)
    again = (tmp_path / "ckpt", *wide, "--losses", tmp_path / "b.txt", "--fast", tmp_path / "node{rank}")
    with Training(2, again[0], 300, *again[1:]) as training:
        end = time.monotonic() + 90
        while True:
            assert time.monotonic() < end, "no drain was seen under way"
            if not saved_steps(tmp_path / "ckpt") or newest_local(tmp_path) <= saved_steps(tmp_path / "ckpt")[0]:
                continue
            for rank in training.ranks:
                os.kill(rank.pid, signal.SIGSTOP)
            newest, shared = newest_local(tmp_path), saved_steps(tmp_path / "ckpt")[0]
            if newest > shared:
                break
            for rank in training.ranks:
                os.kill(rank.pid, signal.SIGCONT)
        for rank in training.ranks:
            os.kill(rank.pid, signal.SIGKILL)
        training.wait()
    said = train(2, again[0], newest + 3, *again[1:])
    assert f"step {newest} was only on the nodes' local disks; windlass copied it to {tmp_path / 'ckpt'}" in said
    assert f"resuming after step {newest} " in said
    train(2, tmp_path / "whole", newest + 3, *wide, "--losses", tmp_path / "a.txt")
    again_losses, whole = losses(tmp_path / "b.txt"), losses(tmp_path / "a.txt")
    assert {step: again_losses[step] for step in whole} == whole


def test_a_folder_made_anew_does_not_get_the_old_ones_local_parts(tmp_path: Path) -> None:
    again = (tmp_path / "ckpt", 4, "--fast", tmp_path / "node", "--losses", tmp_path / "a.txt")
    train(1, *again)
    shutil.rmtree(tmp_path / "ckpt")
    said = train(1, *again)
    assert "resuming" not in said
