"""Runs on this machine: their exit codes, the variables of a rank, the files of the run folder, and what reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from contract.pinned import hold, key_paths
from requirements import require_fuse
from unit.cli.typed import Ended, environment, in_process, only_run, run_here, script

# The first word says what rank 1 does at its first start. Rank 0 writes down the variables that it was given.
RANK = """
import json, os, signal, sys
print("here", flush=True)
if os.environ["RANK"] == "0":
    with open("variables.json", "w") as stream:
        json.dump(sorted(os.environ), stream)
elif os.environ.get("WINDLASS_ATTEMPT", "0") == "0":
    what = sys.argv[1]
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(int(what))
"""
GIVEN = {"LC_CTYPE", "PWD", "OLDPWD", "SHLVL"}
"""Beside the tests' own: what a shell or an interpreter sets."""


def run(folder: Path, what: str, *words: str) -> Ended:
    script(folder, RANK, "rank.py")
    return run_here("-r", "2", *words, "rank.py", what, cwd=folder)


def variables(folder: Path) -> list[str]:
    """What windlass has set for rank 0."""
    return sorted(set(json.loads((folder / "variables.json").read_text())) - set(environment(folder)) - GIVEN)


def files(run: Path) -> list[str]:
    """Files and folders of a run; which ranks there is evidence about depends on who was faster."""
    found = [path.relative_to(run).as_posix() + ("/" if path.is_dir() else "") for path in run.rglob("*")]
    return [path for path in found if "evidence/last-lines" not in path]


def keys(cwd: Path, *words: str) -> list[str]:
    done = in_process(*words, cwd=cwd)
    assert done.code == 0, done.stderr
    return sorted(key_paths(json.loads(done.stdout)))


def test_a_plain_run_keeps_its_files_variables_and_json(tmp_path: Path) -> None:
    done = run(tmp_path, "0")
    assert done.code == 0, done.stderr
    made = only_run(tmp_path)
    found = {
        "files": files(made),
        "variables of a rank": variables(tmp_path),
        "result.json": list(json.loads((made / "result.json").read_text())),
        "logs": keys(tmp_path, "logs", "--json", str(made)),
        "logs --where": keys(tmp_path, "logs", "--where", "--json", str(made)),
        "runs list": keys(tmp_path, "runs", "list", "--json"),
        "runs show": keys(tmp_path, "runs", "show", "--json", str(made)),
    }
    hold("plain-run", found)


@pytest.mark.parametrize(("what", "code"), [("3", 3), ("kill", 137)])
def test_a_run_ends_with_the_code_of_the_rank_that_failed_first(what: str, code: int, tmp_path: Path) -> None:
    done = run(tmp_path, what)
    assert done.code == code, done.stderr
    made = only_run(tmp_path)
    record = json.loads((made / "result.json").read_text())
    assert (record["exit_code"], record["failure"]["rank"]) == (code, 1)


def test_a_supervised_run_keeps_its_files_and_json(tmp_path: Path) -> None:
    done = run(tmp_path, "kill", "--restarts", "1")
    assert done.code == 0, done.stderr
    made = only_run(tmp_path)
    verdict = json.loads((made / "attempt-1" / "verdict.json").read_text())
    found = {
        "files": files(made),
        "verdict.json": sorted(key_paths(verdict)),
        "variables of a rank": variables(tmp_path),
        "runs list": keys(tmp_path, "runs", "list", "--json"),
        "runs show": keys(tmp_path, "runs", "show", "--json", str(made)),
    }
    hold("supervised-run", found)


def test_a_run_that_wants_to_be_resumed_says_so_by_its_exit_code(tmp_path: Path) -> None:
    assert run(tmp_path, "85", "--restarts", "0").code == 85


@pytest.mark.fuse
def test_a_cached_run_keeps_its_files(tmp_path: Path) -> None:
    require_fuse()
    root = tmp_path / "data"
    root.mkdir()
    (root / "x").write_text("x")
    done = run(tmp_path, "0", "--cache", str(root))
    assert done.code == 0, done.stderr
    found = {
        "files": files(only_run(tmp_path)),
        "variables of a rank": variables(tmp_path),
    }
    hold("cached-run", found)
