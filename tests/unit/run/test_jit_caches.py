"""Caches of a run on this node: claimed, saved, removed; those of killed runs swept, and nobody else's."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import msgspec
import pytest

from planning import plan_for
from unit.cli.typed import run_here
from windlass.backends.launchers import get_launcher
from windlass.model.jsontext import from_json, to_json
from windlass.model.plan import Plan
from windlass.node.sys.identity import Process, this_process
from windlass.plan.render.rank_script import rank_script
from windlass.plan.render.variables import JobFacts
from windlass.run.folder import RunFolder, make_folder
from windlass.run.jit_caches import (
    UncleanNodes,
    claim_caches,
    finish_caches,
    leftover_caches,
    local_parent,
    remove_caches,
)
from windlass.run.output import OutputView
from windlass.run.trust import seal_file


def _run(tmp_path: Path, **options: object) -> tuple[Plan, JobFacts, OutputView, io.StringIO]:
    plan, _ = plan_for("workstation", "true", **options)
    facts = JobFacts(run_dir=str(tmp_path), run_id="abc", uid=os.getuid())
    err = io.StringIO()
    return msgspec.structs.replace(plan, cache_root="${ROOT}/local"), facts, OutputView(None, io.StringIO(), err), err


def _environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "local").mkdir(exist_ok=True)
    return {"ROOT": str(tmp_path)}


def test_the_folder_is_ours_alone_and_says_whose(tmp_path: Path) -> None:
    plan, facts, _, _ = _run(tmp_path)
    environ = _environ(tmp_path)
    claim_caches(plan, RunFolder(tmp_path), facts, environ)
    parent = local_parent(plan, facts, environ)
    assert parent == tmp_path / "local" / f"windlass-{os.getuid()}-abc"
    assert parent.stat().st_mode & 0o777 == 0o700
    assert (parent / ".owner").read_text().split()[:2] == [socket.gethostname(), str(os.getpid())]
    remove_caches(plan, facts, environ)
    assert not parent.exists()


def test_what_killed_runs_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    plan, facts, _, _ = _run(tmp_path)
    environ = _environ(tmp_path)
    local = tmp_path / "local"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    host = socket.gethostname()
    owners = {
        "dead": f"{host} {ended.pid} 12345\n",
        "reused": f"{host} {os.getpid()} 1\n",  # the number lives, but is another process
        "elsewhere": f"otherhost {ended.pid} 12345\n",
        "torn": "half",
    }
    for name, owner in owners.items():
        folder = local / f"windlass-{os.getuid()}-{name}"
        folder.mkdir()
        (folder / ".owner").write_text(owner)
    (local / f"windlass-{os.getuid()}-nobody").mkdir()
    (local / "windlass-99999-dead").mkdir()
    claim_caches(plan, RunFolder(tmp_path), facts, environ)
    left = {path.name.rpartition("-")[2] for path in local.iterdir()}
    assert left == {"abc", "elsewhere", "torn", "nobody", "dead"}  # that `dead` is of another user
    assert not (local / f"windlass-{os.getuid()}-dead").exists()


def test_a_link_in_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    plan, facts, view, _ = _run(tmp_path)
    environ = _environ(tmp_path)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    local_parent(plan, facts, environ).symlink_to(precious)
    folder = make_folder(str(tmp_path / "r"), tmp_path, "x")
    finish_caches(plan, folder, facts, environ, view)
    remove_caches(plan, facts, environ)
    assert (precious / "file").exists()


def test_caches_are_saved_as_a_whole_and_then_removed(tmp_path: Path) -> None:
    plan, facts, view, err = _run(tmp_path, keep_caches=str(tmp_path / "kept"))
    environ = _environ(tmp_path)
    claim_caches(plan, RunFolder(tmp_path), facts, environ)
    parent = local_parent(plan, facts, environ)
    (parent / "n0/triton").mkdir(parents=True)
    (parent / "n0/triton/kernel").write_text("code")
    (parent / "n0/.ready").touch()
    finish_caches(plan, make_folder(str(tmp_path / "r"), tmp_path, "x"), facts, environ, view)
    assert not parent.exists()
    with tarfile.open(tmp_path / "kept/caches.tar") as archive:
        assert archive.getnames() == ["triton", "triton/kernel"]
    assert err.getvalue() == ""


def test_a_place_that_cannot_keep_them_is_told_and_costs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    plan, facts, view, err = _run(tmp_path, keep_caches=str(tmp_path / "file"))
    environ = _environ(tmp_path)
    claim_caches(plan, RunFolder(tmp_path), facts, environ)
    (local_parent(plan, facts, environ) / "n0").mkdir()
    finish_caches(plan, make_folder(str(tmp_path / "r"), tmp_path, "x"), facts, environ, view)
    assert "the caches could not be saved" in err.getvalue()
    assert not local_parent(plan, facts, environ).exists()


def test_caches_of_a_first_node_that_is_another_one_are_saved_by_a_step_there(tmp_path: Path) -> None:
    """salloc leaves people on the login node, whose local folder has none of them."""
    plan, facts, view, err = _run(tmp_path, keep_caches=str(tmp_path / "kept"))
    environ = _environ(tmp_path) | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    node = tmp_path / "node/local" / f"windlass-{os.getuid()}-abc" / "n0/miopen"
    node.mkdir(parents=True)
    (node / "kernel").write_text("code")
    (node.parent / ".ready").touch()
    (tmp_path / "bin").mkdir()
    srun = tmp_path / "bin/srun"
    srun.write_text(f'#!/bin/sh\nwhile [ "$1" != /bin/sh ]; do shift; done\nROOT={tmp_path}/node exec "$@"\n')
    srun.chmod(0o755)
    plan = msgspec.structs.replace(plan, launcher="srun", hosts="othernode")
    claim_caches(plan, RunFolder(tmp_path), facts, environ)
    finish_caches(plan, make_folder(str(tmp_path / "r"), tmp_path, "x"), facts, environ, view)
    assert err.getvalue() == ""
    with tarfile.open(tmp_path / "kept/caches.tar") as archive:
        assert sorted(archive.getnames()) == [".", "./miopen", "./miopen/kernel"]
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {"caches.tar", "caches.tar.signature"}
    assert not node.parent.parent.exists(), "and removed there"


def test_caches_go_from_one_run_to_the_next(tmp_path: Path) -> None:
    words = ("-q", "-r", "2", "--show", "all", "--keep-caches", "kept", "--", "sh", "-c")
    first = run_here(*words, "echo $RANK > $TRITON_CACHE_DIR/of-$RANK", cwd=tmp_path)
    assert first.code == 0, first.text
    second = run_here(*words, "ls $TRITON_CACHE_DIR | tr '\\n' ' '; echo", cwd=tmp_path)
    assert sorted(second.stdout.splitlines()) == ["[0] of-0 of-1 ", "[1] of-0 of-1 "]


def test_files_of_a_kept_cache_have_their_times_to_the_nanosecond(tmp_path: Path) -> None:
    """Build tools write the times down and build again where they differ."""
    set_time = "import os, sys; os.utime(sys.argv[1], ns=(1700000000123456789,) * 2)"
    words = ("-q", "--keep-caches", "kept", "--", "sh", "-c")
    make = f'touch $TRITON_CACHE_DIR/object; {sys.executable} -c "{set_time}" $TRITON_CACHE_DIR/object'
    assert run_here(*words, make, cwd=tmp_path).code == 0
    second = run_here(
        *words,
        f'{sys.executable} -c "import os, sys; print(os.stat(sys.argv[1]).st_mtime_ns)" $TRITON_CACHE_DIR/object',
        cwd=tmp_path,
    )
    assert second.stdout.splitlines() == ["[0] 1700000000123456789"], second.text


def test_a_damaged_archive_is_told_and_the_ranks_go_on(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/caches.tar").write_text("this is no archive")
    seal_file(tmp_path / "kept/caches.tar", tmp_path, Path(os.environ["WINDLASS_STATE"]))
    ended = run_here("-q", "-r", "2", "--keep-caches", "kept", "--", "sh", "-c", "echo here", cwd=tmp_path)
    assert ended.code == 0
    assert "cannot unpack" in ended.stdout
    assert "[0] here" in ended.stdout


@pytest.mark.parametrize(
    "name", ["TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "MPLCONFIGDIR"]
)
def test_every_cache_is_there_before_the_command_starts_and_gone_after_it(tmp_path: Path, name: str) -> None:
    ended = run_here("-q", "--", "sh", "-c", f'test -d "${name}" && echo "${name}"', cwd=tmp_path)
    assert ended.code == 0
    folder = Path(ended.stdout.removeprefix("[0] ").strip())
    assert folder.parent.name == "n0"
    assert not folder.parent.parent.exists()


# What ninja and torch's extensions do: what was built is good where path and time are those that were written down.
_BUILD = """
import json, os, pathlib
folder = pathlib.Path(os.environ["TORCH_EXTENSIONS_DIR"]) / "mine"
folder.mkdir(exist_ok=True)
log, built = folder / "log", folder / "mine.so"
def state():
    return [str(built), built.stat().st_mtime_ns]
if log.exists() and built.exists() and json.loads(log.read_text()) == state():
    print("nothing to build in", folder)
else:
    built.write_text("code")
    log.write_text(json.dumps(state()))
    print("built in", folder)
"""


def test_an_extension_that_was_built_is_found_by_the_same_path_in_the_next_run(tmp_path: Path) -> None:
    (tmp_path / "build.py").write_text(_BUILD)
    words = ("-q", "--keep-caches", "kept", "--python", sys.executable, "build.py")
    first = run_here(*words, cwd=tmp_path)
    second = run_here(*words, cwd=tmp_path)
    assert first.stdout.startswith("[0] built in "), first.text
    assert second.stdout == first.stdout.replace("built in", "nothing to build in"), second.text
    kept = Path(first.stdout.split()[-1]).parents[2]
    assert kept.name == f"windlass-{os.getuid()}-kept"


def test_two_runs_that_keep_caches_in_one_place_do_not_share_a_folder(tmp_path: Path) -> None:
    plan, facts, view, _ = _run(tmp_path, keep_caches=str(tmp_path / "kept"))
    environ = {**os.environ, **_environ(tmp_path), "WINDLASS_RANK": "0"}
    found = []
    for run_id in ("one", "two"):
        mine = msgspec.structs.replace(facts, run_id=run_id, master_addr="h", master_port=1, job_id="j")
        claim_caches(plan, RunFolder(tmp_path), mine, environ)
        request = msgspec.structs.replace(plan.request, cwd=str(tmp_path))
        shown = msgspec.structs.replace(plan, request=request, command=("sh", "-c", "echo $WINDLASS_CACHE_DIR"))
        names = get_launcher("local").variables
        own = {names.rank[0]: "0", names.local_rank[0]: "0", names.node_rank[0]: "0", names.world_size[0]: "1"}
        (tmp_path / "where").mkdir(exist_ok=True)
        done = subprocess.run(
            ["sh", "-c", rank_script(shown, mine)], env=environ | own, capture_output=True, text=True, timeout=30
        )
        assert done.returncode == 0, done.stderr
        found.append(Path(done.stdout.strip()))
    assert [path.parent.name for path in found] == [f"windlass-{os.getuid()}-kept", f"windlass-{os.getuid()}-two"]
    for run_id in ("two", "one"):
        mine = msgspec.structs.replace(facts, run_id=run_id)
        finish_caches(plan, make_folder(str(tmp_path / run_id), tmp_path, "x"), mine, environ, view)
    assert list((tmp_path / "local").iterdir()) == []


def _on_two_nodes(tmp_path: Path, run_id: str = "abc1", **changes: object) -> tuple[Plan, JobFacts, dict[str, str]]:
    """A run on this node and another one, whose windlass has created its caches here."""
    plan, facts, _, _ = _run(tmp_path)
    facts = msgspec.structs.replace(facts, run_id=run_id)
    hosts = f"{socket.gethostname()},othernode"
    changes = {"launcher": "srun", "scheduler": "slurm", "hosts": hosts, "nodes": 2, "job_id": "7", **changes}
    plan = msgspec.structs.replace(plan, **changes)
    environ = _environ(tmp_path) | {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "WINDLASS_STATE": f"{tmp_path}/state",
    }
    (tmp_path / "bin").mkdir(exist_ok=True)
    claim_caches(plan, RunFolder(tmp_path / run_id), facts, environ)
    return plan, facts, environ


def _program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(("step", "left"), [("exit 0", []), ("exit 1", ["abc1"])])
def test_a_run_whose_other_nodes_were_not_cleaned_is_remembered(tmp_path: Path, step: str, left: list[str]) -> None:
    plan, facts, environ = _on_two_nodes(tmp_path)
    _program(tmp_path / "bin/srun", step)
    _, _, view, _ = _run(tmp_path)
    folder = make_folder(str(tmp_path / "r"), tmp_path, "x")
    finish_caches(plan, folder, facts, environ, view, in_haste=True)
    assert [path.name for path in (tmp_path / "state/unclean").iterdir()] == left
    assert not local_parent(plan, facts, environ).exists(), "this node's are gone either way"


def _claimed_by(tmp_path: Path, environ: dict[str, str], run_id: str, process: Process) -> None:
    """Rewrite the file of a run as if another windlass process had claimed its caches."""
    file = tmp_path / "state/unclean" / run_id
    entry = from_json(file.read_bytes(), UncleanNodes)
    file.write_bytes(to_json(msgspec.structs.replace(entry, process=process)))


@pytest.mark.parametrize(
    ("where", "state", "over"),
    [
        ("here, alive", "", False),
        ("here, gone", "", True),
        ("elsewhere", "JobId=7 JobState=CANCELLED Reason=None Restarts=0", True),
        ("elsewhere", "JobId=7 JobState=RUNNING Reason=None Restarts=0", False),
        ("elsewhere", "JobId=7 JobState=COMPLETING Reason=None Restarts=0", False),
        ("elsewhere", "slurm_load_jobs error: Unable to contact slurm controller", False),
        ("elsewhere, in the same job", "", False),
    ],
)
def test_caches_of_a_run_are_left_over_if_it_is_certainly_over(
    tmp_path: Path, where: str, state: str, over: bool
) -> None:
    _, _, environ = _on_two_nodes(tmp_path, "abc1")
    me = this_process()
    if where == "here, gone":
        _claimed_by(tmp_path, environ, "abc1", me._replace(started="1"))
    elif where.startswith("elsewhere"):
        _claimed_by(tmp_path, environ, "abc1", Process("login1", 17, "1", "another boot"))
    _program(tmp_path / "bin/scontrol", f"echo '{state}'")
    _program(tmp_path / "bin/sacct", "exit 1")
    job = "7" if where.endswith("same job") else "8"
    plan, facts, _ = _on_two_nodes(tmp_path, "abc2", job_id=job)
    expected = (("abc1", str(tmp_path / "abc1")),) if over else ()
    assert leftover_caches(plan, facts, environ) == expected
    elsewhere = msgspec.structs.replace(plan, hosts="third,fourth")
    assert leftover_caches(elsewhere, facts, environ) == (), "those nodes have none of it"


@pytest.mark.parametrize("running", [False, True])
def test_the_first_rank_of_a_node_removes_caches_of_a_killed_run_unless_its_processes_live(
    tmp_path: Path, running: bool
) -> None:
    plan, facts, _, _ = _run(tmp_path)
    environ = {**os.environ, **_environ(tmp_path), "WINDLASS_RANK": "0"}
    old = tmp_path / "local" / f"windlass-{os.getuid()}-dead1"
    (old / "n0").mkdir(parents=True)
    (tmp_path / "where").mkdir()
    facts = msgspec.structs.replace(
        facts, master_addr="h", master_port=1, job_id="j", leftovers=(("dead1", "/runs/it's old"),)
    )
    request = msgspec.structs.replace(plan.request, cwd=str(tmp_path))
    plan = msgspec.structs.replace(plan, request=request, command=("true",))
    names = get_launcher("local").variables
    own = {names.rank[0]: "0", names.local_rank[0]: "0", names.node_rank[0]: "0", names.world_size[0]: "1"}
    rank = subprocess.Popen(["sleep", "60"], env={"WINDLASS_RUN_DIR": "/runs/it's old" if running else "/runs/other"})
    try:
        done = subprocess.run(
            ["sh", "-c", rank_script(plan, facts)], env=environ | own, capture_output=True, text=True, timeout=30
        )
    finally:
        rank.kill()
        rank.wait()
    assert done.returncode == 0, done.stderr
    assert old.exists() is running


def test_the_nodes_on_which_leftovers_were_removed_are_forgotten(tmp_path: Path) -> None:
    _, _, environ = _on_two_nodes(tmp_path, "abc1", hosts="othernode,third")
    plan, facts, _ = _on_two_nodes(tmp_path, "abc2")
    facts = msgspec.structs.replace(facts, leftovers=(("abc1", str(tmp_path / "abc1")),))
    _program(tmp_path / "bin/srun", "exit 0")
    _, _, view, _ = _run(tmp_path)
    finish_caches(plan, make_folder(str(tmp_path / "r"), tmp_path, "x"), facts, environ, view)
    left = from_json((tmp_path / "state/unclean/abc1").read_bytes(), UncleanNodes)
    assert left.hosts == ("third",)
    assert not (tmp_path / "state/unclean/abc2").exists()
