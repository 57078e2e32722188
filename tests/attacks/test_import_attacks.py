"""Attacks by files of the current folder: none of them is imported by windlass or by a Python that it starts."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from interpreters import NODE, interpreters

from attacks.record import record
from windlass.agents.ship import program_argv
from windlass.base.procs.command import own_argv

PYTHONS = interpreters(NODE)
SRC = Path(__file__).parents[2] / "src" / "windlass"
BAIT = ("msgspec", "mpi4py", "numpy", "prometheus_client", "rich", "tomli", "torch", "windlass")
COMMANDS = (
    ("plan", "--cache", "auto", "--", sys.executable, "train.py"),
    ("plan", "--site", "frontier", "--nodes", "2", "--time", "1h", "--account", "a", "train.py"),
    ("run", "--", "true"),
    ("run", "--watch", "--restarts", "1", "--", "true"),
    ("run", "--check", "--", "true"),
    ("doctor", "--quick"),
    ("bugreport", "--output", "out.tar.gz"),
    ("selftest", "--bundle", "bundle.tar.gz"),
    ("tune", "--objective", "seconds", "--repeats", "2", "--", "true"),
    ("env", "create", "ENV", "--torch", "none", "--site", "workstation"),
    ("stage", "train.py", "--to", "TO"),
    ("sites", "detect"),
    ("runs", "list"),
)


def bait(folder: Path) -> Path:
    """Fill the folder with a module of every name; each leaves a mark when it is imported. Returns the mark."""
    mark = folder.with_name("imported")
    names = {*sys.stdlib_module_names, *BAIT} - set(sys.builtin_module_names) - {"__main__"}
    for name in names:
        (folder / f"{name}.py").write_text(f"open({str(mark)!r}, 'a').write({name + ' '!r})\nraise SystemExit(99)\n")
    return mark


def hostile(tmp_path: Path) -> tuple[Path, Path, dict[str, str]]:
    folder = tmp_path / "cloned project"
    folder.mkdir()
    (folder / "train.py").write_text("print('trained')\n")
    home = {"HOME": str(tmp_path), "WINDLASS_RUNS": str(tmp_path / "runs"), "WINDLASS_CONFIG": str(tmp_path / "none")}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WINDLASS_", "PYTHON"))}
    return folder, bait(folder), {**kept, **home}


@pytest.mark.apart
@pytest.mark.parametrize("argv", COMMANDS, ids=[" ".join(argv[:2]) for argv in COMMANDS])
def test_no_command_imports_a_file_of_the_current_folder(tmp_path: Path, argv: tuple[str, ...]) -> None:
    folder, mark, env = hostile(tmp_path)
    words = [str(tmp_path / word) if word in {"ENV", "TO"} else word for word in argv]
    done = subprocess.run(
        [*own_argv(), *words], cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert not mark.exists(), f"{mark.read_text()}: {done.stderr}"
    assert "Traceback" not in done.stderr
    assert done.returncode != 99
    record("modules in the current folder", expected="none is imported", seen="none was", commands=1)


@pytest.mark.parametrize(
    "argv",
    [
        (*own_argv("windlass.bench.io.rank"), "{}"),
        program_argv("windlass.node.probe.main:main", {"place": [], "first": 0}),
    ],
    ids=["a module", "a program on a node"],
)
def test_what_windlass_starts_imports_no_file_of_the_current_folder(tmp_path: Path, argv: tuple[str, ...]) -> None:
    folder, mark, env = hostile(tmp_path)
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert not mark.exists(), done.stderr
    assert done.returncode != 99


def test_a_batch_script_imports_no_file_of_the_folder_that_it_was_submitted_from(tmp_path: Path) -> None:
    folder, mark, env = hostile(tmp_path)
    argv = ("submit", "--dry-run", "--site", "frontier", "--nodes", "1", "--time", "1h", "--account", "a", "train.py")
    done = subprocess.run([*own_argv(), *argv], cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    script = folder / "job"
    script.write_text("".join(line for line in done.stdout.splitlines(True) if not line.startswith("module ")))
    subprocess.run(["bash", script], cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    assert "start.py" in done.stdout, done.stderr
    assert not mark.exists()


def test_python_dash_m_windlass_imports_no_file_of_the_current_folder_itself(tmp_path: Path) -> None:
    """Python imports `runpy` and the package before windlass runs; from there on the folder is out of the way."""
    folder, mark, env = hostile(tmp_path)
    own = {"argparse", "json", "msgspec", "shutil", "socket", "subprocess", "tomllib"}
    for path in folder.glob("*.py"):
        if path.stem not in own:
            path.unlink()
    done = subprocess.run(
        [sys.executable, "-m", "windlass", "plan", "--", "true"],
        cwd=folder, env=env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert not mark.exists(), done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS)
def test_every_python_starts_a_module_without_the_current_folder(tmp_path: Path, python: str) -> None:
    folder, mark, env = hostile(tmp_path)
    package = tmp_path / "lib" / "windlass"
    package.mkdir(parents=True)
    shutil.copy(SRC / "start.py", package)
    (package / "__init__.py").write_text("")
    (package / "said.py").write_text("import json, runpy, sys\nprint(json.dumps(sys.argv[1:]))\n")
    for more in ({}, {"PYTHONSAFEPATH": "1"}):
        done = subprocess.run(
            [python, package / "start.py", "windlass.said", "a", "b"],
            cwd=folder, env={**env, **more}, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.stdout == '["a", "b"]\n', done.stderr
        assert not mark.exists()


@pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS)
def test_the_script_of_an_environment_imports_no_file_of_the_current_folder(tmp_path: Path, python: str) -> None:
    folder, mark, env = hostile(tmp_path)
    plan = ("env", "plan", "--site", "workstation", "--torch", "none", "--python", python, "--format", "script")
    done = subprocess.run([*own_argv(), *plan], cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    assert "-m venv" in done.stdout, done.stderr
    script = done.stdout.replace(" -m venv", " -m venv --without-pip")
    env["ENV"] = "made here"
    made = subprocess.run(["bash", "-c", script], cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    assert not mark.exists() and made.returncode == 0, made.stderr
    assert (folder / "made here" / "bin" / "python").exists()


NO_FOLDER = {
    "diagnose/doctor/plan_checks.py": "only compared",
    "node/checks/rank.py": "the code removes it first",
    "node/ray/cluster.py": "the code removes it first",
    "plan/command.py": "the user's own module",
    "run/auto_cache.py": "the code removes it first",
    "run/sidecars/ahead.py": "the code removes it first",
}


def test_every_python_that_windlass_starts_leaves_the_current_folder_out() -> None:
    """`-c` and `-m` put the current folder first; `-I` does not. `start.py` and scripts put their own."""
    found = {}
    for path in sorted(SRC.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Tuple | ast.List):
                words = [ast.unparse(element) for element in node.elts]
                for first, second in pairwise(words):
                    if re.search("python|executable", first) and second in {"'-c'", "'-m'"}:
                        found[str(path.relative_to(SRC))] = f"{node.lineno}: {first} {second}"
    assert set(found) == set(NO_FOLDER), found
