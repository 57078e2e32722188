"""`windlass bench collectives` with two gloo ranks on this machine: measured, checked, recorded; bad input refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.command import windlass_argv
from requirements import require_torch
from unit.bench.commands import bench, environment, ranked, record_of
from waiting import wait_until
from windlass.bench.collectives.options import OPS
from windlass.node.sys.messages import read_messages

require_torch()
pytestmark = [pytest.mark.torch, pytest.mark.timeout(150)]


def test_every_op_is_measured_and_its_results_are_right(hostile_dir: Path) -> None:
    words = ("--op", "all", "--sizes", "4,4K,64K,1T", "--iters", "3", "--warmup", "1")
    done = ranked(hostile_dir, "collectives", *words)
    assert done.returncode == 0, done.stderr
    record = record_of(hostile_dir)
    assert record["complete"]
    assert {row["labels"]["op"] for row in record["rows"]} == set(OPS)
    assert all(row["wrong"] == 0 for row in record["rows"])
    assert all(len(row["samples"]["time_s"]) == 3 for row in record["rows"])
    sizes = {row["labels"]["bytes"] for row in record["rows"] if row["labels"]["op"] == "all_gather"}
    assert sizes == {4096, 65536}, "4 bytes are too few for two ranks"
    assert [row["labels"]["placement"] for row in record["rows"] if row["labels"]["op"] == "all_to_all"] == [
        "out-of-place"
    ] * 2
    assert "all_reduce of 1 TiB: needs 3 TiB per rank" in done.stdout
    assert done.stdout.count("# Avg bus bandwidth") == len(OPS)
    assert record["software"]["torch"]
    assert record["software"]["backend"] == "gloo"
    assert [seat["rank"] for seat in record["where"]["ranks"]] == [0, 1]
    assert record["where"]["nodes"] == 1
    assert record["where"]["ranks_per_node"] == 2


def test_json_prints_the_record_and_the_environment_is_an_allow_list(tmp_path: Path) -> None:
    words = ("--sizes", "1K", "--iters", "2", "--env", "NCCL_ALGO=Ring", "--env", "MY_PLAIN=hello")
    done = ranked(
        tmp_path, "collectives", *words, "--env", "HF_TOKEN=hf_" + "s" * 20, "--json", "--output", "copy.json"
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record == record_of(tmp_path) == json.loads((tmp_path / "copy.json").read_text())
    assert record["environment"]["NCCL_ALGO"] == "Ring"
    assert "MY_PLAIN" not in record["environment"]
    assert "s" * 20 not in done.stdout, "no secret in the record, not even in its command"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--sizes", "1M:8G:0"), "the factor must be more than 1"),
        (("--sizes", "huge"), "'huge' is not a size"),
        (("--op", "all_redice"), "did you mean 'all_reduce'?"),
        (("--dtype", "floaty"), "unknown type 'floaty'"),
        (("--iters", "0"), "--iters must be 1 or more"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = ranked(tmp_path, "collectives", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_what_the_machine_lacks_is_told_in_the_words_of_the_rank(tmp_path: Path) -> None:
    done = ranked(tmp_path, "collectives", "--device", "cuda", "--sizes", "1K")
    assert done.returncode == 3
    assert "windlass: error: this torch" in done.stderr
    assert "sees no cuda device" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("runs/*/record.json"))


def test_an_op_that_the_backend_lacks_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    words = ("--op", "broadcast,all_reduce", "--dtype", "int64", "--redop", "avg", "--sizes", "1K")
    done = ranked(tmp_path, "collectives", *words)
    assert done.returncode == 3, done.stdout
    assert "windlass: error: gloo has no all_reduce of int64 with avg" in done.stderr
    assert "leave it out of --op" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("runs/*/record.json"))


def one_row_is_told(tmp_path: Path) -> bool:
    texts = (path.read_text() for path in tmp_path.glob("runs/*/out/*"))
    return any(message.get("kind") == "row" for text in texts for message in read_messages(text.splitlines()))


def test_an_interrupt_keeps_what_was_measured(tmp_path: Path) -> None:
    words = ("--op", "broadcast", "--sizes", "1K:512M:2", "--iters", "500", "--most-seconds", "1000", "--warmup", "1")
    argv = windlass_argv("bench", "collectives", "--python", sys.executable, "-r", "2", *words)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(argv, env=environment(tmp_path), cwd=tmp_path, text=True, **pipes) as run:
        wait_until(lambda: one_row_is_told(tmp_path), timeout_s=60, what="the first row", state=lambda: "")
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=60)
    record = record_of(tmp_path)
    assert run.returncode == 128 + signal.SIGINT, err
    assert not record["complete"]
    assert record["rows"]
    assert "partial" in out
    assert "Traceback" not in err


def test_a_rank_that_is_killed_costs_the_rest_but_not_what_was_measured(tmp_path: Path) -> None:
    words = ("--op", "broadcast", "--sizes", "1K:512M:2", "--iters", "500", "--most-seconds", "1000", "--warmup", "1")
    argv = windlass_argv("bench", "collectives", "--python", sys.executable, "-r", "2", *words)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(argv, env=environment(tmp_path), cwd=tmp_path, text=True, **pipes) as run:
        wait_until(lambda: one_row_is_told(tmp_path), timeout_s=60, what="the first row", state=lambda: "")
        seats = [line.split("\t") for path in tmp_path.glob("runs/*/where/*") for line in path.read_text().splitlines()]
        os.kill(next(int(seat[4]) for seat in seats if seat[0] == "1"), signal.SIGKILL)
        out, err = run.communicate(timeout=60)
    assert run.returncode == 128 + signal.SIGKILL, err
    record = record_of(tmp_path)
    assert not record["complete"]
    assert record["rows"]
    assert "rank 1" in err
    assert "was killed by SIGKILL" in err
    assert "partial" in out


def test_an_interrupt_of_a_sweep_keeps_the_parts_that_were_done(tmp_path: Path) -> None:
    words = ("scale", "collectives", "--ranks", "1,2", "--sizes", "4K", "--iters", "20000", "--most-seconds", "1000")
    argv = windlass_argv("bench", *words, "--python", sys.executable)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(argv, env=environment(tmp_path), cwd=tmp_path, text=True, **pipes) as run:

        def the_second_part_has_begun() -> bool:
            return any("out-of-place" in path.read_text() for path in tmp_path.glob("runs/*/collectives-1n2r/out/*"))

        wait_until(the_second_part_has_begun, timeout_s=90, what="the second part", state=lambda: "")
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=60)
    assert run.returncode == 128 + signal.SIGINT, err
    record = record_of(tmp_path)
    assert not record["complete"]
    assert [row["labels"]["ranks"] for row in record["rows"]] == [1]
    assert "partial" in out


def test_a_folder_that_holds_a_run_is_not_written_over(tmp_path: Path) -> None:
    words = ("collectives", "--sizes", "1K", "--iters", "1", "--run-dir", "mine")
    assert ranked(tmp_path, *words, ranks=1).returncode == 0
    before = (tmp_path / "mine" / "record.json").read_bytes()
    done = ranked(tmp_path, *words, ranks=1)
    assert done.returncode == 2
    assert "already contains a run" in done.stderr
    assert (tmp_path / "mine" / "record.json").read_bytes() == before


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where the folder should be")
    done = ranked(tmp_path, "collectives", "--sizes", "1K")
    assert done.returncode == 3
    assert "cannot make the folder" in done.stderr


def test_an_unknown_benchmark_names_the_nearest(tmp_path: Path) -> None:
    done = bench(tmp_path, "colectives")
    assert done.returncode == 2
    assert "did you mean 'collectives'?" in done.stderr
    assert bench(tmp_path, "--help").stdout.count("\n") > 10
