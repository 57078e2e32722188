"""Few options: a command has those that it uses, and names the command that has another one."""

from __future__ import annotations

import json
from pathlib import Path

from option_slots import option_slots

from looping import each
from unit.cli.typed import in_process, script
from windlass.cli.main import command_names, command_parser


def test_there_are_few_options() -> None:
    slots = option_slots()
    assert len(slots) <= 450, "python scripts/option_slots.py lists them"
    assert len({option for _, option in slots}) <= 150, "python scripts/option_slots.py --who lists them"


@each(
    ("words", "owners"),
    [
        ("stage data --to /tmp --restarts 2", "run, plan and submit"),
        ("doctor --until-done", "run, plan and submit"),
        ("bench ddp --spares 1", "run, plan and submit"),
        ("tune --restarts=2 -- true", "run, plan and submit"),
        ("explain NCCL_NET --watch", "run, plan and submit"),
        ("cache start --root /x --account a", "plan, submit and alloc"),
        ("selftest -t 30", "plan, submit and alloc"),
        ("run --qos high place.py", "plan, submit and alloc"),
    ],
)
def test_an_option_that_a_command_would_ignore_is_refused(words: str, owners: str, tmp_path: Path) -> None:
    script(tmp_path)
    done = in_process(*words.split(), cwd=tmp_path)
    assert done.code == 2, done.text
    assert "does not use" in done.stderr and f"{owners} have it" in done.stderr, done.stderr


@each(
    "words",
    ["sites list", "nodes list", "env plan --site lumi", "image plan pytorch-ngc", "bench reference collectives"],
)
def test_an_option_of_all_sub_commands_may_stand_anywhere(words: str, tmp_path: Path) -> None:
    first, *rest = words.split()
    behind = in_process(first, *rest, "--json", cwd=tmp_path)
    assert behind.code == 0 and json.loads(behind.stdout) is not None, behind.text
    if first != "bench":
        assert in_process(first, "--json", *rest, cwd=tmp_path).stdout == behind.stdout


def test_help_fits_a_screen_with_the_examples_first_and_help_all_shows_the_rest(tmp_path: Path) -> None:
    for name in command_names():
        short, whole = (
            in_process(name, word, cwd=tmp_path, env={"COLUMNS": "80"}) for word in ("--help", "--help-all")
        )
        assert short.code == whole.code == 0
        assert short.stdout.index("examples:") < short.stdout.index("options:"), name
        assert len(short.stdout.splitlines()) <= 50, name
        for action in command_parser(name)[1]._actions:
            shown = [
                text for text in (short.stdout, whole.stdout) if f" {(action.option_strings or ['-h'])[0]}" in text
            ]
            rare = getattr(action, "rare", False)
            assert action.dest == "help_all" or len(shown) == (1 if rare else 2), (name, action.option_strings)
