"""Output of nccl-tests and of the oneCCL benchmark, read as records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windlass.bench.collectives.table import average_busbw
from windlass.bench.imported import Known
from windlass.bench.reading import read_record
from windlass.errors import ConfigError, UsageError

DATA = Path(__file__).parent / "data"


def test_op_and_ranks_of_an_old_table_are_told_from_its_bandwidths() -> None:
    record = read_record(DATA / "nccl-all-reduce.txt", Known(nodes=2, device="GH200"))
    assert len(record.rows) == 28
    assert {row.labels["op"] for row in record.rows} == {"all_reduce"}
    assert {row.labels["ranks"] for row in record.rows} == {8}
    assert record.software == {"nccl": "2.20.5+cuda12.4"}
    assert average_busbw(record.rows) == pytest.approx(103.965, abs=0.01)
    assert record.rows[-1].labels["placement"] == "in-place"
    assert record.rows[-1].figures["busbw"].value == pytest.approx(158.69, abs=0.01)


def test_a_new_table_names_its_op_its_hosts_and_its_devices() -> None:
    record = read_record(DATA / "nccl-alltoall-new.txt")
    assert record.where.nodes == 2
    assert record.where.hosts == "nid0001,nid0002"
    assert record.device["name"] == "NVIDIA GH200 120GB"
    assert {(row.labels["op"], row.labels["ranks"]) for row in record.rows} == {("all_to_all", 4)}
    assert [row.wrong for row in record.rows] == [0, None, 3, None]
    assert record.rows[0].figures["busbw"].value == pytest.approx(7.86, abs=0.01)


def test_what_a_table_does_not_say_is_asked_for(tmp_path: Path) -> None:
    table = (DATA / "nccl-alltoall-new.txt").read_text().replace("alltoall_perf", "")
    (tmp_path / "out.txt").write_text("\n".join(line for line in table.splitlines() if "Rank" not in line))
    with pytest.raises(UsageError, match="which collective"):
        read_record(tmp_path / "out.txt")
    record = read_record(tmp_path / "out.txt", Known(op="all_gather"))
    assert record.rows[0].labels["ranks"] == 4, "busbw / algbw = 3/4 can only be four ranks"
    with pytest.raises(UsageError, match="how many ranks"):
        read_record(tmp_path / "out.txt", Known(op="broadcast", ranks=None, nodes=None))


def test_a_table_without_results_is_refused(tmp_path: Path) -> None:
    head = (DATA / "nccl-all-reduce.txt").read_text().splitlines()[:8]
    (tmp_path / "out.txt").write_text("\n".join(head))
    with pytest.raises(ConfigError, match="no result line"):
        read_record(tmp_path / "out.txt")


def test_json_of_nccl_tests_is_read_and_its_environment_is_not(tmp_path: Path) -> None:
    half = {"time": 94752.0, "alg_bw": 90.66, "bus_bw": 158.65, "nwrong": 0}
    raw = {
        "version": "2.19.6",
        "args": ["./build/all_reduce_perf", "-b", "8G"],
        "env": ["HF_TOKEN=hf_topsecrettopsecret"],
        "nccl_version": 22907,
        "devices": [{"rank": n, "hostname": f"nid{n // 4}", "device_info": "NVIDIA GH200 120GB"} for n in range(8)],
        "results": [
            {
                "size": 8 << 30,
                "count": 2 << 30,
                "type": "float",
                "redop": "sum",
                "root": "    -1",
                "out_of_place": half,
                "in_place": None,
            }
        ],
    }
    (tmp_path / "out.json").write_text(json.dumps(raw))
    record = read_record(tmp_path / "out.json")
    (row,) = record.rows
    assert (row.labels["ranks"], row.labels["nodes"], row.labels["root"]) == (8, 2, -1)
    assert row.figures["busbw"].value == pytest.approx(158.65, abs=0.01)
    assert "topsecret" not in str(record)


def test_oneccl_tells_times_and_the_bandwidths_are_ours() -> None:
    record = read_record(DATA / "oneccl.txt", Known(nodes=1))
    one, two, three = record.rows
    assert (one.labels["op"], one.labels["ranks"], one.labels["type"]) == ("all_reduce", 4, "float")
    assert two.figures["algbw"].value == pytest.approx(1048576 / 320e-6 / 1e9)
    assert two.figures["busbw"].value == pytest.approx(two.figures["algbw"].value * 1.5)
    assert three.labels["op"] == "all_gather"
    assert three.labels["bytes"] == 4 << 20, "oneCCL counts what one rank sends, nccl-tests what all hold"


def test_oneccl_csv_is_read_and_a_torn_line_is_named(tmp_path: Path) -> None:
    record = read_record(DATA / "oneccl.csv")
    assert [(row.labels["op"], row.labels["bytes"]) for row in record.rows] == [
        ("all_reduce", 1 << 20),
        ("reduce_scatter", 1 << 20),
    ]
    text = (DATA / "oneccl.csv").read_text()
    (tmp_path / "torn.csv").write_text(text[: text.rindex(",220")])
    with pytest.raises(ConfigError, match="torn line"):
        read_record(tmp_path / "torn.csv")
