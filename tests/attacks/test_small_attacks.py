"""Names and figures of others in completion, on the screen of watch, in step records and in layouts."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import time
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from attacks.record import record
from unit.cli.typed import in_process
from windlass.base.tables import packaged_text
from windlass.cli import completion
from windlass.cli.completion import _beginning
from windlass.diagnose.watch.demo import demo_job
from windlass.diagnose.watch.screen import screen_text
from windlass.model.finding import Finding
from windlass.node.sampler.steps import RankSteps, follow
from windlass.node.stage.layout import LayoutError, parse_items
from windlass.run.sidecars.traces import list_traces

EVIL = "a\x1b[31mred\x1b]0;owned\x07\u202eb"


def test_bash_completion_quotes_every_name(tmp_path: Path) -> None:
    """A completed word is text of a command line: `$(...)` in the name of a run would be executed by the next Enter."""
    names = ["$(touch ran)", "a;touch ran", "two words", "*", "plain-1"]
    stand_in = "windlass() { cat names; }\n"
    show = 'COMP_WORDS=(windlass runs show ""); COMP_CWORD=3; _windlass; printf "%s\\n" "${COMPREPLY[@]}"'
    (tmp_path / "names").write_text("".join(f"{name}\n" for name in names))
    argv = ["bash", "--norc", "-c", f"{stand_in}{packaged_text(completion.__file__, 'completion.bash')}{show}"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    quoted = done.stdout.splitlines()
    assert len(quoted) == len(names)
    back = subprocess.run(
        ["bash", "--norc", "-c", f"printf '%s\\n' {' '.join(quoted)}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert back.stdout.splitlines() == names and not (tmp_path / "ran").exists()
    assert _beginning("", ["good", "bad\n$(id)", "\x1b[2J"]) == ["good"]
    record("commands in the names of runs, completed by bash", expected="quoted", seen="quoted", names=len(names))


@pytest.mark.parametrize("colour", [False, True])
def test_the_screen_of_watch_shows_codes_of_others_escaped(colour: bool) -> None:
    job = demo_job(2, time.time())
    nodes = tuple(msgspec.structs.replace(node, host=EVIL) for node in job.nodes)
    job = msgspec.structs.replace(job, name=EVIL, nodes=nodes)
    finding = Finding("x", "error", EVIL, EVIL)
    text = screen_text(job, (finding, finding, finding), colour=colour, width=120)
    ours = re.sub(r"\x1b\[[\d;]+m *(?:error|ERROR) *\x1b\[0m", "", text)
    assert not set(ours) & set("\x1b\x07\u202e") and "\\x1b[31m" in text
    assert (ours != text) == colour
    record("colour codes in a run that is watched", expected="shown escaped", seen="shown escaped")


JUNK: list[Any] = [
    *(None, -1, 1e308, -1e308, 2**70, 10**300, True, "", "x", [], {}, [[]], {"a": 1}, [None], [1e308, "y"], [2**80]),
]


def test_changed_step_records_end_in_figures(tmp_path: Path) -> None:
    """A fuzzer with a seed: values of any type in any place, and numbers that JSON does not have."""
    rng = random.Random(22)
    good: list[dict[str, Any]] = [
        {"begin": 1},
        {"steps": {"first": 0, "end": 5.0, "us": [10, None, 30], "wait_us": [1, None, 2]}},
        {"folded": {"first": 3, "count": 9, "timed": 9, "sum_us": 90, "end": 9.0, "us": [1, 2, 3], "wait_sum_us": 4}},
        {"ddp": {"comm_us": 5, "overlap_us": 1}},
        {"memory": {"alloc_retries": 1}},
        {"note": "x"},
    ]
    for number in range(1500):
        lines = json.loads(json.dumps(good))
        for _ in range(rng.randint(1, 3)):
            line = rng.choice(lines)
            key = next(iter(line))
            if isinstance(line[key], dict) and line[key] and rng.random() < 0.8:
                line[key][rng.choice(sorted(line[key]))] = json.loads(json.dumps(rng.choice(JUNK)))
            else:
                line[key] = json.loads(json.dumps(rng.choice(JUNK)))
        text = "".join(json.dumps(line) + "\n" for line in lines)
        text = (
            text.replace("1e+308", rng.choice(["NaN", "Infinity", "-Infinity", "1e400"])) if number % 3 == 0 else text
        )
        (tmp_path / "0").write_text(text + ("[" * 5000 + "\n" if number % 100 == 0 else ""))
        steps = RankSteps(str(tmp_path / "0"))
        steps.look()
        figures = (steps.step_ms, steps.wait_share, steps.comm_share, steps.all_ms, steps.p95_ms, steps.all_wait_share)
        assert all(figure is None or 0 <= figure < 1e16 for figure in figures), text
    for name in ("²", "9" * 200, "٣"):
        (tmp_path / name).write_text("{}\n")
    os.mkfifo(tmp_path / "1")
    known: dict[int, RankSteps] = {}
    follow(str(tmp_path), known)
    assert set(known) == {0, 1}
    record("changed step records (seed 22)", expected="no traceback", seen="no traceback", records=1500)


@pytest.mark.parametrize(
    "row",
    [
        *([0, "", -1, 0, 0, 0, None], [0, "", 2**40, 0, 0, 0, None], [0, "", 33188, 0, 0, -1, None]),
        *([0, "", 33188, 2**62, 0, 0, None], [2**70, "", 33188, 0, 0, 0, None], [0, "", 33188, 0, 2**70, 0, None]),
        *([0, "", 33188, 0, 0, 2**70, None], [0, "", 1e400, 0, 0, 0, None], [0, "\ud83d", 33188, 0, 0, 0, None]),
    ],
)
def test_a_layout_with_absurd_numbers_is_refused(row: list[Any]) -> None:
    with pytest.raises(LayoutError):
        parse_items(zlib.compress(json.dumps([row]).encode()))


def test_a_pipe_among_the_traces_is_left_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "0123456789abcdef.trace.json")
    assert list_traces(tmp_path) == ()


def test_a_pipe_as_script_or_file_of_a_plan_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.py")
    (tmp_path / "runs").mkdir()
    for argv in (("plan", "--", "python", "train.py"), ("plan", "--cache", ".", "--", "python", "train.py")):
        done = in_process(*argv, cwd=tmp_path)
        assert done.code in (0, 1, 2) and not re.search("Traceback", done.stderr), done.stderr
    record("pipes where a plan or a list of traces reads", expected="no hang", seen="no hang", commands=3)
