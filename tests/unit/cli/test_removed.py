"""Commands and options that were removed: the error names the replacement."""

from __future__ import annotations

from pathlib import Path

from looping import each
from unit.cli.typed import in_process
from windlass.base.tables import packaged_table
from windlass.cli import main


@each(
    ("argv", "instead"),
    [
        ("synthetic --batch 96", "windlass bench ddp --batch 96 --fp16-allreduce"),
        ("start --push 1G", "bench/push.py"),
        ("start --link=400M", "bench/push.py"),
        ("start --simulate", "bench/simulate_start.py"),
        ("ddp --fast", "bench/train_step.py resnet"),
        ("llm --clip 2", "leave it out"),
        ("ddp --html page.html", "windlass bench report"),
        ("compare a b --html page.html", "windlass bench report"),
    ],
)
def test_what_was_removed_names_its_replacement(argv: str, instead: str, tmp_path: Path) -> None:
    done = in_process("bench", *argv.split(), cwd=tmp_path)
    assert done.code == 2, done.text
    assert "was removed" in done.stderr and instead in done.stderr


ARGUMENTS = {
    "bench compare": ("a", "b"),
    "bench reference": ("collectives",),
    "bench scale": ("ddp",),
    "bench report": ("a",),
    "bench io": ("folder",),
    "image plan": ("pytorch-ngc",),
}


def test_everything_that_was_removed_is_refused_with_what_to_do(tmp_path: Path) -> None:
    for command, removed in packaged_table(main.__file__, "removed.toml").items():
        for name, instead in removed.items():
            *sub, last = name.split()
            words = ("plan" if command == "all" else command, *sub, *ARGUMENTS.get(" ".join((command, *sub)), ()), last)
            done = in_process(*words, cwd=tmp_path)
            assert done.code == 2, words
            assert f"{last} was removed" in done.stderr and instead in done.stderr, done.stderr
