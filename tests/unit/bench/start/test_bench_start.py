"""`bench/start.py` on a small environment: the promise in calls and bytes, which no busy machine changes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from start import main
from startup.cases import StartSetup, cache, direct, measure, native, stage
from startup.machine import Clients
from startup.shared import Limits
from windlass.bench.reading import read_record

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with a package of 60 modules."""
    prefix = tmp_path_factory.mktemp("bench") / "env"
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", str(prefix)], check=True, timeout=60)
    (site,) = (prefix / "lib").glob("python3*/site-packages")
    package = site / "many"
    package.mkdir()
    for number in range(60):
        (package / f"m{number}.py").write_text(f"VALUE = {number!r}\nTEXT = {'x' * 3000!r}\n")
    (package / "__init__.py").write_text("".join(f"from many.m{n} import VALUE as v{n}\n" for n in range(60)))
    subprocess.run([str(prefix / "bin" / "python"), "-m", "compileall", "-q", str(package)], check=True, timeout=60)
    return prefix


@pytest.fixture
def setup(environment: Path, tmp_path: Path) -> Iterator[StartSetup]:
    yield StartSetup(env=environment, module="many", work=tmp_path / "work", limits=Limits(), environ={})


def test_client_shows_the_files_and_counts_calls_and_bytes(environment: Path, tmp_path: Path) -> None:
    with Clients(tmp_path / "c", 2, {"env": str(environment)}, Limits()) as clients:
        before = clients.seen()
        text = (clients.path(0) / "env" / "pyvenv.cfg").read_text()
        after = clients.seen().since(before)
        assert text == (environment / "pyvenv.cfg").read_text()
        assert after.bytes == len(text) and 2 <= after.calls <= 6
        assert sorted(p.name for p in (clients.path(1) / "env").iterdir()) == sorted(
            p.name for p in environment.iterdir()
        )
        assert not (clients.path(0) / "env" / "nothing").exists()
        assert not (clients.path(0) / "other").exists()
        with pytest.raises(OSError, match="Read-only"):
            (clients.path(0) / "env" / "new").write_text("x")


def test_limited_calls_take_their_time(environment: Path, tmp_path: Path) -> None:
    with Clients(tmp_path / "c", 2, {"env": str(environment)}, Limits(calls_per_s=200)) as clients:
        names = sorted((environment / "bin").iterdir())
        code = "import os, sys, time; t = time.monotonic(); [os.stat(sys.argv[1]) for _ in range(100)]; "
        code += "print(time.monotonic() - t)"
        file = clients.path(0) / "env" / "bin" / names[0].name
        words = [sys.executable, "-c", code, str(file)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert float(done.stdout) >= 0.4, "100 calls at 200 a second"


def test_with_the_cache_the_shared_file_system_sees_the_work_of_one_node(setup: StartSetup) -> None:
    alone, again = cache(setup, 1, 1)
    four, _ = cache(setup, 4, 2)
    agents = 4 * 12  # each agent reads its own file
    assert four.shared.calls <= 1.05 * alone.shared.calls + agents
    assert four.shared.bytes <= 1.05 * alone.shared.bytes + 4 * 300_000
    assert again.shared.calls == 0, "a second import asks for nothing"


def test_direct_grows_with_nodes_and_ranks(setup: StartSetup) -> None:
    one = direct(setup, 1, 1)
    four = direct(setup, 2, 2)
    assert four.shared.calls > 3 * one.shared.calls
    assert four.shared.bytes == pytest.approx(2 * one.shared.bytes, rel=0.05), "pages are kept on each node"
    assert native(setup, 1, 1).shared.calls == 0


def test_trace_is_recorded_once_and_pushed(setup: StartSetup) -> None:
    first, _ = cache(setup, 2, 1, trace=True)
    assert setup.made["trace"].exists()
    second, _ = cache(setup, 2, 1, trace=True)
    assert second.shared.calls == pytest.approx(first.shared.calls, rel=0.1)


def test_staged_archive_is_read_once_whatever_the_number_of_nodes(setup: StartSetup) -> None:
    one, two = stage(setup, 1, 1), stage(setup, 2, 1)
    size = setup.made["archive"].stat().st_size
    for nodes, sample in ((1, one), (2, two)):
        assert size <= sample.shared.bytes <= size + nodes * 300_000, "the archive once, the agents' file once a node"
    assert not list(setup.work.glob("s*/staged-*")), "copies are removed"


def test_cases_that_cannot_be_measured_say_why(setup: StartSetup) -> None:
    setup.environ = {"SLURM_JOB_NUM_NODES": "1"}
    rows = measure(setup, ("native", "sbcast"), (2,), 1, 1, lambda text: None)
    assert rows[0].seconds is not None and rows[0].seconds > 0
    assert rows[1].seconds is None and "the allocation has 1 nodes" in rows[1].not_measured


def test_rows_of_the_command_are_json(environment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--env", str(environment), "--import", "many", "--nodes", "1,2", "--repeats", "1"]
    record = tmp_path / "record.json"
    words += ["--warmup", "0", "--cases", "native,cache,second", "--stages"]
    assert main([*words, "--json", "--work", str(tmp_path), "--output", str(record)]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["case"], row["nodes"]) for row in rows] == [
        (case, nodes) for nodes in (1, 2) for case in ("native", "cache", "second")
    ]
    assert all({"case", "nodes", "ranks", "seconds", "shared_calls", "shared_bytes"} <= row.keys() for row in rows)
    kept = read_record(record)
    assert [row.labels for row in kept.rows] == [{n: row[n] for n in ("case", "nodes", "ranks")} for row in rows]
    assert [row.figures["seconds"].value for row in kept.rows] == [row["seconds"] for row in rows]
    cold = next(row for row in kept.rows if row.labels["case"] == "cache" and row.labels["nodes"] == 2)
    stages = {name for name in cold.figures if name.startswith("stage ")}
    assert {"stage root peer: read folder", "stage root peer: digest", "stage node mount: lookup"} <= stages
    assert not list(tmp_path.glob("windlass-bench.*"))


def test_rounds_that_warm_up_are_discarded(setup: StartSetup) -> None:
    told: list[str] = []
    (row,) = measure(setup, ("native",), (1,), 1, 2, told.append, warm_up=1)
    assert len(row.samples) == 2
    assert [text.startswith("warm-up") for text in told] == [True, False, False]


def test_unknown_case_and_bad_sizes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words, hint in ((["--cases", "cach"], "did you mean 'cache'"), (["--nodes", "0"], "numbers from 1 to 200")):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2 and hint in capsys.readouterr().err
