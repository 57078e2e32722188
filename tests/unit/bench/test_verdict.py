"""Published figures, and what they say about a measurement."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from looping import each
from unit.bench.made import GH200, collectives_record, ddp_record, told, training_rowed
from windlass.bench.cases import table_text
from windlass.bench.measure import Figure
from windlass.bench.reading import read_record
from windlass.bench.record import BenchRecord, Measurement, new_record
from windlass.bench.reference import CASES, datasheet_tflops, is_device, load_references, reference_lines
from windlass.bench.verdict import judge
from windlass.errors import ConfigError, UsageError

REFERENCES = load_references()


def _time_us(size: int, busbw: float) -> float:
    return size * 1.75 / busbw / 1e3


def _words(record: BenchRecord) -> list[tuple[str, str]]:
    return [(verdict.severity, verdict.evidence) for verdict in judge(record, REFERENCES)]


def test_every_published_figure_has_a_source_and_a_date() -> None:
    assert REFERENCES.bandwidth
    for row in (*REFERENCES.bandwidth, *REFERENCES.rate, *REFERENCES.device, *REFERENCES.sample, *REFERENCES.latency):
        source = REFERENCES.sources[row.source]
        assert len(source.checked.split("-")) == 3
        assert source.where


def test_a_normal_bandwidth_is_called_normal() -> None:
    ((level, text),) = _words(collectives_record(told(1 << 30, _time_us(1 << 30, 150.0))))
    assert (level, text.split(":")[1].strip()) == ("ok", "normal for 2 nodes of GH200")
    assert "published 149 to 154.35" in text


def test_a_tenth_of_it_looks_like_tcp() -> None:
    ((level, text),) = _words(collectives_record(told(1 << 30, _time_us(1 << 30, 13.0))))
    assert level == "error"
    assert "looks like TCP: check that the plugin is loaded" in text


@each(("busbw", "level"), [(120, "ok"), (110, "warning"), (60, "warning"), (25, "error")])
def test_between_them_lies_low(busbw: float, level: str) -> None:
    ((found, _),) = _words(collectives_record(told(1 << 30, _time_us(1 << 30, busbw))))
    assert found == level


def test_the_largest_common_size_decides_not_a_small_one() -> None:
    record = collectives_record(told(1 << 20, 10_000.0), told(1 << 30, _time_us(1 << 30, 150.0)))
    ((level, _),) = _words(record)
    assert level == "ok"


def test_slow_tiny_messages_between_nodes_look_like_tcp() -> None:
    record = collectives_record(told(8, 60.0), told(1 << 30, _time_us(1 << 30, 150.0)))
    assert [level for level, _ in _words(record)] == ["ok", "error"]


def test_another_number_of_nodes_is_another_class() -> None:
    ((level, text),) = _words(collectives_record(told(1 << 30, 1000.0), nodes=3, ranks=12))
    assert level == "note"
    assert "no published figure for 12 ranks on 3 nodes" in text


def test_sizes_nobody_published_are_said_to_be_that() -> None:
    ((level, text),) = _words(collectives_record(told(3 << 20, 100.0)))
    assert level == "note"
    assert "measure one of these sizes" in text


def test_wrong_results_are_bad_whatever_their_speed() -> None:
    record = collectives_record(told(1 << 30, _time_us(1 << 30, 150.0), wrong=3))
    assert ("error", "results are wrong") in [(level, text[:17]) for level, text in _words(record)]


def test_nothing_is_said_about_a_cpu() -> None:
    assert _words(collectives_record(told(1 << 30, 1e6), device={"kind": "cpu", "name": "CPU"})) == []


def test_a_gh200_is_no_h200() -> None:
    assert is_device("GH200", "NVIDIA GH200 120GB")
    assert not is_device("H200", "NVIDIA GH200 120GB")
    assert is_device("A100", "NVIDIA A100-SXM4-40GB")
    assert datasheet_tflops("NVIDIA H100 PCIe", "bf16") == 756
    assert datasheet_tflops("NVIDIA H100 80GB HBM3", "bf16") == 989
    assert datasheet_tflops("some other device", "bf16") is None


def test_a_ceiling_is_judged_by_measured_ones() -> None:
    def record(tflops: float) -> BenchRecord:
        figure = Figure(value=tflops, unit="TFLOP/s", formula="2*m*n*k, median")
        row = Measurement(
            labels={"type": "bf16", "m": 8192, "n": 8192, "k": 8192}, figures={"sustained": figure, "burst": figure}
        )
        return new_record("matmul", device=GH200, rows=(row,))

    assert _words(record(800))[0][0] == "ok"
    assert _words(record(500))[0][0] == "warning"


def test_training_rates_are_held_against_the_same_run_only() -> None:
    alone = training_rowed("no ddp", 1, 1, [32 / 1392] * 5, parallel="none")
    two_nodes = training_rowed("2M/8G", 8, 2, [32 / 1233] * 5)
    words = _words(ddp_record(alone, two_nodes))
    assert [level for level, _ in words] == ["ok", "ok"]
    assert "1.00 x the published 1,392 (no ddp" in words[0][1]
    slow = training_rowed("2M/8G", 8, 2, [32 / 700] * 5)
    words = _words(ddp_record(alone, slow))
    assert [level for level, _ in words] == ["ok", "warning", "warning"]
    assert "50% of the rate without DDP is left" in words[2][1]


@each("case", CASES)
def test_every_case_has_figures_to_show_with_their_sources(case: str) -> None:
    lines = reference_lines(case, REFERENCES)
    assert any(line.startswith("[") and "read 20" in line for line in lines)


def test_figures_can_be_asked_for_one_device() -> None:
    lines = reference_lines("collectives", REFERENCES, "GH200")
    assert lines
    assert not any(line.startswith(("A100", "H200")) for line in lines)
    with pytest.raises(UsageError, match="no published figures"):
        reference_lines("llm", msgspec.structs.replace(REFERENCES, rate=()), "GH200")


def test_a_site_adds_its_own_figures(tmp_path: Path) -> None:
    folder = tmp_path / "references"
    folder.mkdir()
    (folder / "mine.toml").write_text(
        '[sources.us]\nwhere = "our own acceptance test"\nchecked = "2026-01-02"\n'
        '[[bandwidth]]\nsystem = "ours"\ndevice = "MI250X"\nnodes = 2\nranks = 16\nop = "all_reduce"\n'
        'bytes = 1073741824\nbusbw = 80.0\ntransport = "fabric"\nsource = "us"\n'
    )
    references = load_references(tmp_path)
    record = collectives_record(told(1 << 30, 1.0), ranks=16, device={"kind": "cuda", "name": "AMD Instinct MI250X"})
    assert [verdict.severity for verdict in judge(record, references)] == ["ok"]


@each(
    "text",
    ["not toml [", "[[bandwidth]]\nsystem = 3\n", "colour = 1\n", '[[sample]]\nname = "x"\nbytes = 1\nsource = "no"\n'],
)
def test_a_file_of_figures_that_is_wrong_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "references").mkdir()
    (tmp_path / "references" / "mine.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"mine\.toml"):
        load_references(tmp_path)


H200_RECORDS = Path(__file__).parents[3] / "results" / "h200"


def test_one_rank_is_not_judged_by_bandwidth() -> None:
    ((level, text),) = _words(read_record(H200_RECORDS / "commands" / "collectives.json"))
    assert level == "note"
    assert "nothing crosses a link" in text


def test_a_host_that_is_too_slow_is_not_taken_for_a_slow_link() -> None:
    ((level, text),) = _words(read_record(H200_RECORDS / "commands" / "ddp.json"))
    assert (level, text.split(";")[0]) == ("warning", "resnet50: 74% of the rate without DDP is left on 1 rank")
    assert "launches kernels one by one" in text


def test_figures_of_our_own_are_held_against_runs_of_the_same_kind_only() -> None:
    ((level, text),) = _words(read_record(H200_RECORDS / "commands" / "llama2-7b-fp8.json"))
    assert level == "ok"
    assert "1.00 x the published 18,395" in text
    assert _words(read_record(H200_RECORDS / "commands" / "llama2-7b-fsdp.json")) == [], "full checkpointing"


@each(
    "path",
    sorted(
        path
        for path in H200_RECORDS.glob("**/*.json")
        if re.search(rb'"record": *"windlass.bench",', path.read_bytes()[:200]) and "synthetic" not in path.name
    ),
    ids=lambda path: path.stem,
)
def test_every_record_in_the_repository_can_be_read_and_shown(path: Path) -> None:
    record = read_record(path)
    assert record.rows
    assert table_text(record)
    assert not any("/tmp" in word for word in record.command)


def test_a_record_of_a_removed_benchmark_is_refused() -> None:
    with pytest.raises(ConfigError, match="synthetic"):
        table_text(read_record(H200_RECORDS / "commands" / "synthetic-b96.json"))
