"""The runner of the tests: only listed tests run twice, and the last line counts every test once."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

RUNNER = Path(__file__).parents[1] / "scripts" / "run_tests.py"
CLOSING = re.compile(r"^[0-9]+ (passed|failed).* in [0-9.]+s$")
FLAKY = """
import pytest
from pathlib import Path

def times(name):
    path = Path(name)
    path.write_text((path.read_text() if path.exists() else "") + "x")
    return len(path.read_text())

@pytest.fixture
def untidy():
    yield
    assert times("untidy") > TRIES

def test_good(): pass
def test_untidy(untidy): pass
def test_flaky(): assert times("flaky") > TRIES
"""


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_tests", RUNNER)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def runs(
    folder: Path, listed: str, tries: int, *, more: str = "", workers: int = 0
) -> subprocess.CompletedProcess[str]:
    """The runner as it is, in a project of its own with one test file. To start a worker takes seconds."""
    (folder / "scripts").mkdir()
    (folder / "tests").mkdir()
    (folder / "scripts" / "run_tests.py").write_text(RUNNER.read_text())
    (folder / "tests" / "rerun.txt").write_text(listed)
    (folder / "tests" / "test_it.py").write_text((FLAKY + more).replace("TRIES", str(tries)))
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    argv = [sys.executable, "scripts/run_tests.py", "-n", str(workers)]
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=120)


def test_a_listed_test_may_fail_once_and_is_named(tmp_path: Path) -> None:
    done = runs(tmp_path, "tests/test_it.py::test_flaky  # once\ntests/test_i*.py  # all\n", 1, workers=1)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "These passed only when run once more:" in lines
    named = lines[lines.index("These passed only when run once more:") + 1 :]
    assert {line.strip() for line in named[:2]} == {"tests/test_it.py::test_flaky", "tests/test_it.py::test_untidy"}
    assert CLOSING.match(lines[-1])
    assert lines[-1].startswith("3 passed, 2 rerun in ")


def test_a_test_that_is_not_listed_has_failed(tmp_path: Path) -> None:
    done = runs(tmp_path, "tests/test_it.py::test_untidy  # once\n", 1)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("1 failed, 1 passed, 1 error, 0 rerun in ")
    assert "tests/rerun.txt does not list them" in done.stdout
    assert (tmp_path / "flaky").read_text() == "x"


def test_a_listed_test_that_fails_twice_has_failed(tmp_path: Path) -> None:
    done = runs(tmp_path, "tests/test_*.py  # all\n", 2)
    assert done.returncode == 1
    assert "These failed twice:" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("1 failed, 1 passed, 1 error, 2 rerun in ")
    assert (tmp_path / "flaky").read_text() == "xx"


def test_more_than_three_listed_tests_that_fail_fail_the_run(tmp_path: Path) -> None:
    many = "".join(f"\ndef test_flaky_{number}(): assert times('flaky{number}') > TRIES\n" for number in range(2))
    done = runs(tmp_path, "tests/test_*.py  # all\n", 1, more=many)
    assert done.returncode == 1
    assert "at most 3 tests may run once more" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("3 failed, 1 passed, 1 error, 0 rerun in ")
    assert (tmp_path / "flaky").read_text() == "x"


def test_a_line_without_a_reason_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rerun\.txt:2: no reason"):
        load().parse_rerun_list("# head\ntests/a.py\n")


def test_every_line_of_the_list_has_a_reason() -> None:
    assert load().parse_rerun_list((Path(__file__).with_name("rerun.txt")).read_text())


def test_a_pattern_is_a_test_with_or_without_its_parameters_or_files() -> None:
    allowed = load().may_run_twice
    listed = {"tests/a.py::test_x": "", "tests/b/test_*.py": ""}
    assert allowed("tests/a.py::test_x", listed)
    assert allowed("tests/a.py::test_x[1-b]", listed)
    assert not allowed("tests/a.py::test_xy", listed)
    assert allowed("tests/b/test_any.py::test_y[2]", listed)
    assert not allowed("tests/c/test_any.py::test_y", listed)


def test_tests_of_a_file_stay_on_one_worker() -> None:
    """xdist groups by a suffix of the node id. Where pytest drops it, each worker makes every fixture."""
    argv = [sys.executable, "-m", "pytest", "-n", "1", "--dist", "loadgroup", "-v", "-p", "no:cacheprovider"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    root = RUNNER.parents[1]
    done = subprocess.run(
        [*argv, "tests/test_looping.py"], cwd=root, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "@tests/test_looping.py" in done.stdout
