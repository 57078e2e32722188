"""Commands that README and docs print and that start nothing work as they are printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from unit.cli.typed import SRC, in_process

ROOT = SRC.parent
_IN_A_SLURM = ROOT / "docs" / "tutorial" / "ten-minutes.md"
"""Its commands are printed for a Slurm, in which tests/docs/test_tutorial.py runs all of them."""
_DOCS = (page for page in (ROOT / "docs").rglob("*.md") if page != _IN_A_SLURM)
PAGES = (ROOT / "README.md", *sorted(_DOCS), *sorted((ROOT / "examples").rglob("*.md")))
_STARTS_NOTHING = ("plan", "explain", "sites", "alloc", "completion")
_NAMES = "|".join(_STARTS_NOTHING)
_COMMAND = re.compile(rf"(?:^\$? *|`)(windlass (?:{_NAMES})(?![-\w])[^`\n#|]*)", re.MULTILINE)
_BLANK = re.compile(
    r"…|\.\.\.|\bNAME\b|\bFILE\b|\bIMAGE\b|\[|\$IMG|\bCOMMAND\b|\bR\b|~/|\bALLOC|bluebox|adopt|detect$|/path/to"
)


def printed() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for match in _COMMAND.finditer(page.read_text()):
            command = match[1].strip().rstrip("`.,;:)").strip()
            words = command.split()
            if len(words) > 2 and not _BLANK.search(command) and (words[1] != "alloc" or "--dry-run" in words):
                found.append((f"{page.relative_to(ROOT)}: {command}", command))
    return found


@pytest.mark.parametrize("command", [pytest.param(command, id=name) for name, command in printed()])
def test_a_printed_command_works_as_printed(command: str, tmp_path: Path) -> None:
    try:
        words = shlex.split(command)[1:]
    except ValueError:
        pytest.fail(f"a shell could not read it: {command}")
    done = in_process(*words, cwd=tmp_path)
    assert "Traceback" not in done.text
    assert done.code == 0, done.text


def test_there_are_commands_to_try() -> None:
    assert len(printed()) > 10
