"""`windlass runs` and `windlass nodes` on nothing, on names, and on what does not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from planning import plan_for
from unit.cli.typed import in_process, only_run, run_here, script
from windlass.errors import MachineError
from windlass.model.jsontext import to_json
from windlass.model.request import Allocation
from windlass.node.sys.identity import this_process
from windlass.plan.inputs import Secrets
from windlass.run.folder import COMMAND_FILE, FolderUse, RunFolder, make_folder
from windlass.run.supervise.runs import choose_cleanable, find_folders, find_runs, state_of


def test_an_empty_history_is_no_error(tmp_path: Path) -> None:
    listed = in_process("runs", "list", cwd=tmp_path)
    assert listed.code == 0 and f"no runs in {tmp_path / 'runs'}" in listed.stdout
    assert in_process("runs", "list", "--json", cwd=tmp_path).stdout.strip() == "[]"
    assert "nothing to remove" in in_process("runs", "clean", "--yes", cwd=tmp_path).stdout


@pytest.mark.parametrize("action", ["show", "resume", "stop"])
@pytest.mark.parametrize("name", ["nobody", "no/where", ".", "", "ünï\n"])
def test_a_run_that_does_not_exist_is_told_as_that(tmp_path: Path, action: str, name: str) -> None:
    done = in_process("runs", action, name, cwd=tmp_path)
    assert done.code == 2 and "is not a run" in done.stderr and "windlass runs list" in done.stderr


def test_a_run_is_found_by_its_name(tmp_path: Path) -> None:
    assert run_here("-r", "1", "--scheduler", "none", str(script(tmp_path, "pass")), cwd=tmp_path).code == 0
    name = only_run(tmp_path).name
    assert ": done" in in_process("runs", "show", name, cwd=tmp_path).stdout
    again = in_process("runs", "resume", name, cwd=tmp_path)
    assert again.code == 2 and "is done" in again.stderr


@pytest.mark.parametrize("words", [("-N", "0"), ("-r", "0"), ("-N", "-3")])
def test_a_run_cannot_go_on_with_nothing(tmp_path: Path, words: tuple[str, str]) -> None:
    assert run_here("-r", "1", "--scheduler", "none", str(script(tmp_path, "import sys; sys.exit(3)")), cwd=tmp_path)
    done = in_process("runs", "resume", str(only_run(tmp_path)), *words, cwd=tmp_path)
    assert done.code == 2 and f" {words[1]}" in done.stderr, done.text


def test_forgiving_all_nodes_where_none_is_avoided_says_so(tmp_path: Path) -> None:
    done = in_process("nodes", "forgive", "--all", cwd=tmp_path, env={"WINDLASS_STATE": str(tmp_path / "state")})
    assert done.code == 0 and "no node is avoided" in done.stdout
    torn = in_process("nodes", "forgive", "nid[1", cwd=tmp_path, env={"WINDLASS_STATE": str(tmp_path / "state")})
    assert torn.code == 2 and "nid[1" in torn.stderr


def test_folders_of_commands_that_are_no_runs_are_told_and_cleaned(tmp_path: Path) -> None:
    """`tune`, `stage`: while they work, when they failed, when they were killed; `runs show` without a name passes
    over them."""
    runs, state = tmp_path / "runs", tmp_path / "state"
    environ = {"WINDLASS_RUNS": str(runs), "WINDLASS_STATE": str(state)}
    names = ("tune", "stage", "lost", "now")
    done, failed, killed, now = (make_folder(None, runs, name, state_dir=state) for name in names)
    with done.used_by("tune"):
        pass
    with pytest.raises(MachineError), failed.used_by("stage"):
        raise MachineError("no room")
    gone = FolderUse(command="tune", process=this_process()._replace(started="1"))
    killed.write_bytes(COMMAND_FILE, to_json(gone))
    with now.used_by("stage"):
        states = {Path(state.path): state for state in (state_of(folder, environ) for folder in find_folders(runs))}
        assert [states[folder.path].state for folder in (done, failed, killed, now)] == [
            "done",
            "failed",
            "killed",
            "running",
        ]
        assert states[failed.path].why == "windlass stage: no room" and not find_runs(runs)
        chosen = choose_cleanable(runs, environ, older_s=0, keep=0, failed=True)
        assert {state.path for state in chosen.gone} == {str(f.path) for f in (done, failed, killed)}
    killed.write_bytes(COMMAND_FILE, b"torn")
    assert state_of(killed, environ).state == "unknown"


def test_a_submission_without_an_answer_is_told_as_failed_and_goes_with_the_failed(tmp_path: Path) -> None:
    """`runs list` called it unknown for ever; where a job came after all, its owner decides."""
    assert run_here("-r", "1", "--scheduler", "none", str(script(tmp_path, "pass")), cwd=tmp_path).code == 0
    run = only_run(tmp_path)
    RunFolder(run).failed("submit", MachineError("sbatch failed with code 1"))
    environ = {"WINDLASS_RUNS": str(tmp_path / "runs")}
    assert state_of(RunFolder(run), environ).state == "done"
    (run / "owner.json").unlink()
    state = state_of(RunFolder(run), environ)
    assert (state.state, state.why) == ("failed", "windlass submit: sbatch failed with code 1")


@pytest.mark.parametrize(
    ("fields", "state", "words"),
    [
        ("JobState=TIMEOUT Reason=TimeLimit ExitCode=0:0", "killed", "slurm reports that job 7 reached its time limit"),
        ("JobState=CANCELLED Reason=None ExitCode=0:15", "stopped", "slurm reports that job 7 was cancelled"),
        ("JobState=PREEMPTED Reason=None ExitCode=0:0", "killed", "slurm reports that job 7 was preempted"),
        ("JobState=OUT_OF_MEMORY Reason=None ExitCode=0:125", "failed", "OUT_OF_MEMORY"),
        ("JobState=PENDING Reason=Resources", "waiting", "Resources"),
        ("JobState=RUNNING Reason=None", "running", "job 7"),
    ],
)
def test_why_a_job_ended_without_a_record_is_asked_of_its_scheduler(
    tmp_path: Path, fields: str, state: str, words: str
) -> None:
    folder = make_folder(str(tmp_path / "r"), tmp_path, "x")
    alone = Allocation(scheduler="slurm", job_id="7", hosts=("nid1",))
    folder.save_plan(plan_for("generic-slurm", "true", allocation=alone)[0], Secrets())
    folder.write("job_id", "7\n")
    for name in ("scontrol", "sacct", "squeue"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\necho 'JobId=7 {fields}'\n")
        program.chmod(0o755)
    found = state_of(folder, {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"})
    assert (found.state, words in found.why) == (state, True), found
