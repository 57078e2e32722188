"""Hostile things to read: logs, plans, flight dumps, counts, host lists, records, paths. They end in a sentence."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import pty
import random
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attacks.record import record
from planning import plan_for
from waiting import wait_until
from windlass.base.notation.counts import parse_counts, parse_cpulist, parse_ranks
from windlass.base.notation.hostlist import expand_hostlist
from windlass.base.notation.style import for_terminal
from windlass.bench.reading import read_record
from windlass.cli.main import main
from windlass.cli.option_groups import add_request_options
from windlass.errors import WindlassError
from windlass.model.plan import plan_to_json
from windlass.run.failure.flight import missing, read_dump
from windlass.run.folder import AGENT_FILE
from windlass.sites.catalog import catalog_path
from windlass.sites.check import check_file

RESULTS = Path(__file__).parents[2] / "results"
BENCH_RECORDS = (
    *("h200/matmul.json", "h200/resnet50-b32.json", "h200/commands/collectives.json", "h200/commands/matmul.json"),
    *("h200/commands/ddp.json", "h200/commands/io.json", "h200/commands/synthetic-b96.json"),
)
EVIL = "\x1b]0;owned\x07\x1b[2J\rok\x9b31m\u202eabc\x08\x00"


def on_terminal(*argv: str, cwd: Path, **variables: str) -> str:
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "windlass", *argv],
        cwd=cwd,
        env={**os.environ, **variables},
        stdout=theirs,
        stderr=theirs,
        stdin=subprocess.DEVNULL,
    )
    os.close(theirs)
    said = b""
    try:
        while block := os.read(ours, 65536):
            said += block
    except OSError:  # the terminal is gone: the command has ended
        pass
    os.close(ours)
    assert child.wait(60) in (0, 1, 2)
    return said.decode("utf-8", "replace").replace("\r\n", "\n")


def finished_run(folder: Path) -> Path:
    done = subprocess.run(
        [sys.executable, "-m", "windlass", "run", "--run-dir", str(folder / "run"), "--", "printf", "%b", "hello\n"],
        cwd=folder,
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return folder / "run"


def test_control_characters_of_a_log_and_of_a_plan_do_not_reach_the_terminal(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    for log in (run / "out").iterdir():
        log.write_bytes(log.read_bytes().replace(b"hello", EVIL.replace("\x00", "").encode()))
    other = tmp_path / "other.json"
    plan = (run / "plan.json").read_text()
    other.write_text(plan.replace('"%b"', '"\\u001b[2J\\r\\u009b"'))
    assert other.read_text() != plan
    for argv in (("logs", str(run)), ("logs", "--follow", str(run)), ("diff", str(run), str(other))):
        for variables in ({"NO_COLOR": "1"}, {"FORCE_COLOR": "1"}):
            said = on_terminal(*argv, cwd=tmp_path, **variables)
            assert "\\x9b" in said, said
            own = "" if "NO_COLOR" in variables else r"\x1b\[[0-9;]*m"
            assert not set(re.sub(own, "", said)) & set("\x1b\r\x9b\x07\x08\u202e"), "nothing but windlass's colours"
    piped = subprocess.run([sys.executable, "-m", "windlass", "logs", str(run)], capture_output=True, timeout=60)
    assert b"\x1b[2J" in piped.stdout, "files and pipes get the bytes as they are"
    record("control characters in a log and a plan", expected="shown escaped", seen="shown escaped", commands=3)


def test_text_for_the_terminal_keeps_lines_tabs_and_letters() -> None:
    assert for_terminal("a\tb\nÄ漢\n") == "a\tb\nÄ漢\n"
    assert for_terminal(EVIL).isprintable()
    assert for_terminal("\x1b[31ma\x1b[0m\x1b[2J", coloured=True) == "\x1b[31ma\x1b[0m\\x1b[2J"


def test_hostile_flight_dumps_end_in_nothing(tmp_path: Path) -> None:
    deep: object = []
    for _ in range(60):
        deep = [deep, deep]
    bad: list[object] = [
        {"entries": 7},
        {"entries": None},
        {"entries": [{"collective_seq_id": 10**5000, "process_group": deep}]},
        {"entries": [{"collective_seq_id": 3, "process_group": deep, "profiling_name": deep, "state": {}}]},
        {"entries": [{"collective_seq_id": 4, "process_group": EVIL * 1000, "profiling_name": EVIL * 1000}]},
        {"entries": [[], 1, None, {"collective_seq_id": True}]},
        [],
    ]
    for number, dump in enumerate(bad):
        (tmp_path / f"rank_{number}").write_bytes(pickle.dumps(dump))
    said = missing(tmp_path, 16)[0]
    assert said.isprintable() and len(said) < 5000
    rng, alone = random.Random(13), tmp_path / "alone"
    alone.mkdir()
    whole = pickle.dumps({"entries": [{"collective_seq_id": 1, "process_group": ("0", "x"), "state": "s"}]})
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 5)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        (alone / "rank_0").write_bytes(bytes(data[: rng.randrange(1, len(data) + 1)]))
        read_dump(alone / "rank_0")
        missing(alone, 4)
    record("changed flight dumps (seed 13)", expected="no traceback", seen="no traceback", dumps=3000)


@pytest.mark.parametrize("text", ["1(x2000000000)", "1(x999999)," * 9 + "1", "9" * 5000, "1(x" + "9" * 5000 + ")", "٣"])
def test_hostile_counts_are_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(WindlassError):
        parse_counts(text)


@pytest.mark.parametrize(
    "text",
    [f"n[{'9' * 5000}]", "n[" + ",".join(["0-999998"] * 9) + "]", "n[0-99][0-999][0-99]", "n[" * 900, "n[٣]"],
)
def test_hostile_host_lists_are_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(WindlassError):
        expand_hostlist(text)


def test_changed_host_lists_end_in_a_sentence() -> None:
    rng = random.Random(14)
    for _ in range(5000):
        text = "".join(rng.choice("n[]-,0123 \n٣x.") for _ in range(rng.randint(0, 14)))
        for parse in (expand_hostlist, parse_counts):
            try:
                parse(text)
            except WindlassError:
                continue
    record("changed host lists and counts (seed 14)", expected="a sentence", seen="a sentence", lists=10_000)


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"a":' * 100_000, b"\xff" * 100, b"", b"0" * 6000, b"{}", b"[]"])
def test_hostile_benchmark_records_end_in_a_sentence(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "record.json").write_bytes(data)
    with pytest.raises(WindlassError):
        read_record(tmp_path)


@pytest.mark.parametrize("command", [("logs",), ("diff", "x"), ("run", "--plan"), ("runs", "show")])
def test_a_deep_or_endless_path_ends_in_a_sentence(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in ("a" * 5000, "/".join(["d"] * 4000), str(tmp_path / "loop")):
        assert main([*command, path]) in (1, 2, 3)
        assert "windlass: error:" in capsys.readouterr().err


def test_the_key_of_a_run_that_was_killed_is_removed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    child = subprocess.Popen(
        [sys.executable, "-m", "windlass", "run", "--run-dir", str(run), "--", "sh", "-c", "echo up; sleep 100"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert b"up" in child.stdout.readline()
    (run / AGENT_FILE).write_text("key")
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    wait_until(lambda: not (run / AGENT_FILE).exists(), timeout_s=60, what="the guard removed the key")


def test_changed_site_files_end_in_a_sentence(tmp_path: Path) -> None:
    """A fuzzer with a seed: bytes and values of any type in any place of a site file."""
    rng = random.Random(16)
    whole = catalog_path("site", "leonardo").read_bytes()
    lines = whole.splitlines()
    keys = [number for number, line in enumerate(lines) if b"=" in line]
    junk = (b"-1", b'""', b"[]", b"{}", b"nan", b"9" * 30, b'"\\u0000"', b"true", b"[[1]]", b"1979-01-01")
    texts = [b"a=" + b"[" * 3000, b"a" + b".a" * 3000 + b"=1", b"\xff" * 9, b"a=" + b"9" * 6000]
    for _ in range(60):
        changed = bytearray(whole)
        for _ in range(3):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        other = list(lines)
        number = rng.choice(keys)
        other[number] = other[number].split(b"=")[0] + b"= " + rng.choice(junk)
        texts += [bytes(changed), whole[: rng.randrange(len(whole))], b"\n".join(other)]
    for text in texts:
        (tmp_path / "leonardo.toml").write_bytes(text)
        check_file(tmp_path / "leonardo.toml")
    record("changed site files (seed 16)", expected="problems by line", seen="problems by line", files=len(texts))


BENCH_JUNK: list[Any] = [
    *(None, -1, 0, 1e308, -1e308, 5e-324, 2**62, 2**70, 10**300, True, "", "\0", "\x1b[2J", "é" * 50, "9" * 5000),
    *([], {}, [[]], {"a": 1}, [None], [1e308, -1e308]),
]


TAKEN_AWAY = object()


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all values in a value made of lists and dictionaries; of a list the first few."""
    if path:
        yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield from places_in(inner, (*path, key))


def changed_at(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    copy = json.loads(json.dumps(body))
    place = copy
    for part in path[:-1]:
        place = place[part]
    if value is TAKEN_AWAY:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return copy


def test_changed_benchmark_records_end_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A fuzzer with a seed: values of any type in any place, and torn bytes, of records of every case and version; each
    is reported, drawn, judged and compared."""
    rng = random.Random(18)
    told = {0: 0, 1: 0, 2: 0}
    changed, page = tmp_path / "record.json", str(tmp_path / "page.html")
    commands = (("report", str(changed), "--html", page), ("report", str(changed)), ("reference", str(changed)))
    for number, file in enumerate(BENCH_RECORDS):
        whole = (RESULTS / file).read_bytes()
        body = json.loads(whole)
        places = list(places_in(body))
        rows = [path for path in places if path[0] in {"rows", "results"} and len(path) > 2] or places
        for turn in range(60):
            if turn % 8 == 0:
                data = bytearray(whole[: rng.randrange(len(whole))])
                data[rng.randrange(len(data) or 1) :] = b"\xff" * rng.randrange(3)
            else:
                value = TAKEN_AWAY if turn % 3 == 0 else rng.choice(BENCH_JUNK)
                path = rng.choice(rows if turn % 2 else places)
                data = bytearray(json.dumps(changed_at(body, path, value)).encode())
            changed.write_bytes(data)
            others = (("compare", str(RESULTS / file), str(changed)), ("compare", str(changed), str(RESULTS / file)))
            argv = (*commands, *others)[(turn + number) % 5]
            told[main(["bench", *argv])] += 1  # a traceback would raise; so would any other exit code
            said = capsys.readouterr().err
            assert not said or said.startswith("windlass: error:")
    assert told[0] > 50 and told[2] > 50
    record(
        "changed and torn benchmark records (seed 18)",
        expected="shown, or a sentence",
        seen=f"{told[0] + told[1]} shown, {told[2]} ended in a sentence",
        records=sum(told.values()),
    )


ABSURD = ("9" * 5000, "0-2000000000", "1e400", "-1", "²", "1(x2000000000)", "9" * 400 + "G", "n[0-99999999]", "\x1b[2J")


def test_no_option_of_a_run_ends_in_a_traceback_or_fills_the_memory(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every option of `plan` that takes a value gets absurd ones: it finds the next unbounded range by itself."""
    monkeypatch.chdir(tmp_path)
    parser = argparse.ArgumentParser()
    add_request_options(parser)
    names = [action.option_strings[-1] for action in parser._actions if action.option_strings and action.nargs != 0]
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), before[1]))
    tries = 0
    try:
        for name in names:
            for value in ABSURD:
                try:
                    code = main(["plan", f"{name}={value}", "--", "true"])
                except SystemExit as ended:  # argparse says what it expected
                    code = int(str(ended.code))
                said = capsys.readouterr().err
                assert code in (0, 1, 2, 3) and "Traceback" not in said, (name, value[:40], said[-400:])
                tries += 1
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert len(names) > 30
    record(
        "absurd values for every option of a run",
        expected="a plan or a sentence, within 1 GiB",
        seen="a plan or a sentence",
        attempts=tries,
    )


@pytest.mark.parametrize("change", [{"nodes": 2_000_000_000}, {"ranks_per_node": 2**60}, {"nodes": 0}, {"nodes": 2}])
def test_a_plan_with_absurd_counts_ends_in_a_sentence(
    change: dict[str, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = json.loads(plan_to_json(plan_for("workstation", "true")[0]))
    (tmp_path / "plan.json").write_text(json.dumps({**body, **change}))
    for part in ("out", "where", "ends", "comm"):
        (tmp_path / part).mkdir()
    for argv in (("logs", str(tmp_path), "--rank", "all"), ("runs", "trust", str(tmp_path), "--yes")):
        assert main([*argv]) == 2
        assert "not a plan: " in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0-2000000000", "9" * 5000, "5-3", "-1", "٣", "0," * 5, "0-99999," * 3 + "1"])
def test_hostile_lists_of_ranks_are_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(WindlassError):
        parse_ranks(text, "--comm-log")
    with pytest.raises(WindlassError):
        parse_cpulist("9" * 5000)
    assert parse_ranks("0-2000000000".replace("2000000000", "999999999"), "--show", world_size=3) == (0, 1, 2)
