"""windlass run on this machine: its folder, what it hides, what it shows, and saved plans."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from looping import each
from unit.cli.typed import argv, environment, in_process, only_run, run_here, script, trust, windlass

SECRET = "correct-horse-battery"


def test_ranks_run_and_the_end_says_where_they_were(tmp_path: Path) -> None:
    script(tmp_path)
    ended = run_here("-r", "2", "--show", "all", "place.py", "a", "b c", "", cwd=tmp_path)
    assert ended.code == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == ["[0] rank 0 ['a', 'b c', '']", "[1] rank 1 ['a', 'b c', '']"]
    run = only_run(tmp_path)
    assert "all 2 ranks finished" in ended.stderr
    assert f"windlass logs {run}" in ended.stderr
    assert json.loads((run / "result.json").read_text())["outcome"] == "ok"


def test_the_folder_of_a_run_is_closed_to_others(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        assert run_here("--run-dir", "r", "--", "true", cwd=tmp_path).code == 0
    finally:
        os.umask(old)
    modes = {path.name: path.stat().st_mode & 0o777 for path in [tmp_path / "r", *(tmp_path / "r").iterdir()]}
    assert modes["r"] == 0o700
    assert modes["plan.json"] == modes["result.json"] == modes["hosts"] == 0o600
    assert all(mode & 0o077 == 0 for mode in modes.values()), modes


@each("show", ["0", "1", "all", "none", "0-1"])
def test_only_the_chosen_ranks_are_shown_and_all_are_kept(tmp_path: Path, show: str) -> None:
    script(tmp_path)
    ended = run_here("-q", "-r", "2", "--show", show, "--run-dir", "r", "place.py", cwd=tmp_path)
    shown = {line.split("]")[0].strip("[") for line in ended.stdout.splitlines()}
    assert shown == {"0": {"0"}, "1": {"1"}, "none": set()}.get(show, {"0", "1"})
    assert ended.stderr == ""
    assert sorted((tmp_path / "r/out/node-0000.log").read_text().splitlines()) == ["0: rank 0 []", "1: rank 1 []"]


def test_a_failing_rank_is_named_with_its_last_lines_and_its_code(tmp_path: Path) -> None:
    words = ("-r", "2", "--run-dir", "r", "--", "sh", "-c", 'echo "I am $RANK"; [ $RANK = 0 ] && sleep 30; exit 7')
    ended = run_here(*words, cwd=tmp_path)
    assert ended.code == 7
    assert "rank 1 on" in ended.stderr and "exited with code 7" in ended.stderr
    assert "  | I am 1" in ended.stderr
    assert "--rank 1" in ended.stderr
    failure = json.loads((tmp_path / "r/result.json").read_text())["failure"]
    assert (failure["rank"], failure["code"], failure["last_lines"]) == (1, 7, ["I am 1"])


def test_lines_that_were_on_the_terminal_are_not_repeated(tmp_path: Path) -> None:
    ended = run_here("--", "sh", "-c", "echo seen; exit 7", cwd=tmp_path)
    assert ended.stdout == "[0] seen\n"
    assert "seen" not in ended.stderr


# -- secrets --


def test_secrets_reach_the_ranks_and_nothing_else(tmp_path: Path) -> None:
    text = (
        f"import os,sys; sys.exit([os.environ['API_TOKEN'], *sys.argv[2::2]] != ['{SECRET[:7]}' + '{SECRET[7:]}'] * 3)"
    )
    script(tmp_path, text)
    words = ("--env", f"API_TOKEN={SECRET}", "place.py", "--password", SECRET, "--api-key", SECRET)
    ended = run_here("--run-dir", "r", *words, cwd=tmp_path)
    assert ended.code == 0, ended.text
    assert SECRET not in ended.text
    holders = [path for path in (tmp_path / "r").rglob("*") if path.is_file() and SECRET in path.read_text()]
    assert holders == []
    assert not (tmp_path / "r/secrets.sh").exists()


def test_while_it_runs_secrets_are_in_one_closed_file(tmp_path: Path) -> None:
    look = 'cd "$WINDLASS_RUN_DIR" && stat -c "%a" secrets.sh && grep -ls "correct[-]horse" *'
    ended = run_here("-q", "--env", f"API_TOKEN={SECRET}", "--", "sh", "-c", look, cwd=tmp_path)
    assert ended.stdout.split() == ["[0]", "600", "[0]", "secrets.sh"]


def test_a_run_that_does_not_come_to_start_keeps_no_secret(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ended = run_here(
            "--run-dir", "r", "--master-port", port, "--env", f"A_KEY={SECRET}", "--", "true", cwd=tmp_path
        )
    assert ended.code == 3
    assert f"port {port} is in use" in ended.stderr
    assert not (tmp_path / "r/secrets.sh").exists()


# -- places that cannot be used --


@each("place", ["file", "file/below", "/proc/nowhere", "/sys/nowhere/x"])
def test_a_run_folder_that_cannot_be_made_is_refused_before_anything_starts(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    ended = run_here("--run-dir", place, "--", "touch", "started", cwd=tmp_path)
    assert ended.code == 3
    assert "cannot make the run folder" in ended.stderr
    assert not (tmp_path / "started").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """64 KiB of disk."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount here: {mounted.stderr.decode()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_disk_that_fills_up_costs_output_and_not_the_run(tmp_path: Path, small_disk: Path) -> None:
    words = ("--run-dir", str(small_disk / "r"), "--show", "none", "--", "sh", "-c", "yes | head -c 300000; exit 6")
    ended = run_here(*words, cwd=tmp_path)
    assert ended.code == 6
    assert "part of the ranks' output could not be written" in ended.stderr
    assert "exited with code 6" in ended.stderr


def test_a_full_disk_is_told_before_anything_starts(tmp_path: Path, small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(bytes(60_000))
    ended = run_here("--run-dir", str(small_disk / "r"), "--", "touch", str(tmp_path / "started"), cwd=tmp_path)
    assert ended.code == 3
    assert "No space left on device" in ended.stderr
    assert not (tmp_path / "started").exists()


# -- one folder, one run --


def test_a_second_run_into_the_same_folder_is_refused(tmp_path: Path) -> None:
    assert run_here("--run-dir", "r", "--", "true", cwd=tmp_path).code == 0
    again = run_here("--run-dir", "r", "--", "true", cwd=tmp_path)
    assert again.code == 2
    assert "already contains a run" in again.stderr


def test_of_two_that_start_into_one_folder_at_once_one_runs(tmp_path: Path) -> None:
    words = argv("run", "--run-dir", "r", "--", "sh", "-c", "echo one >> ../count; sleep 0.5")
    both = [
        subprocess.Popen(
            words, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    codes = []
    for child in both:
        with child:
            _, stderr = child.communicate(timeout=60)
            codes.append((child.returncode, b"already contains a run" in stderr))
    assert sorted(codes) == [(0, False), (2, True)]


# -- saved plans --


def test_a_saved_plan_runs_in_a_folder_of_its_own(tmp_path: Path) -> None:
    script(tmp_path)
    saved = in_process("plan", "--python", sys.executable, "-r", "2", "--json", "place.py", "x", cwd=tmp_path)
    (tmp_path / "p.json").write_text(saved.stdout)
    trust("p.json", tmp_path)
    ended = windlass("run", "-q", "--plan", "p.json", "--show", "all", cwd=tmp_path)
    assert ended.code == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == ["[0] rank 0 ['x']", "[1] rank 1 ['x']"]
    assert (only_run(tmp_path) / "plan.json").exists()


def test_a_run_that_is_started_again_keeps_what_the_first_one_left(tmp_path: Path) -> None:
    text = "import os; n = len(os.listdir('r')); print('attempt with', 'attempt-1' in os.listdir('r'))"
    script(tmp_path, text)
    assert run_here("--run-dir", "r", "place.py", cwd=tmp_path).code == 0
    again = windlass("run", "-q", "--plan", "r", cwd=tmp_path)
    assert again.stdout == "[0] attempt with True\n"
    assert (tmp_path / "r/attempt-1/out/node-0000.log").read_text() == "0: attempt with False\n"
    assert (tmp_path / "r/attempt-1/result.json").exists()


def _plan_file(folder: Path, *words: str) -> dict[str, object]:
    return dict(json.loads(in_process("plan", "--json", *words, "--", "true", cwd=folder).stdout))


def test_a_plan_for_another_machine_is_refused(tmp_path: Path) -> None:
    plan = _plan_file(tmp_path)
    plan["binding"]["ranks"][0]["cpus"] = [0, 4711]  # type: ignore[index]
    (tmp_path / "p.json").write_text(json.dumps(plan))
    trust("p.json", tmp_path)
    ended = windlass("run", "--plan", "p.json", cwd=tmp_path)
    assert ended.code == 2
    assert "CPUs 4711, which this machine does not have" in ended.stderr


@each(
    ("make", "told"),
    [
        (lambda plan: None, "No such file"),
        (lambda plan: json.dumps(plan)[:500], "not a plan"),
        (lambda plan: json.dumps(plan | {"version": 99}), "newer than this windlass reads"),
        (lambda plan: json.dumps(plan | {"surprise": 1}), "surprise"),
        (lambda plan: json.dumps(plan | {"scheduler": "slurm", "launcher": "srun"}), "plan for a slurm job"),
        (lambda plan: json.dumps(plan | {"secret_words": [1]}), "hides secrets"),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused_with_a_reason(tmp_path: Path, make: object, told: str) -> None:
    text = make(_plan_file(tmp_path))  # type: ignore[operator]
    if text is not None:
        (tmp_path / "p.json").write_text(text)
        in_process("runs", "trust", "p.json", "--yes", cwd=tmp_path)
    ended = windlass("run", "--plan", "p.json", cwd=tmp_path)
    assert ended.code == 2, ended.stderr
    assert told in ended.stderr
    assert not (tmp_path / "runs").exists()


def test_a_plan_whose_secrets_are_gone_says_so(tmp_path: Path) -> None:
    assert run_here("--run-dir", "r", "--env", f"A_TOKEN={SECRET}", "--", "true", cwd=tmp_path).code == 0
    ended = windlass("run", "--plan", "r", cwd=tmp_path)
    assert ended.code == 2
    assert "hides secrets (A_TOKEN)" in ended.stderr


@each("words", [("--env", "A=1"), ("-r", "2"), ("--site", "lumi"), ("--module", "none"), ("place.py",), ("--", "true")])
def test_what_a_plan_has_decided_cannot_be_given_beside_it(tmp_path: Path, words: tuple[str, ...]) -> None:
    script(tmp_path)
    ended = in_process("run", "--plan", "p.json", *words, cwd=tmp_path)
    assert ended.code == 2
    assert "--plan" in ended.stderr


# -- what can be run --


@each(
    ("words", "shown"),
    [
        (("-m", "this"), "[0] The Zen of Python, by Tim Peters"),
        (("echo", "a command in PATH"), "[0] a command in PATH"),
        (("--", "printf", "no newline at the end"), "[0] no newline at the end"),
        (("./tool", "x"), "[0] tool x"),
        (("a b\nc/my script.py", "x\ny"), "[0] rank 0 ['x\\ny']"),
        (("package",), "[0] rank 0 []"),
    ],
)
def test_scripts_modules_commands_programs_and_packages_run(tmp_path: Path, words: tuple[str, ...], shown: str) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\necho tool $1\n")
    (tmp_path / "tool").chmod(0o755)
    for folder, name in (("a b\nc", "my script.py"), ("package", "__main__.py")):
        (tmp_path / folder).mkdir()
        script(tmp_path / folder, name=name)
    ended = run_here("-q", *words, cwd=tmp_path)
    assert ended.code == 0, ended.text
    assert ended.stdout.splitlines()[0] == shown


def test_the_name_of_a_script_is_no_argument_to_fill_in(tmp_path: Path) -> None:
    folder = tmp_path / "of {rank} $(id)"
    folder.mkdir()
    script(folder)
    ended = run_here("-q", "of {rank} $(id)/place.py", "{rank}", cwd=tmp_path)
    assert ended.stdout == "[0] rank 0 ['0']\n"


@each(("python", "told"), [("/nonexistent/python", "does not exist"), ("./place.py", "cannot be executed")])
def test_an_interpreter_that_is_not_there_is_refused_before_anything_starts(
    tmp_path: Path, python: str, told: str
) -> None:
    script(tmp_path)
    ended = in_process("run", "--python", python, "place.py", cwd=tmp_path)
    assert ended.code == 2
    assert told in ended.stderr
    assert (
        in_process("plan", "--site", "lumi", "--python", python, "place.py", cwd=tmp_path).code == 0
    )  # it may be there


@each("content", [b"\xff\xfe\n", b"a b\n", b""])
def test_a_node_file_that_is_none_is_an_error_in_words(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "nodes").write_bytes(content)
    env = {"PBS_JOBID": "7.server", "PBS_NODEFILE": str(tmp_path / "nodes")}
    ended = in_process("run", "--", "true", cwd=tmp_path, env=env)
    assert ended.code == 2
    assert str(tmp_path / "nodes") in ended.stderr


def test_the_input_of_ranks_is_empty(tmp_path: Path) -> None:
    done = subprocess.run(
        argv("run", "-q", "--", "cat"), cwd=tmp_path, env=environment(tmp_path), input=b"typed", capture_output=True
    )
    assert (done.returncode, done.stdout) == (0, b"")


def test_python_with_a_dash_runs_what_standard_input_holds_as_it_is(tmp_path: Path) -> None:
    words = ("run", "-q", "-r", "2", "--show", "all", "--", sys.executable, "-u", "-", "{rank}")
    typed = b"import sys\nprint('{rank}', '{{rank}}', sys.argv[1], sep='|')\n"
    done = subprocess.run(argv(*words), cwd=tmp_path, env=environment(tmp_path), input=typed, capture_output=True)
    said = sorted(line.split(b"] ")[-1] for line in done.stdout.splitlines())
    assert (done.returncode, said) == (0, [b"{rank}|{{rank}}|0", b"{rank}|{{rank}}|1"]), done.stderr


def test_a_python_without_the_module_is_named_with_one_that_has_it(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("import rare\n")
    plain = run_here("s.py", cwd=tmp_path)
    assert "which has no rare; install it there, or give another interpreter" in plain.stderr
    mine = tmp_path / ".venv"
    (mine / "lib/python3.11/site-packages/rare").mkdir(parents=True)
    (mine / "bin").mkdir()
    (mine / "bin/python3").symlink_to(sys.executable)
    assert f"{mine}/bin/python3 has it: --python {mine}/bin/python3" in run_here("s.py", cwd=tmp_path).stderr


def test_a_path_of_the_users_choice_does_not_break_the_rank_script(tmp_path: Path) -> None:
    ended = run_here("--env", "PATH=/nowhere", "--", "/bin/sh", "-c", "echo $PATH", cwd=tmp_path)
    assert ended.code == 0
    assert ended.stdout == "[0] /nowhere\n"
    assert f"rank 0 on {socket.gethostname().split('.')[0]}:" in ended.stderr


def test_ranks_of_another_run_around_do_not_confuse_the_place(tmp_path: Path) -> None:
    script(tmp_path)
    env = {"WINDLASS_RANK": "7", "WINDLASS_WORLD_SIZE": "9", "RANK": "3", "WINDLASS_RUN_DIR": "/nowhere"}
    ended = run_here("-q", "-r", "2", "--show", "all", "place.py", cwd=tmp_path, env=env)
    assert sorted(ended.stdout.splitlines()) == ["[0] rank 0 []", "[1] rank 1 []"]
