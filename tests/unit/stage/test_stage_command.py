"""`windlass stage` as a person uses it on one machine: what it says, and what it leaves when it is stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from requirements import missing_programs, require
from waiting import wait_until
from windlass.node.sys.identity import start_of
from windlass.node.sys.mounts import mounts

pytestmark = pytest.mark.timeout(90)
SRC = Path(__file__).parents[3] / "src"


def start(tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(SRC), "HOME": str(tmp_path), "WINDLASS_RUNS_DIR": str(tmp_path / "runs")}
    return subprocess.Popen(
        [sys.executable, "-m", "windlass", *words],
        env=env,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def stage(tmp_path: Path, *words: str) -> tuple[int, str, str]:
    return windlass(tmp_path, "stage", *words, "--scheduler", "none")


def windlass(tmp_path: Path, *words: str) -> tuple[int, str, str]:
    child = start(tmp_path, *words)
    try:
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
    return child.returncode, out, err


def test_a_relative_source_is_copied_and_the_figures_are_told(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_bytes(os.urandom(2_500_000))
    code, out, err = stage(tmp_path, "tree", "--to", str(tmp_path / "to"), "--json")
    assert code == 0, err
    (node,) = json.loads(out)["staged"]
    assert (node["files"], node["bytes"], node["fallbacks"]) == (1, 2_500_000, 0)
    assert (tmp_path / "to" / "tree" / "file").read_bytes() == (tmp_path / "tree" / "file").read_bytes()
    code, out, err = stage(tmp_path, "tree", "--to", str(tmp_path / "to"))
    assert code == 0 and "2.5 MB a node" in out, "a second start replaces the first copy"
    assert out.startswith(f"staged to {tmp_path}/to/tree on 1 node"), out
    assert windlass(tmp_path, "runs", "list")[1].count("windlass stage") == 2
    code, out, err = windlass(tmp_path, "runs", "clean", "--keep", "1", "--yes")
    assert code == 0 and len(list((tmp_path / "runs").iterdir())) == 1, out + err


def test_an_archive_becomes_a_folder_with_its_name_and_the_command_says_where(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_text("x")
    subprocess.run(
        ["tar", "-C", str(tmp_path), "-czf", str(tmp_path / "data.v1.tar.gz"), "tree"], check=True, timeout=60
    )
    code, out, err = stage(tmp_path, "data.v1.tar.gz", "--to", f"{tmp_path}/to/", "--extract")
    assert code == 0, err
    assert out.startswith(f"staged to {tmp_path}/to/data.v1 on 1 node"), out
    assert (tmp_path / "to" / "data.v1" / "tree" / "file").read_text() == "x"


def test_a_mounted_image_stays_until_it_is_stopped_and_status_says_so(tmp_path: Path) -> None:
    why = missing_programs("mksquashfs") or (missing_programs("squashfuse") and missing_programs("squashfuse_ll"))
    require("squashfs", not why, why)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_text("x")
    words = ["mksquashfs", str(tmp_path / "tree"), str(tmp_path / "env.squashfs"), "-quiet", "-no-progress"]
    subprocess.run(words, check=True, timeout=60, capture_output=True)
    code, out, err = stage(tmp_path, "env.squashfs", "--to", str(tmp_path / "to"), "--extract")
    assert code == 0 and "mounted until" in out, err
    assert (tmp_path / "to" / "env" / "file").read_text() == "x"
    code, out, err = windlass(tmp_path, "cache", "status")
    assert code == 0 and "keeps staged images mounted" in out, err
    code, _, err = windlass(tmp_path, "cache", "stop")
    assert code == 0, err
    assert not (tmp_path / "to" / "env" / "file").exists()


class MountedImage(NamedTuple):
    """Who serves a staged image: its guard, its squashfuse, and the keeper and agent that own it."""

    guard: int
    server: int
    keeper: int
    agent: int


def mounted_image(tmp_path: Path) -> MountedImage:
    """Stage an image and mount it; the processes behind it."""
    why = missing_programs("mksquashfs") or (missing_programs("squashfuse") and missing_programs("squashfuse_ll"))
    require("squashfs", not why, why)
    if not (tmp_path / "env.squashfs").exists():
        (tmp_path / "tree").mkdir()
        (tmp_path / "tree" / "file").write_text("x")
        words = ["mksquashfs", str(tmp_path / "tree"), str(tmp_path / "env.squashfs"), "-quiet", "-no-progress"]
        subprocess.run(words, check=True, timeout=60, capture_output=True)
    code, _, err = stage(tmp_path, "env.squashfs", "--to", str(tmp_path / "to"), "--extract")
    assert code == 0, err
    assert (tmp_path / "to" / "env" / "file").read_text() == "x"
    (source,) = [mount.source for mount in mounts() if mount.place == str(tmp_path / "to" / "env")]
    guard = int(source.split(".")[-2])
    owners = Path(f"/proc/{guard}/cmdline").read_bytes().split(b"\0")[-3:-1]
    keeper, agent = (int(owner.split(b".")[0]) for owner in owners)
    (server,) = Path(f"/proc/{guard}/task/{guard}/children").read_text().split()
    return MountedImage(guard, int(server), keeper, agent)


def is_mounted(tmp_path: Path) -> bool:
    return any(mount.place == str(tmp_path / "to" / "env") for mount in mounts())


def all_gone(tmp_path: Path, image: MountedImage) -> bool:
    return (
        not is_mounted(tmp_path) and not any(start_of(pid) for pid in image) and not (tmp_path / "to" / "env").exists()
    )


def test_an_image_outlives_its_killed_agent_and_goes_when_it_is_stopped(tmp_path: Path) -> None:
    image = mounted_image(tmp_path)
    os.kill(image.agent, signal.SIGKILL)
    wait_until(lambda: not start_of(image.agent), timeout_s=30, what="the agent is gone")
    assert (tmp_path / "to" / "env" / "file").read_text() == "x"
    code, _, err = windlass(tmp_path, "cache", "stop")
    assert code == 0, err
    wait_until(lambda: all_gone(tmp_path, image), timeout_s=60, what="mount and processes are gone")


def test_an_image_goes_when_its_agent_and_keeper_are_killed(tmp_path: Path) -> None:
    image = mounted_image(tmp_path)
    os.kill(image.keeper, signal.SIGKILL)
    os.kill(image.agent, signal.SIGKILL)
    wait_until(lambda: all_gone(tmp_path, image), timeout_s=60, what="mount and processes are gone")


def test_a_dead_mount_of_a_job_that_was_killed_whole_is_swept_by_the_next_one(tmp_path: Path) -> None:
    """As a scheduler kills a job: all at once, its guards too."""
    killed = mounted_image(tmp_path)
    for pid in (killed.guard, killed.keeper, killed.agent, killed.server):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(start_of(pid) for pid in killed), timeout_s=30, what="all are gone")
    assert is_mounted(tmp_path)
    image = mounted_image(tmp_path)
    code, _, err = windlass(tmp_path, "cache", "stop", str(max((tmp_path / "runs").iterdir())))
    assert code == 0, err
    wait_until(lambda: all_gone(tmp_path, image), timeout_s=60, what="mount and processes are gone")


def test_an_image_that_is_staged_again_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    """One mount, of the new image; stopping the earlier agents does not touch it; `windlass runs` shows both."""
    before = mounted_image(tmp_path)
    (tmp_path / "env.squashfs").unlink()
    (tmp_path / "tree" / "new").write_text("y")
    words = ["mksquashfs", str(tmp_path / "tree"), str(tmp_path / "env.squashfs"), "-quiet", "-no-progress"]
    subprocess.run(words, check=True, timeout=60, capture_output=True)
    image = mounted_image(tmp_path)
    assert image.guard != before.guard and (tmp_path / "to" / "env" / "new").read_text() == "y"
    first, second = sorted((tmp_path / "runs").iterdir())
    listed = json.loads(windlass(tmp_path, "runs", "list", "--json")[1])
    assert [(state["name"], state["state"]) for state in listed] == [(first.name, "running"), (second.name, "running")]
    code, _, err = windlass(tmp_path, "cache", "stop", str(first))
    assert code == 0, err
    assert (tmp_path / "to" / "env" / "new").read_text() == "y"
    code, _, err = windlass(tmp_path, "cache", "stop", str(second))
    assert code == 0, err
    wait_until(lambda: all_gone(tmp_path, image), timeout_s=60, what="mount and processes are gone")
    code, out, err = windlass(tmp_path, "runs", "clean", "--yes")
    assert code == 0 and not list((tmp_path / "runs").iterdir()), out + err


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("nowhere", "--to", "/tmp/x"), 2, "nowhere does not exist"),
        (("here", "--to", "relative"), 2, "not an absolute path"),
        (("here", "--to", "{file}"), 3, "File exists"),
        (("here", "--to", "/proc/nothing"), 3, "/proc/nothing"),
        (("here", "--to", "/tmp/x", "--shard", "--one-reader"), 2, "one reader"),
    ],
)
def test_what_cannot_be_done_is_said_plainly(tmp_path: Path, words: tuple[str, ...], code: int, text: str) -> None:
    (tmp_path / "here").write_text("x")
    found, _, err = stage(tmp_path, *(word.replace("{file}", str(tmp_path / "here")) for word in words))
    assert found == code and text in err, err
    assert "Traceback" not in err and "--cache" not in err


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_stopped_half_way_it_leaves_nothing(tmp_path: Path, sig: signal.Signals) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(20 << 30)  # all holes: seconds of work, no bytes on the disk that it comes from
    to = tmp_path / "to"
    child = start(tmp_path, "stage", "large", "--to", str(to), "--scheduler", "none")
    try:
        wait_until(lambda: list(to.glob(".windlass-stage.*/0")), timeout_s=60, what="it is being written")
        child.send_signal(sig)
        child.communicate(timeout=30)
    finally:
        child.kill()
    assert child.returncode in {128 + sig, -sig}
    wait_until(lambda: not list(to.iterdir()), timeout_s=20, what="nothing half-done is left")


def test_an_image_that_is_none_is_refused_and_not_copied_in_silence(tmp_path: Path) -> None:
    (tmp_path / "empty.sqfs").touch()
    code, _, err = stage(tmp_path, "empty.sqfs", "--extract", "--to", str(tmp_path / "to"))
    assert code == 2
    assert "empty.sqfs is not a squashfs image" in err
    assert not (tmp_path / "to").exists()
