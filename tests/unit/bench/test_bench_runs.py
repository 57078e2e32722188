"""The other benchmarks end to end with ranks on this machine: tiny, but the real path."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from cluster.command import windlass_argv
from requirements import missing_programs, require_torch
from unit.bench.commands import bench, environment, ranked, record_of
from waiting import wait_until
from windlass.node.sys.messages import read_messages

require_torch()
pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]
IMAGES = ("--model", "resnet-tiny", "--image", "32", "--batch", "2")


def test_matmul_measures_every_type_and_skips_what_is_missing(tmp_path: Path) -> None:
    done = ranked(tmp_path, "matmul", "--size", "64", "--seconds", "0.05", "--types", "bf16,fp32", ranks=1)
    assert done.returncode == 0, done.stderr
    rows = record_of(tmp_path)["rows"]
    assert [row["labels"]["type"] for row in rows] == ["bf16", "fp32"]
    assert all(row["figures"]["sustained"]["value"] > 0 for row in rows)
    assert all(len(row["samples"]["burst_s"]) >= 3 for row in rows)


def test_a_language_model_is_told_with_its_utilisation_and_all_ranks_samples(tmp_path: Path) -> None:
    words = ("--model", "tiny", "--sequence", "32", "--steps", "3", "--warmup", "1", "--ceiling", "0.05")
    done = ranked(tmp_path, "llm", *words)
    assert done.returncode == 0, done.stderr
    (row,) = record_of(tmp_path)["rows"]
    assert row["labels"]["parallel"] == "ddp"
    assert len(row["samples"]["step_s"]) == 6, "three steps of two ranks"
    share = row["figures"]["utilisation_measured"]
    assert share["formula"] == "6*N*tokens / fp32 matmul 1024, sustained, same run"
    achieved, ceiling = row["figures"]["tflops_6n"]["value"], row["figures"]["ceiling"]["value"]
    assert share["value"] == pytest.approx(achieved / ceiling)
    assert "tokens/s" in done.stdout


def test_ddp_goes_through_its_sweep_and_is_reported_and_compared(tmp_path: Path) -> None:
    done = ranked(tmp_path, "ddp", *IMAGES, "--steps", "2", "--warmup", "1", "--fp16-allreduce", ranks=1)
    assert done.returncode == 0, done.stderr
    labels = [row["labels"] for row in record_of(tmp_path)["rows"]]
    assert [(one["label"], one.get("gradients")) for one in labels] == [("no ddp", None), ("1M/1G", "fp16")]
    assert "no ddp:  p50:" in done.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    page = bench(tmp_path, "report", str(folder), "--html", "page.html")
    assert page.returncode == 0, page.stderr
    assert "<svg" in (tmp_path / "page.html").read_text()
    assert bench(tmp_path, "report", str(folder), "--json").stdout.startswith("{")
    assert "too few samples" in bench(tmp_path, "compare", str(folder), str(folder)).stdout


def test_input_is_read_in_every_format_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    words = ("--samples", "40", "--sample-size", "4096", "--need", "100")
    done = ranked(tmp_path, "io", "data", *words)
    assert done.returncode == 0, done.stderr
    rows = record_of(tmp_path)["rows"]
    formats = {"files", "tar"} | (set() if missing_programs("mksquashfs", "squashfuse") else {"squashfs"})
    assert {(row["labels"]["format"], row["labels"]["pass"]) for row in rows} == {
        (form, which) for form in formats for which in ("cold", "warm")
    }
    assert all(row["wrong"] == 0 for row in rows)
    assert all(row["figures"]["needed"]["value"] == 200 for row in rows), "two ranks on the node"
    assert list((tmp_path / "data").iterdir()) == []


def test_scaling_compares_one_case_at_two_sizes(tmp_path: Path) -> None:
    words = ("collectives", "--ranks", "1,2", "--sizes", "4K", "--iters", "2", "--warmup", "1")
    done = bench(tmp_path, "scale", *words)
    assert done.returncode == 0, done.stderr
    rows = record_of(tmp_path)["rows"]
    assert [row["labels"]["ranks"] for row in rows] == [1, 2]
    assert rows[1]["figures"]["efficiency"]["value"] == 1.0
    assert "efficiency = busbw(n) / busbw(smallest)" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("llm", "--model", "lama2-7b"), "did you mean 'llama2-7b'?"),
        (("ddp", "--model", "resnet5"), "did you mean 'resnet50'?"),
        (("io", "/nowhere/at/all"), "is not a folder"),
        (("scale", "colectives", "--nodes", "1"), "did you mean 'collectives'?"),
        (("scale", "collectives"), "give --nodes 1,2,4 or --ranks 1,2,4"),
        (("scale", "collectives", "--nodes", "1,2", "--sizes", "1K"), "--nodes 2 with the local launcher"),
        (("llm", "--steps", "0"), "--steps is 0"),
        (("ddp", "--image", "50"), "--image is 50"),
        (("matmul", "--types", "bf17"), "did you mean 'bf16'?"),
        (("report", "nowhere.json"), "cannot read nowhere.json"),
        (("reference", "colectives"), "did you mean 'collectives'?"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = bench(tmp_path, *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_verdict_is_a_command_away(tmp_path: Path) -> None:
    seed = Path(__file__).parents[3] / "examples" / "benchmarks" / "nccl-tests-2x4-gh200.txt"
    words = ("--nodes", "2", "--device-name", "NVIDIA GH200 120GB")
    done = bench(tmp_path, "report", str(seed), *words, "--output", "record.json", "--json")
    assert json.loads(done.stdout) == json.loads((tmp_path / "record.json").read_text())
    done = bench(tmp_path, "reference", "collectives", "record.json")
    assert done.returncode == 0, done.stderr
    assert "normal for 2 nodes of GH200" in done.stdout


def test_an_interrupted_measurement_of_input_leaves_no_sample_and_no_mount(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    words = ("io", "data", "-r", "2", "--samples", "1000", "--sample-size", "16K", "--formats", "squashfs,files")
    argv = windlass_argv("bench", *words, "--python", sys.executable)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(argv, env=environment(tmp_path), cwd=tmp_path, text=True, **pipes) as run:

        def is_reading() -> bool:
            return any("reading squashfs" in path.read_text() for path in tmp_path.glob("runs/*/out/*"))

        wait_until(is_reading, timeout_s=100, what="the samples are written", state=lambda: "")
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=60)
    assert run.returncode in (0, 128 + signal.SIGINT), err
    assert list((tmp_path / "data").iterdir()) == []
    assert "windlass-io" not in Path("/proc/mounts").read_text()


def test_an_interrupt_of_two_training_ranks_keeps_the_steps_that_were_measured(tmp_path: Path) -> None:
    words = ("llm", "-r", "2", "--sequence", "32", "--steps", "1000000", "--warmup", "1")
    argv = windlass_argv("bench", *words, "--python", sys.executable)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(argv, env=environment(tmp_path), cwd=tmp_path, text=True, **pipes) as run:

        def some_steps_are_told() -> bool:
            texts = (path.read_text() for path in tmp_path.glob("runs/*/out/*"))
            return any(message.get("kind") == "train" for text in texts for message in read_messages(text.splitlines()))

        wait_until(some_steps_are_told, timeout_s=100, what="the first steps", state=lambda: "")
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=60)
    assert run.returncode == 128 + signal.SIGINT, err
    record = record_of(tmp_path)
    assert not record["complete"]
    (row,) = record["rows"]
    assert len(row["samples"]["step_s"]) >= 1
    assert row["labels"]["ranks"] == 2
    assert "ended early; these are the first" in out
    assert record["options"]["precision"] == "fp32", "what the ranks decided is in the record"


def test_a_python_without_torch_is_named_with_what_to_install(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    python = str(tmp_path / "bare" / "bin" / "python")
    done = bench(tmp_path, "matmul", "-r", "1", "--size", "64", "--python", python)
    assert done.returncode == 3, done.stderr
    assert f"{python} has no torch" in done.stderr and "-m pip install torch" in done.stderr
    assert "Traceback" not in done.stderr
