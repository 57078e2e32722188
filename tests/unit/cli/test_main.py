"""The command itself: help, mistakes, streams that are not there, interrupts before anything runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from unit.cli.typed import argv, environment, in_process, run_here, script, windlass
from waiting import wait_until
from windlass.cli.main import main

COMMANDS = ("run", "plan", "submit", "explain", "diff", "sites", "logs", "selftest")


@pytest.mark.parametrize("words", [("--help",), ("help",), ("-h",)])
def test_help_names_every_command(tmp_path: Path, words: tuple[str, ...]) -> None:
    ended = in_process(*words, cwd=tmp_path)
    assert ended.code == 0
    assert all(f"\n  {name} " in ended.stdout for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_that_says_what_it_is(tmp_path: Path, command: str) -> None:
    ended = in_process(command, "--help", cwd=tmp_path)
    assert ended.code == 0
    assert ended.stdout.startswith(f"usage: windlass {command} ")
    assert len(ended.stdout.splitlines()[2]) > 20  # a sentence


def test_the_version_is_that_of_the_package(tmp_path: Path) -> None:
    assert in_process("--version", cwd=tmp_path).stdout.startswith("windlass 0.")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("runn", "x.py"), "did you mean 'run'?"),
        (("run", "--ranks-per-nod", "2", "x.py"), "did you mean --ranks-per-node?"),
        (("run", "--nproc_per_node=4", "x.py"), "did you mean --ranks-per-node?"),
        (("run", "--nnodes", "2", "x.py"), "did you mean --nodes?"),
        (("submit", "--walltime=1h", "x.py"), "did you mean --time?"),
        (("plan", "--cpubind=none", "x.py"), "did you mean --cpu-bind?"),
        (("sites", "lst"), "choose from"),
        (("sites", "show", "lumy"), "did you mean 'lumi'?"),
        (("plan", "--site", "forntier", "x.py"), "did you mean 'frontier'?"),
        (("plan", "--scheduler", "slrum", "x.py"), "did you mean 'slurm'?"),
        (("plan", "--launcher", "sruns", "x.py"), "did you mean 'srun'?"),
        (("plan", "--devices", "two", "x.py"), "choose from"),
        (("env", "plan", "--sit", "lumi"), "did you mean --site? `windlass env plan --help`"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_nearest(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    script(tmp_path, name="x.py")
    ended = in_process(*words, cwd=tmp_path)
    assert ended.code == 2
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_option_that_is_like_no_other_gets_no_suggestion(tmp_path: Path) -> None:
    ended = in_process("run", "--foo", "x.py", cwd=tmp_path)
    assert ended.code == 2
    assert "--foo" in ended.stderr and "did you mean" not in ended.stderr


def test_an_error_says_what_and_what_to_do(tmp_path: Path) -> None:
    ended = in_process("run", "nothere.py", cwd=tmp_path)
    assert ended.code == 2
    assert ended.stderr.splitlines() == [
        "windlass: error: script nothere.py does not exist",
        f"  hint: looked in {tmp_path}",
    ]
    assert ended.stdout == ""


def test_a_reader_that_goes_away_is_no_error_to_tell(tmp_path: Path) -> None:
    script(tmp_path)
    text = f"{' '.join(argv('plan', 'place.py'))} | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", text], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True)
    assert done.stderr == ""
    # The pipe takes a short plan as a whole; then it is 0.
    assert done.stdout.splitlines()[1] in {"0", str(128 + signal.SIGPIPE)}


def test_output_that_cannot_be_written_is_an_error_in_words(tmp_path: Path) -> None:
    script(tmp_path)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            argv("plan", "place.py"), cwd=tmp_path, env=environment(tmp_path), stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == 3
    said = "windlass: error: cannot write the output: No space left on device\n  hint: is the disk full?\n"
    assert done.stderr.decode() == said


def test_a_full_disk_behind_the_output_does_not_end_a_run(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            argv("run", "--run-dir", "r", "--", "sh", "-c", "echo first; sleep 0.2; echo last; exit 4"),
            cwd=tmp_path,
            env=environment(tmp_path),
            stdout=full,
            stderr=subprocess.PIPE,
        )
    assert done.returncode == 4
    assert b"cannot write to the standard output" in done.stderr
    assert (tmp_path / "r/out/node-0000.log").read_text() == "0: first\n0: last\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_matter(tmp_path: Path, closed: str) -> None:
    script(tmp_path)
    words = " ".join(argv("run", "--python", sys.executable, "--run-dir", "r", "place.py"))
    done = subprocess.run(["sh", "-c", f"{words} {closed}"], cwd=tmp_path, env=environment(tmp_path), timeout=60)
    assert done.returncode == 0
    assert (tmp_path / "r/out/node-0000.log").read_text() == "0: rank 0 []\n"


def test_a_folder_that_was_removed_is_named_as_the_reason(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    text = f"rmdir {gone}; {' '.join(argv('run', '--', 'true'))}"
    done = subprocess.run(["sh", "-c", text], cwd=gone, env=environment(tmp_path), capture_output=True, text=True)
    assert done.returncode == 3
    assert "the current folder no longer exists" in done.stderr


def test_without_a_home_everything_works(tmp_path: Path) -> None:
    env = environment(tmp_path, HOME="/nonexistent")
    env.pop("WINDLASS_CONFIG")
    for words in (("sites", "list"), ("run", "--", "true")):
        done = subprocess.run(argv(*words), cwd=tmp_path, env=env, capture_output=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_arguments_that_the_locale_cannot_write_arrive_and_are_shown_somehow(tmp_path: Path, locale: str) -> None:
    text = "import os,sys; sys.exit(os.fsencode(sys.argv[1]) != bytes.fromhex('6772c3bc20ff'))"
    env = {"LC_ALL": locale, "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    word = os.fsdecode(b"gr\xc3\xbc \xff")
    ended = run_here(str(script(tmp_path, text)), word, cwd=tmp_path, env=env)
    assert ended.code == 0, ended.text
    for words in (("plan",), ("plan", "--json")):
        shown = windlass(*words, "place.py", word, cwd=tmp_path, env=env)
        assert shown.code == 0, shown.text
        assert "Traceback" not in shown.stderr


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({"WINDLASS_SITE": "lumy"}, "did you mean 'lumi'?"),
        ({"WINDLASS_SITE_FILE": "/nowhere.toml"}, "/nowhere.toml"),
        ({"WINDLASS_ALLOW_LOGIN": "perhaps"}, "set it to 1 or leave it unset"),
        ({"WINDLASS_RUNS": "/dev/null"}, "cannot make the run folder"),
    ],
)
def test_nonsense_in_the_settings_is_told(tmp_path: Path, env: dict[str, str], told: str) -> None:
    ended = windlass("run", "--", "true", cwd=tmp_path, env=env)
    assert ended.code in {2, 3}
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_planning_ends_without_a_traceback_and_without_a_secret(
    tmp_path: Path, sig: signal.Signals
) -> None:
    """The first node of the job is asked what it has, and does not answer; then somebody loses patience."""
    slow = tmp_path / "bin" / "srun"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\ntouch asked; exec sleep 30\n")
    slow.chmod(0o755)
    env = environment(tmp_path, SLURM_JOB_ID="7", SLURM_JOB_NODELIST="n[1-2]", SLURM_NNODES="2")
    env["PATH"] = f"{slow.parent}:{env['PATH']}"
    child = subprocess.Popen(
        argv("run", "--env", "A_TOKEN=correct-horse", "--", "true"),
        cwd=tmp_path,
        env=env,
        stderr=subprocess.PIPE,
        text=True,
    )
    with child:
        wait_until((tmp_path / "asked").exists, timeout_s=20, what="the node is asked")
        child.send_signal(sig)
        _, stderr = child.communicate(timeout=20)
    assert child.returncode == 128 + sig
    assert stderr == f"windlass: {sig.name}\n"
    assert not list(tmp_path.rglob("secrets.sh"))


def test_planning_imports_neither_heavy_libraries_nor_what_runs(tmp_path: Path) -> None:
    text = (
        "import sys; from windlass.cli.main import main; code = main(['plan', '--site', 'lumi', '--', 'true']); "
        "sys.exit(code or 10 * bool({'torch', 'numpy', 'asyncio', 'windlass.api', 'windlass.agents', "
        "'windlass.run.supervise', 'windlass.run.execute'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.DEVNULL
    )
    assert done.returncode == 0


def test_words_of_other_tools_are_answered_with_our_command(capsys: pytest.CaptureFixture[str]) -> None:
    for word, command in (("lauch", "run"), ("start", "run"), ("sbatch", "submit"), ("top", "watch"), ("pln", "plan")):
        assert main([word]) == 2
        assert f"did you mean '{command}'?" in capsys.readouterr().err, word
