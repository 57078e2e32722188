"""What a new user meets first: `windlass` alone, init, completion, plans without a script, misplaced options."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from looping import each
from requirements import require
from unit.cli.typed import in_process, script, windlass
from windlass.cli.completion import candidates
from windlass.cli.main import command_names


def test_windlass_alone_says_where_you_are_and_what_comes_next(tmp_path: Path) -> None:
    done = in_process(cwd=tmp_path)
    assert done.code == 0, done.text
    assert "workstation" in done.stdout
    assert "windlass run train.py" in done.stdout


def test_windlass_alone_tells_of_a_failed_run_and_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("raise SystemExit(3)")
    assert windlass("run", "-r", "1", "fails.py", cwd=tmp_path).code == 3
    done = in_process(cwd=tmp_path)
    assert "failed" in done.stdout
    assert "windlass runs show fails-" in done.stdout


def test_init_keeps_what_it_is_given_and_plans_use_it(tmp_path: Path) -> None:
    config = {"WINDLASS_CONFIG": str(tmp_path / "config")}
    done = in_process("init", "--for", "lumi", "--account", "project_1", "--time", "2h", cwd=tmp_path, env=config)
    assert done.code == 0, done.text
    assert "config.toml" in done.stdout
    plan = in_process("plan", "--site", "lumi", cwd=tmp_path, env=config)
    assert "--account=project_1" in plan.stdout
    assert "--time=02:00:00" in plan.stdout
    assert "--account" not in in_process("plan", "--site", "frontier", cwd=tmp_path, env=config).stdout


def test_init_keeps_job_options_for_the_detected_site_unless_told_otherwise(tmp_path: Path) -> None:
    config = {"WINDLASS_CONFIG": str(tmp_path / "config"), "LMOD_SYSTEM_NAME": "frontier"}
    done = in_process("init", "--account", "abc123", cwd=tmp_path, env=config)
    assert done.code == 0 and "account = abc123 (at frontier)" in done.stdout, done.text
    for site, seen in (("frontier", True), ("lumi", False)):
        assert ("--account=abc123" in in_process("plan", "--site", site, cwd=tmp_path, env=config).stdout) is seen
    assert in_process("init", "--everywhere", "--account", "all", cwd=tmp_path, env=config).code == 0
    assert "--account=all" in in_process("plan", "--site", "lumi", cwd=tmp_path, env=config).stdout
    assert in_process("init", "--everywhere", "--for", "lumi", "--qos", "x", cwd=tmp_path, env=config).code == 2


def test_init_refuses_a_site_that_does_not_exist(tmp_path: Path) -> None:
    done = in_process("init", "--for", "lumy", "--account", "x", cwd=tmp_path)
    assert done.code == 2
    assert "--for lumy: no such site" in done.stderr
    assert not (tmp_path / "no-config").exists()


def test_init_refuses_a_time_that_no_job_could_have(tmp_path: Path) -> None:
    config = {"WINDLASS_CONFIG": str(tmp_path / "config")}
    done = in_process("init", "--account", "x", "--time", "soon", cwd=tmp_path, env=config)
    assert done.code == 2
    assert "not a time limit: 'soon'" in done.stderr
    assert not (tmp_path / "config").exists()


def test_a_configuration_that_is_no_toml_is_not_told_to_be_mended_by_what_refuses_it(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("broken [")
    done = in_process("init", "--account", "x", cwd=tmp_path, env={"WINDLASS_CONFIG": str(tmp_path)})
    assert done.code == 2
    assert "correct it, or move it away" in done.stderr
    assert (tmp_path / "config.toml").read_text() == "broken ["


def test_a_wrong_configuration_ends_every_command_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("acount = 'x'")
    for words in ((), ("plan",), ("runs", "list"), ("init", "--account", "x")):
        done = in_process(*words, cwd=tmp_path, env={"WINDLASS_CONFIG": str(tmp_path)})
        assert done.code == 2, words
        assert "unknown key acount" in done.stderr
        assert "did you mean account?" in done.stderr


def test_a_plan_needs_no_script_and_none_that_is_here(tmp_path: Path) -> None:
    bare = in_process("plan", "--site", "lumi", "--nodes", "2", cwd=tmp_path)
    assert bare.code == 0, bare.text
    assert "COMMAND on lumi: 2 nodes x 8 ranks" in bare.stdout
    missing = in_process("plan", "--site", "aurora", "train.py", cwd=tmp_path)
    assert missing.code == 0, missing.text
    assert "train.py does not exist here" in missing.stderr


def test_sites_show_without_a_name_shows_this_machine(tmp_path: Path) -> None:
    assert in_process("sites", "show", cwd=tmp_path).stdout.startswith("workstation:")


def test_an_option_behind_the_script_is_noticed_unless_the_script_reads_it(tmp_path: Path) -> None:
    script(tmp_path)
    done = in_process("plan", "place.py", "--restarts", "3", "--lr=1", cwd=tmp_path)
    assert "--restarts comes after the script" in done.stderr
    assert "--lr" not in done.stderr
    (tmp_path / "reads.py").write_text("add_argument('--restarts')")
    assert "comes after" not in in_process("plan", "reads.py", "--restarts", "3", cwd=tmp_path).stderr


@each(
    ("words", "expected"),
    [
        (["ru"], ["run", "runs"]),
        (["run", "--sit"], ["--site"]),
        (["run", "--site", "lum"], ["lumi"]),
        (["run", "--device-unit", ""], ["tile", "card"]),
        (["sites", "sh"], ["show"]),
        (["sites", "show", "fron"], ["frontier"]),
        (["run", "train.py", ""], []),
        (["bench", "coll"], ["collectives"]),
        (["bench", "llm", "--mod"], ["--module", "--model"]),
        (["cache", "st"], ["start", "status", "stop"]),
        (["cache", "trace", "re"], ["record"]),
        (["run", "--", "l"], []),
        (["nonsense", ""], []),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_completion_offers_what_may_stand_there(words: list[str], expected: list[str]) -> None:
    assert candidates(words) == expected


def test_every_command_can_be_completed() -> None:
    assert candidates([""]) == list(command_names())
    for name in command_names():
        assert "--help" in candidates([name, "--"])


@pytest.fixture
def shell_path(tmp_path: Path) -> str:
    """A PATH with a `windlass` in it; one run is there to be completed."""
    tool = tmp_path / "bin" / "windlass"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec {sys.executable} -m windlass "$@"\n')
    tool.chmod(0o755)
    return f"{tool.parent}:/usr/bin:/bin"


def test_bash_completes_with_the_script_that_is_printed(shell_path: str) -> None:
    text = (
        'eval "$(windlass completion bash)"; COMP_WORDS=(windlass run --site fro); COMP_CWORD=3; _windlass;'
        ' printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", text], env={"PATH": shell_path}, capture_output=True, text=True, timeout=60)
    assert done.stdout == "frontier\n", done.stderr


def test_fish_completes_with_the_script_that_is_printed(shell_path: str, tmp_path: Path) -> None:
    require("shells", shutil.which("fish") is not None, "no fish in PATH")
    asked = "complete -C 'windlass run --site fro'; complete -C 'windlass ben'"
    text = f"windlass completion fish | source; cd $HOME; mkdir bench; {asked}"
    env = {"PATH": shell_path, "HOME": str(tmp_path)}
    done = subprocess.run(["fish", "--no-config", "-c", text], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["frontier", "bench"], done.stderr


def test_zsh_completes_what_is_typed_at_its_prompt(shell_path: str, tmp_path: Path) -> None:
    """Keys go to a real zsh on a terminal, which shows what it makes of them."""
    require("shells", shutil.which("zsh") is not None, "no zsh in PATH")
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover
        os.execve(
            shutil.which("zsh") or "zsh",
            ["zsh", "-f", "-i"],
            {"PATH": shell_path, "HOME": str(tmp_path), "TERM": "xterm"},
        )
    shown = b""

    def until(text: bytes) -> None:
        nonlocal shown
        shown = b""
        deadline = time.monotonic() + 60
        while text not in shown:
            assert time.monotonic() < deadline, shown
            if select.select([terminal], [], [], 1)[0]:
                shown += os.read(terminal, 1 << 14)

    try:
        os.write(terminal, b"PS1='rea''dy> '; eval \"$(windlass completion zsh)\"; print lo''aded\n")
        until(b"loaded")
        os.write(terminal, b"windlass sites show fro\t")
        until(b"ntier")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
