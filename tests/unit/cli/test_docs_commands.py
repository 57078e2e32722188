"""Commands that README and docs print and that start nothing work as they are printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from looping import each
from unit.cli.typed import SRC, in_process
from windlass.cli.main import command_parser

ROOT = SRC.parent
_IN_A_SLURM = ROOT / "docs" / "tutorial" / "ten-minutes.md"
"""Its commands are printed for a Slurm, in which tests/docs/test_tutorial.py runs all of them."""
_BY_HAND = ROOT / "docs" / "explanation" / "by-hand.md"
"""tests/examples/test_by_hand.py runs its commands and looks at what they show."""
_DOCS = (page for page in (ROOT / "docs").rglob("*.md") if page not in {_IN_A_SLURM, _BY_HAND})
PAGES = (ROOT / "README.md", *sorted(_DOCS), *sorted((ROOT / "examples").rglob("*.md")))
_STARTS_NOTHING = ("plan", "explain", "sites", "alloc", "completion")
_NAMES = "|".join(_STARTS_NOTHING)
_COMMAND = re.compile(rf"(?:^\$? *|`)(windlass (?:{_NAMES})(?![-\w])[^`\n#|]*)", re.MULTILINE)
_BLANK = re.compile(
    r"…|\.\.\.|\bNAME\b|\bFILE\b|\bIMAGE\b|\[|\$IMG|\bCOMMAND\b|\bRUN\b|\bR\b|~/|\bALLOC|bluebox|adopt|detect$|/path/to"
)


def _before_shell_syntax(words: list[str]) -> list[str]:
    """The arguments of windlass, without a redirection or a second command."""
    end = next((at for at, word in enumerate(words) if word in {"&&", "&"} or word.startswith(">")), len(words))
    return words[:end]


def printed() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for match in _COMMAND.finditer(page.read_text()):
            command = match[1].strip().rstrip("`.,;:)").strip()
            words = command.split()
            if len(words) > 2 and not _BLANK.search(command) and (words[1] != "alloc" or "--dry-run" in words):
                found.append((f"{page.relative_to(ROOT)}: {command}", command))
    return found


@each("command", [command for _, command in printed()], ids=[name for name, _ in printed()])
def test_a_printed_command_works_as_printed(command: str, tmp_path: Path) -> None:
    try:
        words = shlex.split(command)[1:]
    except ValueError:
        pytest.fail(f"a shell could not read it: {command}")
    page = (ROOT / "docs" / "howto" / "several-programs.md").read_text()
    job = page.partition("```toml\n")[2].partition("```")[0]
    (tmp_path / "job.toml").write_text(job)
    for script in re.findall(r'^script = "(.+)"', job, re.MULTILINE):
        (tmp_path / script).touch()
    done = in_process(*_before_shell_syntax(words), cwd=tmp_path)
    assert "Traceback" not in done.text
    assert done.code == 0, done.text


def test_there_are_commands_to_try() -> None:
    assert len(printed()) > 10


_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_TYPED = re.compile(r"^(?:\$ )?(windlass [a-z].*)$", re.MULTILINE)
_SYNOPSIS = re.compile(r"…|\[|\]| \| |\(the same\)|\bCASE\b|\bWHAT\b")


def typed() -> list[tuple[str, str]]:
    """Lines of code blocks that somebody could copy into a shell, whatever they start."""
    found = []
    for page in (*PAGES, _IN_A_SLURM):
        for block in _FENCE.findall(page.read_text()):
            for line in _TYPED.findall(block.replace("\\\n", " ")):
                command = re.split(r"\s#\s", line)[0].strip()
                if not _SYNOPSIS.search(command):
                    found.append((f"{page.relative_to(ROOT)}: {command}", command))
    return list(dict.fromkeys(found))


@each("command", [command for _, command in typed()], ids=[name for name, _ in typed()])
def test_a_line_of_a_code_block_is_one_that_its_command_takes(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = _before_shell_syntax(shlex.split(command)[1:])
    module, parser = command_parser(words[0])
    (module.parse if hasattr(module, "parse") else lambda box, argv: box.parse_args(argv))(parser, words[1:])


def test_there_are_lines_to_try() -> None:
    assert len(typed()) > 100


def test_printed_srun_lines_are_those_of_a_plan(tmp_path: Path) -> None:
    planned = in_process("plan", "--site", "lumi", "--nodes", "2", cwd=tmp_path).stdout
    real = re.search(r"^ *(srun .*)$", planned, re.MULTILINE)
    assert real is not None
    options = [word.partition("=")[0] for word in real[1].split()]
    printed = re.search(r"^ *(srun --nodes.*) *…$", _IN_A_SLURM.read_text(), re.MULTILINE)
    assert printed is not None
    words = printed[1].split()
    assert [word.partition("=")[0] for word in words] == options[: len(words)]
