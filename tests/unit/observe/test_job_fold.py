"""What nodes send, folded into the files of a run folder: the job now, and a history that stays small."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from looping import each
from windlass.diagnose.watch import fold
from windlass.diagnose.watch.fold import JobFiles, JobFold, interval_s
from windlass.diagnose.watch.job import DeviceRow, Job, NodeRow, RankRow, read_history, read_job
from windlass.diagnose.watch.past import GrowingSeries
from windlass.errors import ConfigError, VersionError
from windlass.node.sampler import sampler
from windlass.node.sampler.recorder import Recorder

NODE = "N[1700000000.1,0.5,100,200,1.0,2.0,null,null,3.0,4.0,null]"


def _job(folder: JobFold, at: float = 10.0, *, ended: bool = False) -> Job:
    return folder.job(at, ended=ended)


def test_texts_of_nodes_become_rows() -> None:
    folded = JobFold("train", ("a1", "a2"), 2.0)
    assert folded.take(1, NODE)
    assert folded.take(1, "D[[0,0.97,1,2,300.5,61,1980,0],[1,null,null,null,null,null,null,null]]")
    assert folded.take(1, "R[[3,0,12,1700000000.2,101.5,0.25,null,1.5,999,100.1,120.2,0.3,2]]")
    assert folded.take(0, "R[[0,2,0,null,null,null,null,0.5,999]]")
    assert folded.take(0, "TNVIDIA devices are not sampled: NVML sees no device")
    assert folded.take(1, "TNVIDIA devices are not sampled: NVML sees no device")
    job = _job(folded)
    assert job.nodes == (
        NodeRow("a1", 0.0),
        NodeRow("a2", 1700000000.1, 0.5, 100, 200, 1.0, 2.0, None, None, 3.0, 4.0, None, memory_peak_bytes=100),
    )
    assert job.devices == (DeviceRow(1, 0, 0.97, 1, 2, 300.5, 61.0, 1980.0, False), DeviceRow(1, 1))
    assert job.ranks[0] == RankRow(0, 0, "command", 0, None, None, None, None, 0.5, 999)
    assert job.ranks[1] == RankRow(3, 1, "steps", 12, 1700000000.2, 101.5, 0.25, None, 1.5, 999, 100.1, 120.2, 0.3, 2)
    assert [(note.text[:6], note.nodes) for note in job.notes] == [("NVIDIA", "a[1-2]")]


@each("text", ["", "N", "N[", "X[1]", "R[[0,9,0]]", "D[[]]", "R[[1]]", 'N["x"]', "N[1,2,3,4,5,6,7,8,9,10,11,12,13]"])
def test_a_text_that_cannot_be_read_costs_only_itself(text: str) -> None:
    folded = JobFold("train", ("a1",), 2.0)
    folded.take(0, text)
    folded.take(7, NODE)
    assert folded.torn >= 1
    assert folded.take(0, NODE)
    assert "could not be read" in _job(folded).notes[-1].text


def test_many_nodes_look_less_often() -> None:
    assert interval_s(4) == 2.0
    assert interval_s(10_000) == 20.0


def test_the_files_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    folded, files = JobFold("train", ("a1",), 2.0), JobFiles(tmp_path, every_s=2.0)
    folded.take(0, NODE)
    files.write(_job(folded, 10.0))
    folded.take(0, "R[[0,0,5,10.5,100.0,0.5,null,1.0,9]]")
    files.write(_job(folded, 12.0))
    files.write(_job(folded, 14.0, ended=True))
    job = read_job(tmp_path)
    assert job == _job(folded, 14.0, ended=True)
    head, lines, torn = read_history(tmp_path)
    assert head is not None
    assert (head.hosts, head.ranks, torn) == (("a1",), (0,), 0)
    assert [line.ranks for line in lines] == [((None,) * 4,), ((100.0, 0.5, None, 1.0),)]
    assert lines[-1].nodes == ((0.5, 100.0, 3.0, None, None),)
    assert (lines[0].begin, lines[-1].end) == (10.0, 14.0)


def test_the_history_is_halved_when_it_is_full_and_keeps_its_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "MAX_HISTORY_LINES", 8)
    folded, files = JobFold("train", ("a1",), 2.0), JobFiles(tmp_path, every_s=2.0)
    for number in range(200):
        folded.take(0, f"N[{number},{number % 2},100,200,null,null,null,null,null,null,null]")
        files.write(_job(folded, 2.0 * number))
    head, lines, torn = read_history(tmp_path)
    assert head is not None
    assert len(lines) <= 9
    assert torn == 0
    assert lines[0].begin == 0.0
    assert all(line.end > line.begin for line in lines)
    assert all(later.begin == earlier.end for earlier, later in itertools.pairwise(lines))
    assert lines[0].nodes[0][0] == pytest.approx(0.5, abs=0.1)


def test_damaged_files_are_an_error_or_a_count_never_a_traceback(tmp_path: Path) -> None:
    assert read_job(tmp_path) is None
    assert read_history(tmp_path) == (None, (), 0)
    files = JobFiles(tmp_path, every_s=2.0)
    files.write(_job(JobFold("train", ("a1",), 2.0), 10.0, ended=True))
    path = tmp_path / "watch" / "history.jsonl"
    path.write_bytes(path.read_bytes() + b'{"begin":1,"en')
    assert read_history(tmp_path)[2] == 1
    now = tmp_path / "watch" / "now.json"
    now.write_bytes(now.read_bytes()[:-5])
    with pytest.raises(ConfigError, match="not samples of a job"):
        read_job(tmp_path)
    now.write_text(json.dumps({"version": 99}))
    with pytest.raises(VersionError, match="newer"):
        read_job(tmp_path)


def test_the_sampler_of_a_node_tells_of_its_ranks_and_leaves_nothing(tmp_path: Path) -> None:
    service = sampler.SamplerService(
        str(tmp_path), "r1", 0, {"interval_s": 0.01, "folder": "h", "hook": {"x.py": "pass\n"}}
    )
    service.start()
    folder = Path(service.folder)
    assert (folder / "python" / "x.py").read_text() == "pass\n"
    recorder = Recorder(str(folder / "steps" / "3"))
    for _ in range(5):
        recorder.waited(0.0)
        recorder.step()
    recorder.close()
    (folder / "pids" / "4").write_text("999999999\n")
    folded = JobFold("train", ("a1",), 2.0)
    texts = sampler.Sampler(str(folder)).look()
    assert all(len(text) <= sampler.MAX_TEXT for text in texts)
    assert all(folded.take(0, text) for text in texts), texts
    job = _job(folded)
    assert [(rank.rank, rank.activity, rank.steps) for rank in job.ranks] == [(3, "steps", 5), (4, "ended", 0)]
    assert job.nodes[0].memory_limit_bytes
    assert service.end()["looks"] == 0
    assert any(text.startswith("R") for text in service.last_news())
    assert not folder.exists()


def test_ranks_of_a_wide_node_are_sent_in_several_short_texts() -> None:
    rows = [[rank, 0, 12345, 1700000000.1, 101.25, 0.125, 0.0625, 7.5, 68719476736] for rank in range(256)]
    texts = sampler._packed("R", rows)
    assert max(len(text) for text in texts) <= sampler.MAX_TEXT
    assert [row[0] for text in texts for row in msgspec.json.decode(text[1:])] == list(range(256))


@each(("steps", "ranks"), [((40, 40), (0, 1)), ((40, 41), (0, 1)), ((40, 90), ())])
def test_ranks_that_save_one_file_at_the_same_step_are_kept(steps: tuple[int, int], ranks: tuple[int, ...]) -> None:
    folded = JobFold("train", ("a1", "a2"), 2.0)
    for rank, step in enumerate(steps):
        assert folded.take(rank, f'F[{rank},{step},77,"/lus/m.pt"]')
        assert folded.take(rank, f'F[{rank},{step},{rank},"/tmp/own.pt"]')
    assert _job(folded).shared_files == ((("/lus/m.pt", ranks),) if ranks else ())


@each(
    ("memory", "grows"),
    [
        (lambda n: 10 + 0.2 * n, True),
        (lambda n: 10 + 0.05 * (n % 2), False),
        (lambda n: 10 + 6 * (1 - 0.9**n), False),
        (lambda n: 10 + 0.01 * n, False),
    ],
    ids=["leak", "noise", "cache that fills", "little"],
)
def test_only_memory_that_grows_all_the_time_is_a_leak(memory: Callable[[int], float], grows: bool) -> None:
    series = GrowingSeries()
    for number in range(60):
        series.add(2.0 * number, int(memory(number) * (1 << 30)))
    assert (series.growth() is not None) == grows
