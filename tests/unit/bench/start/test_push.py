"""A push that is measured: over links that really limit, beside the real rivals, and nothing is left afterwards."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from requirements import missing_programs, require, require_mpi, require_slurm
from startup import rivals
from startup.cases import NotMeasuredError
from startup.links import linked, sweep, why_not
from startup.onehop import one_hop
from startup.push import PushResult, PushSetup, compared, measure_push
from startup.workfolder import sweep_folders, work_folder
from windlass.errors import MachineError

pytestmark = pytest.mark.timeout(120)
SIZE = 5_000_000


def require_links() -> None:
    reason = why_not()
    require("links", not reason, reason)


def namespaces() -> set[str]:
    """Ours: another measurement on this machine has its own."""
    folder = Path("/run/netns")
    return {path.name for path in folder.glob(f"wlpush-{os.getpid()}-*")} if folder.is_dir() else set()


def measured(tmp_path: Path, case: str, nodes: int, link: int | None) -> PushResult:
    place = PushSetup(work=tmp_path, size=SIZE, link_bits_per_s=link)
    before = namespaces()
    (row,) = measure_push(place, (case,), (nodes,), 1, lambda _: None)
    assert namespaces() <= before, "its namespaces are gone"
    assert [path.name for path in tmp_path.iterdir()] == ["push.data"], "its copies are gone"
    return row


@pytest.mark.parametrize("case", ["stage", "stage-one"])
def test_stage_over_links_is_measured_against_their_rate(tmp_path: Path, case: str) -> None:
    require_links()
    row = measured(tmp_path, case, 3, 400_000_000)
    assert row.bytes == SIZE and row.nodes == row.ranks == 3
    assert row.seconds is not None and row.link_share == pytest.approx(SIZE / row.seconds / 50e6, rel=0.01)
    assert row.shared_bytes == SIZE, "the file is read once, whatever the number of nodes"
    assert row.cpu_seconds is not None and row.cpu_seconds > 0


def test_a_link_lets_no_more_through_than_its_rate(tmp_path: Path) -> None:
    require_links()
    row = measured(tmp_path, "stage-one", 2, 20_000_000)
    # What a token bucket has saved up passes at once: a quarter of a megabyte at each end.
    assert row.link_share is not None and row.link_share < SIZE / (SIZE - 600_000)


def test_stage_on_loopback_counts_all_hops(tmp_path: Path) -> None:
    row = measured(tmp_path, "stage", 4, None)
    assert row.rate is not None and row.hop_rate == pytest.approx(3 * row.rate, rel=0.01)
    assert row.link_share is None


@pytest.mark.mpi
@pytest.mark.parametrize("link", [200_000_000, None], ids=["links", "loopback"])
def test_mpi_bcast_goes_over_the_network(tmp_path: Path, link: int | None) -> None:
    require_mpi()
    if link is not None:
        require_links()
    row = measured(tmp_path, "mpi", 2, link)
    assert row.seconds is not None, row.not_measured
    if link is not None:
        assert row.link_share is not None and row.link_share < 1.2, "memory of the machine would be far faster"


@pytest.mark.slurm
@pytest.mark.parametrize("link", [200_000_000, None], ids=["links", "loopback"])
def test_sbcast_brings_the_file_to_a_folder_of_each_node(tmp_path: Path, link: int | None) -> None:
    require_slurm()
    why = missing_programs("salloc", "sbcast", "unshare", "setpriv")
    require("slurm", not why, why)
    if link is not None:
        require_links()
    row = measured(tmp_path, "sbcast", 2, link)
    assert row.seconds is not None and row.seconds > 0, row.not_measured
    if link is not None:
        assert row.link_share is not None and row.link_share < 1.2
    assert not _alive("slurmd", str(tmp_path)), "its daemons are gone"


def _alive(name: str, argument: str) -> list[str]:
    said = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, timeout=20, check=True).stdout
    return [line for line in said.splitlines() if name in line and argument in line]


def test_plain_copy_brings_every_byte(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(3_333_333))
    assert one_hop(source, None) > 0 and one_hop(source, tmp_path / "copy") > 0
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()


def test_what_a_killed_measurement_left_is_swept_and_nothing_else() -> None:
    require_links()
    ended = subprocess.Popen(["true"])
    ended.wait(10)
    dead, ours, foreign = f"wlpush-{ended.pid}-1-0", f"wlpush-{os.getpid()}-1-x", "other-1-1-0"
    mine = f"wlpush-{os.getpid()}-{_started()}-x"
    try:
        for name in (dead, ours, foreign, mine):
            subprocess.run(["ip", "netns", "add", name], check=True, timeout=20)
        swept = sweep()
        assert {dead, ours} <= set(swept), "the second is of a process whose number came again"
        assert foreign not in swept and mine not in swept
    finally:
        for name in (dead, ours, foreign, mine):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20, check=False)


def _started() -> str:
    return Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]


def test_folder_of_a_killed_measurement_is_swept_and_that_of_a_running_one_is_not(tmp_path: Path) -> None:
    killed, foreign = tmp_path / "windlass-bench.killed", tmp_path / "windlass-bench.foreign"
    for folder in (killed, foreign):
        folder.mkdir()
    (killed / ".lock").touch()
    with work_folder(str(tmp_path)) as running:
        assert not killed.exists() and foreign.exists()
        (running / "copy").touch()
        assert sweep_folders(tmp_path) == () and (running / "copy").exists()
    assert [path.name for path in tmp_path.iterdir()] == [foreign.name]


def test_links_are_gone_after_an_error() -> None:
    require_links()
    before = namespaces()
    with pytest.raises(ValueError, match="boom"), linked(2, 10_000_000) as links:
        assert len(namespaces() - before) == 3 and links.hosts[0] != links.hosts[1]
        raise ValueError("boom")
    assert namespaces() == before


def test_without_root_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MachineError, match="need root"), linked(2, 10_000_000):
        pass


def test_shares_of_the_plain_copy_are_those_of_the_same_run() -> None:
    def row(case: str, hop_rate: float | None) -> PushResult:
        return PushResult(case=case, nodes=2, ranks=2, bytes=1, hop_rate=hop_rate)

    rows = compared([row("raw", 200.0), row("stage", 150.0), row("mpi", None)])
    assert [one.of_raw for one in rows] == [1.0, 0.75, None]


def test_rivals_that_are_not_here_are_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotMeasuredError):
        rivals.sbcast(rivals.Loopback(2), 2, tmp_path / "source", tmp_path, 10)
