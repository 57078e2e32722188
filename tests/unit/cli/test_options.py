"""From words to a request: where the options end, and values that cannot be."""

from __future__ import annotations

import argparse
from pathlib import Path

from looping import each
from unit.cli.typed import in_process, script
from windlass.cli.option_groups import add_request_options
from windlass.cli.options import join_values, split_command


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="windlass run")
    add_request_options(parser)
    return parser


@each(
    ("words", "options", "kind", "command"),
    [
        ("train.py --nodes 2", "", "script", "train.py --nodes 2"),
        ("--nodes 2 train.py -m x -- y", "--nodes 2", "script", "train.py -m x -- y"),
        ("-N 2 -m pkg.train --help", "-N 2", "module", "pkg.train --help"),
        ("--env A=-- -- ls -l", "--env A=--", "command", "ls -l"),
        ("--nodes=2 -- -weird", "--nodes=2", "command", "-weird"),
        ("--module none train.py", "--module none", "script", "train.py"),
        ("--comm-log train.py", "--comm-log", "script", "train.py"),
        ("--comm-log 0,3-5 train.py", "--comm-log 0,3-5", "script", "train.py"),
        ("--comm-log all -m x", "--comm-log all", "module", "x"),
        ("--unknown train.py", "--unknown", "script", "train.py"),
        ("--nodes", "--nodes", "script", ""),
        ("", "", "script", ""),
    ],
)
def test_the_users_words_begin_where_ours_end(words: str, options: str, kind: str, command: str) -> None:
    assert split_command(_parser(), words.split()) == (options.split(), kind, command.split())


def test_with_ray_is_another_spelling_of_with_and_the_name() -> None:
    assert join_values(["--with-ray", "--arg", "--with-x"]) == ["--with=ray", "--arg=--with-x"]


def test_words_for_others_may_begin_with_a_dash() -> None:
    joined = join_values(["--arg", "--mem=0", "--directive", "-l place=scatter", "--nodes", "2", "--arg"])
    assert joined == ["--arg=--mem=0", "--directive=-l place=scatter", "--nodes", "2", "--arg"]


def test_arguments_with_dashes_reach_launcher_and_scheduler(tmp_path: Path) -> None:
    ended = in_process(
        *("plan", "--site", "lumi", "--arg", "--kill-on-bad-exit=0", "--directive", "--reservation=r1"),
        *("--directive", "~--exclusive", "--", "true"),
        cwd=tmp_path,
    )
    assert ended.code == 0, ended.stderr
    assert "--kill-on-bad-exit=0" in ended.stdout and "--kill-on-bad-exit=1" not in ended.stdout
    assert "--reservation=r1" in ended.stdout
    assert "--exclusive" not in ended.stdout


@each(
    ("words", "told"),
    [
        ("--nodes 0", "--nodes 0"),
        ("--nodes two", "invalid int value: 'two'"),
        ("--nodes 2", "starts ranks only on this machine"),
        ("--ranks-per-node 0", "--ranks-per-node 0"),
        ("--ranks-per-node 99999999", "at most"),
        ("--ranks-per-device 0", "--ranks-per-device"),
        ("--threads 0", "--threads 0"),
        ("--grace -1", "--grace -1"),
        ("--grace nan", "--grace nan"),
        ("--grace inf", "--grace inf"),
        ("--master-port 70000", "1 to 65535"),
        ("--name two/parts", "letters, digits"),
        ("--name -x", "expected one argument"),
        ("--env NOVALUE", "has no '='"),
        ("--env 1A=x", "not the name of a variable"),
        ("--env A-B=x", "not the name of a variable"),
        ("--env ~A=B", "not the name of a variable"),
        ("--env A+=", "adds nothing"),
        ("--comm-log=x", "not a list of ranks"),
        ("--cpu-bind nonsense", "nonsense"),
        ("--cpu-bind 0:1:2", "lists 3 ranks"),
        ("--with magic", "has no option of this name"),
        ("--activate /etc", "neither a virtual environment nor a conda environment"),
        ("--arg ~--mem", "no default of this name to remove"),
        ("--site nothere.toml", "nothere.toml"),
        ("--hosts n[1-", "n[1-"),
        ("--runtime dockre --container x.sif", "dockre"),
        ("--bind /a", "--bind without --container"),
        ("--cache-set readers=2", "--cache-set without --cache"),
        ("--cache /tmp --cache-set readers=0", "--cache-set readers=0"),
        ("--cache /tmp --cache-set trace=maybe", "trace=on or off"),
        ("--cache /tmp --cache-set memroy=2G", "memory"),
        ("--cache /tmp --cache-set store=", "empty value"),
        ("--profile torch:0:0", "1 to 100000 steps"),
        ("--profile torch:x", "not a list of ranks"),
        ("--runtime apptainer", "--runtime without --container"),
        ("--container-arg --nv", "--container-arg without --container"),
    ],
)
def test_a_value_that_cannot_be_is_refused_before_anything_is_made(tmp_path: Path, words: str, told: str) -> None:
    script(tmp_path)
    ended = in_process("run", *words.split(), "place.py", cwd=tmp_path)
    assert ended.code in {2, 3}, ended.text
    assert told in ended.stderr
    assert not (tmp_path / "runs").exists()


@each("flag", ["--run-dir", "--name", "--site", "--python", "--module", "--with", "--arg"])
def test_an_empty_value_is_taken_for_a_variable_that_is_not_set(tmp_path: Path, flag: str) -> None:
    ended = in_process("run", flag, "", "--", "true", cwd=tmp_path)
    assert ended.code == 2
    assert f"{flag} has an empty value" in ended.stderr
    assert list(tmp_path.iterdir()) == []


@each(
    ("words", "told"),
    [
        ((), "nothing to run"),
        (("--",), "nothing to run"),
        (("-m",), "nothing to run"),
        (("missing.py",), "script missing.py does not exist"),
        (("no-such-command-anywhere",), "and for a command in PATH"),
        (("folder",), "folder is a folder"),
        (("-",), "a script from standard input"),
        (("job.sh",), "job.sh is a shell script, not Python"),
        (("job",), "write -- bash job"),
    ],
)
def test_what_cannot_be_run_is_refused(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "job.sh").write_text("python train.py\n")
    (tmp_path / "job").write_text("#!/usr/bin/env bash\npython train.py\n")
    ended = in_process("run", *words, cwd=tmp_path)
    assert ended.code == 2
    assert told in ended.stderr


@each("words", [("torchrun", "x.py"), ("--", "srun", "hostname"), ("-m", "torch.distributed.run")])
def test_a_launcher_inside_the_ranks_is_refused_by_name(tmp_path: Path, words: tuple[str, ...]) -> None:
    ended = in_process("run", "-r", "2", *words, cwd=tmp_path)
    assert ended.code == 2
    assert "inside every rank" in ended.stderr
    assert "leave it out" in ended.stderr
