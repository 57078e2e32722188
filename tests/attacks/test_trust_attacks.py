"""Attacks by run folders and plans that this user did not make: they are shown, and nothing of them runs.

`cloned` is the worst case: all files are ours, as in a repository that we cloned, and only their content is not.
"""

from __future__ import annotations

import ast
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from attacks.record import record
from attacks.stranger import as_stranger, common_place, require_stranger
from attacks.test_script_attacks import changed, plans, texts_in
from planning import plan_for
from unit.cli.typed import SRC, Ended, environment, in_process, script, trust, windlass
from windlass.cli.trusting import shown_plan
from windlass.errors import MachineError, UsageError, WindlassError
from windlass.model.origin import Argument
from windlass.model.plan import AgentsPlan, HostLibs, Plan, Prologue, plan_from_json, plan_to_json
from windlass.node.cache import control
from windlass.node.sys.identity import start_of, this_process
from windlass.plan.render.batch_script import batch_script
from windlass.run.folder import make_folder, open_folder
from windlass.run.sidecars.traces import record_trace
from windlass.run.trust import NotTrustedError, key_digest, require_trust, seal_folder, trust_folder

PARTS = ("out", "where", "ends", "comm")
COMMANDS = (
    ("exec", "RUN", "--", "true"),
    ("cache", "status"),
    ("cache", "stop"),
    ("cache", "status", "RUN"),
    ("cache", "stop", "RUN"),
    ("run", "--plan", "RUN"),
    ("run", "--plan", "RUN/plan.json"),
    ("runs", "resume", "RUN"),
    ("runs", "resume", "RUN", "-r", "1"),
    ("runs", "stop", "RUN"),
    ("runs", "clean", "--failed", "--yes"),
)
SHOWN = (("runs", "list"), ("runs", "show", "RUN"), ("logs", "RUN"), ("watch", "--once", "RUN"), ("diff", "RUN", "RUN"))


def hostile_plan(mark: Path) -> Plan:
    """A plan that leaves a mark wherever one of its lines runs."""
    plan, _ = plan_for("workstation", "touch", str(mark))
    line = Prologue(line=f"touch '{mark}'", because="b")
    return msgspec.structs.replace(plan, prologue=(line,))


def cloned(project: Path, mark: Path, victim: int) -> Path:
    """A run folder as it comes with a project: agents that seem to be up, and an owner that is a process of ours."""
    run = project / "runs" / "x"
    for part in PARTS:
        (run / part).mkdir(parents=True)
    (run / "plan.json").write_bytes(plan_to_json(hostile_plan(mark)))
    agents = {
        "host": socket.gethostname(),
        "pid": victim,
        "started": start_of(victim),
        "run_id": "ab",
        "uid": os.getuid(),
    }
    (run / "agents.json").write_text(json.dumps(agents))
    boot = this_process().boot
    owner = {"host": socket.gethostname(), "pid": victim, "ticks": start_of(victim), "boot": boot, "job_id": "17"}
    (run / "owner.json").write_text(json.dumps(owner))
    (run / "batch.sh").write_text(f"#!/bin/sh\ntouch '{mark}'\n")
    (run / "job_id").write_text("17\n")
    (run / "signature.json").write_text(json.dumps({"key": "00" * 32, "seal": "11" * 32, "files": {}}))
    return run


def content(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in folder.rglob("*")
    }


def typed(argv: tuple[str, ...], run: Path, cwd: Path, **env: str) -> Ended:
    return in_process(*(word.replace("RUN", str(run)) for word in argv), cwd=cwd, env=env)


@pytest.mark.parametrize("argv", COMMANDS, ids=" ".join)
def test_nothing_of_a_run_folder_in_a_cloned_project_is_run_or_changed(tmp_path: Path, argv: tuple[str, ...]) -> None:
    mark = tmp_path / "ran"
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as victim:
        try:
            run = cloned(tmp_path, mark, victim.pid)
            before = content(run)
            done = typed(argv, run, tmp_path)
            assert victim.poll() is None, "a process that their file names was signalled"
        finally:
            victim.kill()
    assert not mark.exists(), done.text
    assert content(run) == before, done.text
    if argv[1] != "clean":
        assert done.code == 2 and "windlass runs trust" in done.stderr, done.text
    record("a run folder in a cloned project", expected="refused, unchanged", seen="refused", commands=1)


@pytest.mark.parametrize("argv", SHOWN, ids=" ".join)
def test_a_run_folder_in_a_cloned_project_can_be_shown(tmp_path: Path, argv: tuple[str, ...]) -> None:
    run = cloned(tmp_path, tmp_path / "ran", os.getpid())
    before = content(run)
    done = typed(argv, run, tmp_path)
    assert done.code == 0, done.text
    assert content(run) == before and not (tmp_path / "ran").exists()


def test_a_run_folder_of_another_user_is_refused_and_cannot_be_trusted(tmp_path: Path) -> None:
    require_stranger()
    with common_place() as place:
        as_stranger(lambda: cloned(place, place / "ran", os.getpid()))
        run = place / "runs" / "x"
        for argv in (*COMMANDS, ("runs", "trust", "RUN", "--yes")):
            done = typed(argv, run, tmp_path, WINDLASS_RUNS=str(place / "runs"))
            assert argv[1] == "clean" or (done.code == 2 and "uid 65534" in done.stderr), (argv, done.text)
        assert not (place / "ran").exists()


EDITS: dict[str, Callable[[Path], object]] = {
    "plan": lambda run: (run / "plan.json").write_bytes((run / "plan.json").read_bytes() + b" "),
    "batch script": lambda run: (run / "batch.sh").write_text("#!/bin/sh\nid\n"),
    "agents": lambda run: (run / "agents.json").write_text("{}"),
    "signature": lambda run: (run / "signature.json").unlink(),
    "link": lambda run: ((run / "plan.json").rename(run / "moved"), (run / "plan.json").symlink_to(run / "moved")),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edited_run_folder_is_not_run_before_it_is_trusted(tmp_path: Path, edit: Callable[[Path], object]) -> None:
    state = tmp_path / "state"
    folder = make_folder(str(tmp_path / "run"), tmp_path, "x", state_dir=state)
    folder.write_signed("plan.json", plan_to_json(hostile_plan(tmp_path / "ran")))
    require_trust(folder.path, state)
    edit(folder.path)
    with pytest.raises(NotTrustedError, match="windlass runs trust"):
        require_trust(folder.path, state)


def test_a_copy_of_a_signed_run_folder_is_not_trusted(tmp_path: Path) -> None:
    """Who publishes a run folder publishes its signature too: it holds for the one folder only."""
    state = tmp_path / "state"
    folder = make_folder(str(tmp_path / "run"), tmp_path, "x", state_dir=state)
    folder.write_signed("plan.json", plan_to_json(hostile_plan(tmp_path / "ran")))
    copied = tmp_path / "copied"
    subprocess.run(["cp", "-r", folder.path, copied], check=True)
    with pytest.raises(NotTrustedError, match="copied here"):
        require_trust(copied, state)
    folder.path.rename(tmp_path / "moved")
    require_trust(tmp_path / "moved", state)


def test_a_lost_secret_invalidates_signatures_and_nothing_else(tmp_path: Path) -> None:
    env = {"WINDLASS_STATE": str(tmp_path / "state")}
    assert windlass("run", "-q", "--run-dir", "r", "--", "true", cwd=tmp_path, env=env).code == 0
    (secret,) = (tmp_path / "state").glob("secret.*")
    assert secret.stat().st_mode & 0o777 == 0o600
    secret.unlink()
    done = windlass("run", "-q", "--plan", "r", cwd=tmp_path, env=env)
    assert done.code == 2 and "windlass runs trust" in done.stderr
    assert windlass("run", "-q", "--run-dir", "again", "--", "true", cwd=tmp_path, env=env).code == 0
    assert in_process("runs", "trust", "r", "--yes", cwd=tmp_path, env=env).code == 0
    assert windlass("run", "-q", "--plan", "r", cwd=tmp_path, env=env).code == 0


def test_a_state_folder_that_cannot_be_written_stops_no_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    env = {"WINDLASS_STATE": str(tmp_path / "file" / "state")}
    assert windlass("run", "-q", "--run-dir", "r", "--", "true", cwd=tmp_path, env=env).code == 0
    again = windlass("run", "--plan", "r", cwd=tmp_path, env=env)
    assert again.code == 2 and "without your secret" in again.stderr


def test_a_secret_that_others_could_read_or_made_is_not_used(tmp_path: Path) -> None:
    state = tmp_path / "state"
    folder = make_folder(str(tmp_path / "run"), tmp_path, "x", state_dir=state)
    (secret,) = state.glob("secret.*")
    old = secret.read_bytes()
    secret.chmod(0o644)
    with pytest.raises(NotTrustedError, match="without your secret"):
        require_trust(folder.path, state)
    seal_folder(folder.path, state)
    assert secret.read_bytes() != old and secret.stat().st_mode & 0o777 == 0o600
    require_trust(folder.path, state)


def test_a_job_that_cannot_see_the_secret_runs_the_plan_of_its_batch_script_alone(tmp_path: Path) -> None:
    """Another HOME on the compute nodes: the batch script proves the key of the folder, also for a plan that an earlier
    job of the same submission has completed."""
    there = {"WINDLASS_STATE": str(tmp_path / "elsewhere")}
    script(tmp_path)
    plan = in_process("plan", "--python", sys.executable, "--json", "place.py", cwd=tmp_path).stdout
    state = Path(environment(tmp_path)["WINDLASS_STATE"])
    folder = make_folder(str(tmp_path / "run"), tmp_path, "x", state_dir=state)
    folder.write_signed("plan.json", plan.encode())
    digest = key_digest(folder.path)
    for _ in range(2):
        done = windlass("run", "-q", "--plan", "run", "--signed-by", digest, cwd=tmp_path, env=there)
        assert done.code == 0, done.stderr
    require_trust(folder.path, state)
    for wrong in ("0" * 64, "ü"):
        assert windlass("run", "--plan", "run", "--signed-by", wrong, cwd=tmp_path, env=there).code == 2
    folder.part("plan.json").write_text(plan.replace("place.py", "other.py"))
    done = windlass("run", "--plan", "run", "--signed-by", digest, cwd=tmp_path, env=there)
    assert done.code == 2 and "was changed" in done.stderr


def test_a_batch_script_carries_the_digest_of_the_key(tmp_path: Path) -> None:
    plan, _ = plan_for("frontier", "true", nodes=1)
    assert batch_script(plan, "/run", ("windlass",), "abc").endswith("run --plan /run/plan.json --signed-by abc\n")
    assert "--signed-by" not in batch_script(plan, "/run", ("windlass",))


def test_a_plan_file_is_run_once_the_user_trusts_it_and_not_after_a_change(tmp_path: Path) -> None:
    script(tmp_path)
    plan = in_process("plan", "--python", sys.executable, "--json", "place.py", cwd=tmp_path).stdout
    file = tmp_path / "their plan.json"
    file.write_text(plan)
    refused = windlass("run", "--plan", file.name, cwd=tmp_path)
    assert refused.code == 2 and f"windlass runs trust '{file}'" in refused.stderr
    asked = in_process("runs", "trust", file.name, cwd=tmp_path)
    assert asked.code == 2 and "not a terminal" in asked.stderr
    shown = in_process("runs", "trust", file.name, "--yes", cwd=tmp_path)
    assert shown.code == 0 and "place.py" in shown.stderr
    assert windlass("run", "-q", "--plan", file.name, cwd=tmp_path).code == 0
    file.write_text(plan + " ")
    assert windlass("run", "--plan", file.name, cwd=tmp_path).code == 2


COMMENTS = re.compile(r"(because|note|origin\.\w+|caches\.name|remarks\..+|topology\..+)$")


def test_the_question_shows_every_text_of_a_plan_that_has_an_effect() -> None:
    """Also places of caches, libraries of the host, and what a resume plans again."""
    fields = 0
    found = plans()
    box, local = found["container"], found["local"]
    libs = HostLibs(names=("libfabric",), folders=("/host",), provider="cxi", own="/own")
    assert box.container is not None
    found["libraries"] = msgspec.structs.replace(box, container=msgspec.structs.replace(box.container, host_libs=libs))
    step = Argument(words=("srun",), because="b")
    agents = AgentsPlan(services=("cache",), interpreter="/python", launch=(step,), ready_s=1, because="b")
    found["agents"] = msgspec.structs.replace(local, agents=agents, activate_on_node="/env")
    for plan in found.values():
        body = json.loads(plan_to_json(plan))
        for path in texts_in(body):
            name = ".".join(part for part in path if isinstance(part, str))
            if COMMENTS.search(name):
                continue
            try:
                text = shown_plan(plan_from_json(json.dumps(changed(body, path, "shown/here")).encode()))
            except WindlassError:  # a name that is not in the table
                continue
            assert "shown/here" in text, name
            fields += 1
    assert fields > 400
    record("texts of a plan that is to be trusted", expected="all are shown", seen="all are shown", fields=fields)


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 2), ("\n", 2)])
def test_a_terminal_is_asked_once(tmp_path: Path, answer: str, code: int) -> None:
    script(tmp_path)
    plan = in_process("plan", "--python", sys.executable, "--json", "place.py", cwd=tmp_path).stdout
    (tmp_path / "p.json").write_text(plan)
    for number in range(2 if code == 0 else 1):
        ours, theirs = os.openpty()
        argv = [sys.executable, "-m", "windlass", "run", "-q", "--plan", "p.json"]
        with subprocess.Popen(
            argv, cwd=tmp_path, env=environment(tmp_path), stdin=theirs, stderr=theirs, stdout=subprocess.PIPE
        ) as child:
            os.close(theirs)
            if number == 0:
                os.write(ours, answer.encode())
            out, _ = child.communicate(timeout=60)
        os.close(ours)
        assert child.returncode == code
        assert (b"rank 0" in out) == (code == 0)


@pytest.mark.parametrize("words", [("runs", "resume", "RUN"), ("run", "--plan", "RUN", "--signed-by", "0" * 64)])
def test_a_command_in_a_job_never_asks(tmp_path: Path, words: tuple[str, ...]) -> None:
    """The second one is the line of a batch script, as `--until-done` submits it again."""
    run = cloned(tmp_path, tmp_path / "ran", os.getpid())
    ours, theirs = os.openpty()
    argv = [sys.executable, "-m", "windlass", *(str(run) if word == "RUN" else word for word in words)]
    env = {**environment(tmp_path), "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}
    os.write(ours, b"y\n")
    with subprocess.Popen(argv, cwd=tmp_path, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as child:
        os.close(theirs)
        child.wait(timeout=60)
    said = os.read(ours, 1 << 16)
    os.close(ours)
    assert child.returncode == 2 and b"windlass runs trust" in said and b"[y/N]" not in said, said
    assert not (tmp_path / "ran").exists()


def test_a_trusted_run_folder_of_an_earlier_version_works_again(tmp_path: Path) -> None:
    script(tmp_path)
    argv = ("run", "-q", "--run-dir", "old", "--python", sys.executable, "place.py")
    assert windlass(*argv, cwd=tmp_path).code == 0
    (tmp_path / "old" / "signature.json").unlink()
    assert windlass("run", "-q", "--plan", "old", cwd=tmp_path).code == 2
    runs = {"WINDLASS_RUNS": str(tmp_path)}
    cleaned = in_process("runs", "clean", "--yes", cwd=tmp_path, env=runs)
    assert f"windlass runs trust {tmp_path / 'old'}" in cleaned.stdout and (tmp_path / "old").exists(), cleaned.text
    trust("old", tmp_path)
    assert windlass("run", "-q", "--plan", "old", cwd=tmp_path).code == 0


def test_trusting_a_folder_again_keeps_the_key_that_jobs_in_the_queue_know(tmp_path: Path) -> None:
    state = tmp_path / "state"
    folder = make_folder(str(tmp_path / "run"), tmp_path, "x", state_dir=state)
    digest = key_digest(folder.path)
    trust_folder(folder.path, {}, state)
    assert key_digest(folder.path) == digest
    folder.part("signature.json").write_text(json.dumps({"key": "00" * 32, "seal": "11" * 32, "files": {}}))
    trust_folder(folder.path, {}, state)
    assert key_digest(folder.path) not in {digest, ""} and "0000" not in folder.part("signature.json").read_text()


@pytest.mark.parametrize("text", ["", "{", '{"key": 1}', '{"key": "zz"}', '{"key": "00", "seal": "ü"}', "[]"])
def test_a_damaged_signature_is_none(tmp_path: Path, text: str) -> None:
    folder = make_folder(str(tmp_path / "run"), tmp_path, "x", state_dir=tmp_path / "state")
    folder.part("signature.json").write_text(text)
    with pytest.raises(UsageError):
        require_trust(open_folder_path(folder.path), tmp_path / "state")


def open_folder_path(path: Path) -> Path:
    (path / "plan.json").write_text("{}")
    return open_folder(path).path


def test_site_files_of_another_user_are_named_in_a_warning(tmp_path: Path) -> None:
    require_stranger()
    with common_place() as place:
        as_stranger(lambda: (place / "site.toml").write_text('name = "theirs"\nextends = "workstation"\n'))
        as_stranger(lambda: (place / "config" / "sites").mkdir(parents=True))
        for argv, env, named in (
            (("--site", str(place / "site.toml")), {}, place / "site.toml"),
            ((), {"WINDLASS_SITE_FILE": str(place / "site.toml")}, place / "site.toml"),
            ((), {"WINDLASS_CONFIG": str(place / "config")}, place / "config" / "sites"),
        ):
            done = in_process("plan", *argv, "--", "true", cwd=tmp_path, env=env)
            assert f"{named} belongs to another user (uid 65534)" in done.text, done.text
        assert "another user" not in in_process("plan", "--", "true", cwd=tmp_path).text


def test_a_trace_is_recorded_in_no_folder_that_others_can_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who made `/tmp/windlass-UID-traces` first could stop us from recording."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / f"windlass-{os.getuid()}-traces").symlink_to("/nonexistent")
    (tmp_path / "env").mkdir()
    seen: list[str] = []
    monkeypatch.setattr(control, "start", lambda config: seen.append(config.state_dir))
    monkeypatch.setattr(control, "stop", lambda state: None)
    for _ in range(2):
        with pytest.raises(MachineError, match="no trace was recorded"):
            record_trace([str(tmp_path / "env")], ["true"], dict(os.environ), tmp_path / "traces", 30)
    assert len(set(seen)) == 2


def test_every_command_that_makes_a_run_folder_signs_it() -> None:
    """But for folders inside of a run folder, and those that the run in them signs."""
    inner = {"diagnose/doctor/ranks.py", "bench/runner.py", "run/folder.py"}
    wrong = []
    for path in sorted(SRC.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("make_folder"):
                named = {keyword.arg for keyword in node.keywords}
                if "state_dir" not in named and str(path.relative_to(SRC / "windlass")) not in inner:
                    wrong.append(f"{path}:{node.lineno}")
    assert not wrong
