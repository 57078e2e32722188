"""Hostile logs: `explain-log` needs constant memory and linear time, and ends in a report or in a sentence."""

from __future__ import annotations

import io
import os
import random
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from attacks.record import record
from regex_steps import example
from unit.cli.typed import argv, environment, in_process
from windlass.backends.launchers import get_launcher, launcher_names
from windlass.backends.launchers.base import NodeLogReader
from windlass.diagnose.doctor import explain_log
from windlass.diagnose.doctor.explain_log import LogReader, explain_files
from windlass.diagnose.doctor.log_findings import LogReport
from windlass.diagnose.doctor.log_lines import candidate_signs, whole_lines
from windlass.run.failure.signs import Sign, log_signs

SEEDS = (
    "[c10d]",
    "network x ",
    "store ",
    "NCCL ",
    "Timed out waiting for ",
    "srun: error: ",
    "errno: ",
    "CUDA error: ",
)


def read(data: bytes, name: str = "log") -> LogReport:
    reader = LogReader()
    reader.read(name, io.BytesIO(data), len(data))
    return reader.report()


@pytest.mark.parametrize("sign", log_signs(), ids=lambda sign: str(sign.title))
def test_every_text_that_a_sign_matches_passes_the_search_for_words(sign: Sign) -> None:
    """Random texts of each pattern: a sign whose words are incomplete would miss lines."""
    pattern: re.Pattern[str] = sign.pattern
    rng, found = random.Random(20), 0
    for _ in range(200):
        line = f" {example(pattern, rng)} "
        if pattern.search(line):
            found += 1
            assert sign in candidate_signs(line.encode()), line
    assert found > 20


def hostile_log(kind: str, size: int) -> bytes:
    rng, parts, length = random.Random(20), [], 0
    while length < size:
        if kind == "different lines":
            line = " ".join(rng.choices(SEEDS, k=8)) + f" {rng.getrandbits(64):x}\n"
        elif kind == "different errors":
            name = "".join(rng.choices("abcdefgh", k=12))
            line = f"Traceback (most recent call last):\n{name}Error: {name}\n"
        elif kind == "ranks":
            line = f"{2 * len(parts)}: Watchdog caught collective operation timeout\n"
        elif kind == "numbers":
            line = f"errno: {rng.getrandbits(64)} connect\n"
        else:
            line = "store network error " * 100
        parts.append(line)
        length += len(line)
    return "".join(parts).encode()


@pytest.mark.parametrize("kind", ["different lines", "different errors", "ranks", "numbers", "one line"])
def test_a_hostile_log_is_kept_in_tables_of_fixed_size_and_matched_in_part(kind: str) -> None:
    reader = LogReader()
    allowed = reader._matches_left
    data = hostile_log(kind, 3 << 20)
    reader.read("log", io.BytesIO(data), len(data))
    report = reader.report()
    assert len(reader._meanings) <= 50_000 and max(map(len, reader._meanings), default=0) <= 512
    assert len(reader._seen) < 150 and len(reader._tracing) <= len(reader._ranks) == 1 << 18
    assert len(report.findings) < 150 and all(len(one.facts["ranks"]) < 400 for one in report.findings)
    assert reader._matches_left > -(1 << 20) and allowed == 1 << 23, "patterns read no more than their share"
    assert kind not in {"different lines", "numbers"} or report.unmatched
    record(f"a log of hostile {kind}", expected="constant memory", seen="constant memory", bytes=len(data))


SHORT = ("\n", "7: \n", "Traceback (most recent call last):\nx\n", " x\n", "errno 7\n")


@pytest.mark.parametrize("line", SHORT)
def test_a_log_of_short_lines_is_read_in_part_and_to_its_end(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line costs more than its bytes, so that a log of empty lines took minutes for each GB."""
    monkeypatch.setattr(explain_log, "_FREE_WORK", 0)
    reader, data = LogReader(), line.encode() * ((1 << 20) // len(line)) + b"OSError: Too many open files\n"
    reader.read("log", io.BytesIO(data), len(data))
    report = reader.report()
    assert report.lines == data.count(b"\n") and report.unmatched > report.lines / 20
    assert reader._work_left > -(1 << 24), "no more than one block above its share"
    assert "open-files" in [one.kind for one in report.findings]


def test_a_long_line_is_cut_and_its_ends_are_still_read() -> None:
    middle = b" x" * (1 << 20)
    assert read(b"3: OSError: Too many open files" + middle).verdict.startswith("rank 3: open-files")
    assert read(middle + b" OSError: Too many open files\n").verdict.startswith("open-files")
    assert read(middle + b"\n" + middle).lines == 2
    assert sum(map(len, whole_lines(io.BytesIO(middle), len(middle)))) < 1 << 14, "constant memory"


@pytest.mark.parametrize("label", ["9" * 5000, "9" * 7, "262144", "٣"])
def test_a_label_that_is_no_rank_is_text(label: str, tmp_path: Path) -> None:
    line = f"{label}: [rank{label}]: OSError: Too many open files"
    report = read(line.encode(), name=f"rank-{label}.log"[:200])
    assert report.findings[0].kind == "open-files" and not report.findings[0].subject
    if label.isascii():
        for name in launcher_names():
            launcher = get_launcher(name)
            for text in (line, f"[windlass {label}] x", f"[1,{label}]<stdout>:x", f"host {label}: x"):
                list(NodeLogReader(launcher).read([text.encode()]))
                launcher.segments(text)
            launcher.parse_failure(
                [f"srun: error: n: tasks {label}: Exited with exit code {label}", f"= EXIT CODE: {label}"], 1
            )


def test_pipes_and_devices_end_in_a_sentence(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    run = tmp_path / "run"
    (run / "out").mkdir(parents=True)
    os.mkfifo(run / "launcher.log")
    os.mkfifo(run / "out" / "node-0000.log")
    for name in ("pipe", "zero", "/dev/zero", "run"):
        done = in_process("explain-log", name, cwd=tmp_path)
        assert done.code == 2 and "is not a plain file" in done.stderr, name
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 256 << 20)
    assert explain_files([tmp_path / "sparse"], lambda _: None).lines == 1
    record("pipes and devices as logs", expected="a sentence", seen="a sentence", files=4)


def test_the_user_may_give_a_pipe_of_the_shell_and_the_standard_input(tmp_path: Path) -> None:
    """`windlass explain-log <(zcat log.gz)`: this user opened the pipe, unlike one that lies in a folder."""
    (tmp_path / "log").write_text("3: OSError: Too many open files\n" * 100_000)
    plan = in_process("plan", "--json", "--", "true", cwd=tmp_path).stdout
    (tmp_path / "plan.json").write_text(plan)
    windlass = shlex.join(argv())
    for line, said in (
        (f"{windlass} explain-log <(cat log)", "100,000 lines"),
        (f"cat log | {windlass} explain-log -", "100,000 lines"),
        (f"{windlass} explain-log - <log", "100,000 lines"),
        (f"{windlass} diff <(cat plan.json) plan.json", "the plans are equal"),
        (f"cat plan.json | {windlass} diff plan.json -", "the plans are equal"),
        (f"yes | {windlass} diff plan.json -", "is larger than"),
        (f"{windlass} explain-log - </dev/zero", "is not a plain file"),
    ):
        done = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=60
        )
        assert said in done.stdout + done.stderr, (line, done.stderr)
