"""The rank script, executed by real shells."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from looping import each
from planning import plan_for
from windlass.backends.launchers import get_launcher
from windlass.base.notation.shell import fillable, quote
from windlass.model.condition import When
from windlass.model.plan import Plan, Setting, plan_to_json
from windlass.plan.render.rank_script import EXIT_BROKEN, rank_script
from windlass.plan.render.variables import JobFacts, secrets_text

SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]
SHOW = (
    "import json,os,sys; print(json.dumps({'argv': [os.fsencode(a).hex() for a in sys.argv[1:]], "
    "'env': {k: v for k, v in os.environ.items() if v.isprintable()}, 'cpus': sorted(os.sched_getaffinity(0))}))"
)
HOSTILE = (
    "",
    " ",
    "two words",
    "'single'",
    '"double"',
    "$(touch /tmp/pwned)",
    "`id`",
    "$HOME ${HOME}",
    "new\nline",
    "trailing newline\n",
    "tab\tand\rreturn",
    "*",
    "?[a-z]*",
    "~",
    "-",
    "--",
    "-n",
    "\\",
    "a\\nb",
    "ünïcödé 漢字",
    "\udcff\udcfe",
    "; rm -rf /nonexistent",
    "a=b",
    "!history",
    "#comment",
    "{not_a_placeholder}",
    '{"json": [1, 2]}',
    "{}",
    "EOF",
    "END_OF_RANK_SCRIPT",
)


def run_script(
    plan: Plan, folder: Path, *, shell: str = "dash", rank: int = 0, **env: str
) -> subprocess.CompletedProcess[str]:
    for part in ("out", "where", "ends", "comm"):
        (folder / part).mkdir(exist_ok=True)
    facts = JobFacts(
        run_dir=str(folder),
        run_id=f"t{os.getpid()}",
        uid=os.getuid(),
        master_addr="10.0.0.1",
        master_port=29999,
        job_id="77",
    )
    text = rank_script(plan, facts)
    script = folder / "rank.sh"
    script.write_bytes(text.encode("utf-8", "surrogateescape"))
    argv = [shell, "sh", str(script)] if shell == "busybox" else [shell, str(script)]
    base = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    local = str(rank % plan.ranks_per_node)
    ranks = {"WINDLASS_RANK": str(rank), "WINDLASS_LOCAL_RANK": local, "WINDLASS_NODE_RANK": "0"}
    try:
        return subprocess.run(
            argv, env={**base, **ranks, **env}, capture_output=True, text=True, timeout=60, cwd=folder
        )
    finally:
        shutil.rmtree(f"/tmp/windlass-{os.getuid()}-t{os.getpid()}", ignore_errors=True)


def local_plan(folder: Path, *arguments: str, ranks: int = 1, **options: object) -> Plan:
    plan, _ = plan_for("workstation", sys.executable, "-c", SHOW, *arguments, ranks_per_node=ranks, **options)

    return msgspec.structs.replace(plan, request=msgspec.structs.replace(plan.request, cwd=str(folder)))


@each("shell", SHELLS)
def test_hostile_arguments_arrive_byte_for_byte(tmp_path: Path, shell: str) -> None:
    done = run_script(local_plan(tmp_path, *HOSTILE), tmp_path, shell=shell)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["argv"] == [os.fsencode(word).hex() for word in HOSTILE]


@each("shell", SHELLS)
def test_placeholders_are_filled_in_the_task(tmp_path: Path, shell: str) -> None:
    words = (
        "--rank={rank}",
        "tcp://{master_addr}:{master_port}",
        "{local_rank}/{ranks_per_node}",
        "{{rank}}",
        "{job_id}",
    )
    plan = local_plan(tmp_path, *words, ranks=2)
    done = run_script(plan, tmp_path, shell=shell, rank=1)
    got = [bytes.fromhex(word).decode() for word in json.loads(done.stdout)["argv"]]
    assert got == ["--rank=1", "tcp://10.0.0.1:29999", "1/2", "{rank}", "77"]


def test_placeholders_can_be_left_alone(tmp_path: Path) -> None:
    done = run_script(local_plan(tmp_path, "{rank}", "{{rank}}", placeholders=False), tmp_path)
    assert [bytes.fromhex(w).decode() for w in json.loads(done.stdout)["argv"]] == ["{rank}", "{{rank}}"]


@each("filled", [True, False])
def test_placeholders_are_filled_in_values_of_env(tmp_path: Path, filled: bool) -> None:
    env = (("NCCL_DEBUG_FILE", "/tmp/a $(id) ${HOME} {rank}.{local_rank} {{rank}} {x}"), ("A_TOKEN", "t-{rank}"))
    options = {"env": env, "env_prepend": (("MY_PATH", "/p/{local_rank}"),), "env_append": (("MY_PATH", "/q"),)}
    plan, secrets = plan_for(
        "workstation", sys.executable, "-c", SHOW, ranks_per_node=2, placeholders=filled, **options
    )
    plan = msgspec.structs.replace(plan, request=msgspec.structs.replace(plan.request, cwd=str(tmp_path)))
    (tmp_path / "secrets.sh").write_text(secrets_text(secrets))
    got = json.loads(run_script(plan, tmp_path, rank=1).stdout)["env"]
    log = "/tmp/a $(id) ${HOME} 1.1 {rank} {x}" if filled else env[0][1]
    assert got["NCCL_DEBUG_FILE"] == log
    assert got["MY_PATH"] == f"/p/{1 if filled else '{local_rank}'}:/q"
    assert got["A_TOKEN"] == "t-{rank}", "a secret is as it is"


def test_frameworks_find_the_variables_they_look_for(tmp_path: Path) -> None:
    done = run_script(local_plan(tmp_path, ranks=2), tmp_path, rank=1)
    env = json.loads(done.stdout)["env"]
    expected = {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "0",
        "GROUP_RANK": "0",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29999",
        "HOROVOD_RANK": "1",
        "HOROVOD_SIZE": "2",
        "PALS_LOCAL_RANKID": "1",
        "MPI_LOCALRANKID": "1",
        "MPI_LOCALNRANKS": "2",
    }
    assert {name: env.get(name) for name in expected} == expected
    assert env["TORCHELASTIC_RUN_ID"] == "windlass-77", "Lightning starts its own processes without it"


def test_a_rank_without_a_rank_says_so_and_does_not_start_the_command(tmp_path: Path) -> None:
    done = run_script(local_plan(tmp_path), tmp_path, WINDLASS_RANK="")
    assert done.returncode == EXIT_BROKEN
    assert "WINDLASS_RANK" in done.stderr and done.stdout == ""


def test_another_number_of_ranks_than_planned_is_refused(tmp_path: Path) -> None:
    done = run_script(local_plan(tmp_path, ranks=2), tmp_path, WINDLASS_WORLD_SIZE="7")
    assert done.returncode == EXIT_BROKEN
    assert "started 7 ranks, the plan has 2" in done.stderr


def test_caches_exist_before_the_command_starts(tmp_path: Path) -> None:
    plan, _ = plan_for("workstation", "sh", "-c", 'test -d "$TRITON_CACHE_DIR" && test -d "$TORCHINDUCTOR_CACHE_DIR"')

    plan = msgspec.structs.replace(plan, request=msgspec.structs.replace(plan.request, cwd=str(tmp_path)))
    assert run_script(plan, tmp_path).returncode == 0


def test_a_cache_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    link = Path(f"/tmp/windlass-{os.getuid()}-t{os.getpid()}")
    link.symlink_to(tmp_path)
    try:
        plan = local_plan(tmp_path)
        facts = JobFacts(
            run_dir=str(tmp_path), run_id=f"t{os.getpid()}", uid=os.getuid(), master_addr="a", master_port=1
        )
        (tmp_path / "rank.sh").write_text(rank_script(plan, facts))
        done = subprocess.run(
            ["sh", str(tmp_path / "rank.sh")],
            env={"PATH": os.environ["PATH"], "WINDLASS_RANK": "0"},
            capture_output=True,
            text=True,
            timeout=30,
        )
    finally:
        link.unlink()
    assert done.returncode == EXIT_BROKEN
    assert "belongs to another user" in done.stderr


def test_settings_that_the_node_decides_are_tested_on_the_node(tmp_path: Path) -> None:

    plan = local_plan(tmp_path)
    there = tmp_path / "lib with space"
    there.mkdir()
    (there / "libplugin.so").touch()
    settings_ = (
        Setting(name="FOUND", value="yes", because="b", when=When(found="libplugin.so", found_in=(str(there),))),
        Setting(name="LOST", value="yes", because="b", when=When(found="libother.so", found_in=(str(there),))),
        Setting(name="EXISTS", value="yes", because="b", when=When(exists="${HOME}/lib with space")),
        Setting(name="LD_LIBRARY_PATH", value="/front", because="b", prepend=True),
        Setting(name="GONE", value=None, because="b"),
    )
    plan = msgspec.structs.replace(plan, environment=(*plan.environment, *settings_))
    env = json.loads(run_script(plan, tmp_path, LD_LIBRARY_PATH="/back", GONE="x").stdout)["env"]
    assert env.get("FOUND") == "yes" and env.get("EXISTS") == "yes"
    assert "LOST" not in env and "GONE" not in env
    assert env["LD_LIBRARY_PATH"] == "/front:/back"


@each("there", [True, False])
def test_a_plugin_is_looked_for_after_every_path_is_set(tmp_path: Path, there: bool) -> None:
    """El Capitan's NCCL_NET stands in the site's file before the paths of the site and of the user."""
    plugin = tmp_path / "plugin"
    plugin.mkdir()
    if there:
        (plugin / "librccl-net.so").touch()
    words = (sys.executable, "-c", SHOW)
    plan, _ = plan_for("elcapitan", *words, nodes=2, env_prepend=(("LD_LIBRARY_PATH", str(plugin)),))
    plan = msgspec.structs.replace(plan, request=msgspec.structs.replace(plan.request, cwd=str(tmp_path)))
    flux = {"FLUX_TASK_RANK": "0", "FLUX_TASK_LOCAL_ID": "0", "FLUX_JOB_SIZE": "8", "FLUX_JOB_NNODES": "2"}
    done = run_script(plan, tmp_path, **flux)
    env = json.loads(done.stdout.replace("\036", "").strip().splitlines()[0])["env"]
    assert env.get("NCCL_NET") == ("AWS Libfabric" if there else None), done.stderr
    assert ("librccl-net.so is not on" in done.stderr) is not there
    second = run_script(plan, tmp_path, **{**flux, "FLUX_TASK_RANK": "1", "FLUX_TASK_LOCAL_ID": "1"})
    assert "librccl-net.so" not in second.stderr, "once, not by every rank"


@each("shell", SHELLS)
def test_folders_go_in_front_of_a_path_and_behind_it(tmp_path: Path, shell: str) -> None:
    plan = local_plan(
        tmp_path,
        env_prepend=(("LD_LIBRARY_PATH", "/a b"), ("LD_LIBRARY_PATH", "/second"), ("EMPTY", "/x")),
        env_append=(("LD_LIBRARY_PATH", "/last"), ("OTHER", "/y")),
    )
    done = run_script(plan, tmp_path, shell=shell, LD_LIBRARY_PATH="/modules/lib")
    seen = json.loads(done.stdout)["env"]
    assert seen["LD_LIBRARY_PATH"] == "/a b:/second:/modules/lib:/last"
    assert (seen["EMPTY"], seen["OTHER"]) == ("/x", "/y")


def test_secrets_come_from_their_file_and_are_in_neither_plan_nor_script(tmp_path: Path) -> None:
    token = "hf_" + "a1B2c3D4" * 4
    plan, secrets = plan_for(
        "workstation", sys.executable, "-c", SHOW, "--token", token, env=(("WANDB_API_KEY", "s3cret value"),)
    )

    plan = msgspec.structs.replace(plan, request=msgspec.structs.replace(plan.request, cwd=str(tmp_path)))
    (tmp_path / "secrets.sh").write_text(secrets_text(secrets))
    done = run_script(plan, tmp_path)
    seen = json.loads(done.stdout)
    assert bytes.fromhex(seen["argv"][1]).decode() == token
    assert seen["env"]["WANDB_API_KEY"] == "s3cret value"
    for text in (plan_to_json(plan).decode(), (tmp_path / "rank.sh").read_text()):
        assert token not in text and "s3cret" not in text


def test_a_parent_script_reports_code_and_forwards_signals(tmp_path: Path) -> None:

    body = (
        "import signal,sys,time; signal.signal(signal.SIGTERM, lambda *a: sys.exit(41)); "
        "print('up', flush=True); time.sleep(60)"
    )
    plan, _ = plan_for("workstation", sys.executable, "-c", body)
    plan = msgspec.structs.replace(plan, parent=True, request=msgspec.structs.replace(plan.request, cwd=str(tmp_path)))
    for part in ("where", "ends"):
        (tmp_path / part).mkdir()
    facts = JobFacts(run_dir=str(tmp_path), run_id=f"p{os.getpid()}", uid=os.getuid(), master_addr="a", master_port=1)
    (tmp_path / "rank.sh").write_text(rank_script(plan, facts))
    child = subprocess.Popen(
        ["sh", str(tmp_path / "rank.sh")],
        env={"PATH": os.environ["PATH"], "WINDLASS_RANK": "0", "WINDLASS_WORLD_SIZE": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None and child.stdout.readline() == "up\n"
        child.send_signal(signal.SIGTERM)
        assert child.wait(timeout=30) == 41
    finally:
        child.kill()
        child.wait(timeout=30)
        shutil.rmtree(f"/tmp/windlass-{os.getuid()}-p{os.getpid()}", ignore_errors=True)
    when, rank, _, code = (tmp_path / "ends" / "0").read_text().split("\t")
    assert (rank, code.strip()) == ("0", "41") and abs(float(when) - time.time()) < 60


@each("launcher", ["flux", "hydra", "openmpi"])
def test_a_signal_to_all_of_a_rank_is_heard_once_and_prints_no_stacks(tmp_path: Path, launcher: str) -> None:
    body = (
        "import faulthandler, signal, sys, time; faulthandler.register(signal.SIGUSR1)\n"
        "signal.signal(signal.SIGUSR2, lambda *a: print('heard', flush=True))\n"
        "signal.signal(signal.SIGTERM, lambda *a: sys.exit())\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(0.1)"
    )
    plan, _ = plan_for("workstation", sys.executable, "-c", body)
    request = msgspec.structs.replace(plan.request, cwd=str(tmp_path))
    plan = msgspec.structs.replace(plan, parent=True, launcher=launcher, request=request)
    for part in ("where", "ends"):
        (tmp_path / part).mkdir(exist_ok=True)
    facts = JobFacts(run_dir=str(tmp_path), run_id=f"g{os.getpid()}", uid=os.getuid(), master_addr="a", master_port=1)
    (tmp_path / "rank.sh").write_text(rank_script(plan, facts))
    backend = get_launcher(launcher)
    env = {"PATH": os.environ["PATH"], backend.variables.rank[0]: "0"}
    argv = ["sh", str(tmp_path / "rank.sh")]
    with (tmp_path / "stderr").open("w") as errors:
        child = subprocess.Popen(
            argv, env=env, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
    try:
        assert child.stdout is not None and child.stdout.readline() == "up\n"
        (tmp_path / "signal").write_text("USR2\n")
        os.killpg(child.pid, backend.carrier or signal.SIGUSR2)
        assert child.stdout.readline() == "heard\n"
        time.sleep(0.2)  # a second one would be on its way
        os.killpg(child.pid, signal.SIGTERM)
        assert child.stdout.read().strip("\n\x1e") == ""
    finally:
        child.kill()
        child.wait(timeout=30)
        shutil.rmtree(f"/tmp/windlass-{os.getuid()}-g{os.getpid()}", ignore_errors=True)
    assert (tmp_path / "stderr").read_text().strip("\n\x1e") == ""


@each("shell", SHELLS)
def test_the_shell_says_nothing_of_a_rank_that_a_signal_ended(tmp_path: Path, shell: str) -> None:
    for name in ("KILL", "TERM"):
        plan, _ = plan_for("workstation", "sh", "-c", f"echo mine >&2; kill -{name} $$")
        request = msgspec.structs.replace(plan.request, cwd=str(tmp_path))
        done = run_script(msgspec.structs.replace(plan, parent=True, request=request), tmp_path, shell=shell)
        assert (done.stdout, done.stderr) == ("", "mine\n"), name
        assert done.returncode == 128 + signal.Signals[f"SIG{name}"]


def test_rank_says_where_it_really_is(tmp_path: Path) -> None:
    run_script(local_plan(tmp_path), tmp_path)
    rank, _, cpus, _, pid = (tmp_path / "where" / "0").read_text().rstrip("\n").split("\t")
    assert rank == "0" and cpus and pid.isdecimal()
    plan, _ = plan_for("workstation", "sh", "-c", "echo $$")
    request = msgspec.structs.replace(plan.request, cwd=str(tmp_path))
    done = run_script(msgspec.structs.replace(plan, parent=True, request=request), tmp_path)
    assert (tmp_path / "where" / "0").read_text().split()[-1] == done.stdout.strip(), "of the rank, not of its script"


@given(st.lists(st.text(st.characters(blacklist_characters="\0", blacklist_categories=()), max_size=12), max_size=6))
@settings(max_examples=60, deadline=None)
def test_any_words_survive_quoting_by_a_real_shell(words: list[str]) -> None:
    words = [os.fsdecode(word.encode("utf-8", "surrogatepass")) for word in words]
    script = "exec printf '%s\\0' start " + " ".join(quote(word) for word in words)
    done = subprocess.run(["sh", "-c", os.fsencode(script)], capture_output=True, timeout=20)
    assert done.stdout.split(b"\0")[1:-1] == [os.fsencode(word) for word in words]


def test_text_around_placeholders_is_literal() -> None:
    assert fillable("a b{rank}$x") == "'a b'\"$w_rank\"'$x'"
    assert fillable("{unknown}") == "'{unknown}'"


@each("shell", SHELLS)
@each("kind", ["venv", "conda"])
def test_an_environment_that_only_the_node_has_is_activated_there(tmp_path: Path, shell: str, kind: str) -> None:
    target, names = tmp_path / "it's staged", ("VIRTUAL_ENV", "CONDA_PREFIX", "HOOK")
    plan = msgspec.structs.replace(local_plan(tmp_path), activate_on_node=str(target))
    gone = run_script(plan, tmp_path, shell=shell)
    assert gone.returncode == EXIT_BROKEN and "does not exist on this node" in gone.stderr
    (target / "bin").mkdir(parents=True)
    if kind == "conda":
        (target / "conda-meta").mkdir()
        (target / "etc/conda/activate.d").mkdir(parents=True)
        (target / "etc/conda/activate.d/a.sh").write_text("if broken\n")
        (target / "etc/conda/activate.d/b.sh").write_text("export HOOK=ran\n")
    seen = json.loads(run_script(plan, tmp_path, shell=shell).stdout)["env"]
    wanted = {"VIRTUAL_ENV": str(target)} if kind == "venv" else {"CONDA_PREFIX": str(target), "HOOK": "ran"}
    assert {name: seen[name] for name in names if name in seen} == wanted
    assert seen["PATH"].startswith(f"{target}/bin:")
    done = {"VIRTUAL_ENV": str(target), "PATH": os.environ["PATH"]}
    again = json.loads(run_script(plan, tmp_path, shell=shell, **done).stdout)["env"]
    assert again["PATH"] == os.environ["PATH"], "done before the launcher"
