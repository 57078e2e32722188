"""What the page on the five documents says is seen, is seen: each of its commands runs, and its rows are compared."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from unit.cli.typed import SRC, in_process
from windlass.model.origin import Argument, argv_of
from windlass.model.plan import Plan, plan_from_json

sys.path.insert(0, str(SRC.parent / "scripts" / "docs"))
from by_hand_page import KINDS, Row, by_hand_rows

_FILES = ("train.py", "multinode.py", "data-resnet-small.tar")


class Shown:
    """What one command showed."""

    def __init__(self, row: Row, folder: Path) -> None:
        words = shlex.split(row.command)[1:]
        for name in _FILES:
            (folder / name).touch()
        (folder / "job.log").write_text(row.log + "\n")
        done = in_process(*words, cwd=folder)
        self.code, self.text = done.code, " ".join(done.text.split())
        self.plan: Plan | None = None
        if words[0] == "plan" and done.code == 0:
            self.plan = plan_from_json(in_process("plan", "--json", *words[1:], cwd=folder).stdout)

    def has(self, kind: str, words: str) -> bool:
        if kind in {"text", "absent"}:
            return (" ".join(words.split()) in self.text) is (kind == "text")
        assert self.plan is not None, "only a plan has it"
        return _IN_PLAN[kind](self.plan, words)


def _variable(plan: Plan, words: str) -> bool:
    inside = plan.container.settings if plan.container else ()
    return words in {f"{one.name}={one.value}" for one in (*plan.environment, *inside)}


def _words_of(arguments: tuple[Argument, ...], words: str) -> bool:
    return f" {words} " in f" {' '.join(argv_of(arguments))} "


def _mount(plan: Plan, words: str) -> bool:
    source, _, target = words.partition(" ")
    mounts = plan.container.mounts if plan.container else ()
    return any(mount.source == source and mount.target == (target or source) for mount in mounts)


_IN_PLAN: dict[str, Callable[[Plan, str], bool]] = {
    "variable": _variable,
    "option": lambda plan, words: _words_of(plan.launch, words),
    "directive": lambda plan, words: _words_of(plan.directives, words),
    "mount": _mount,
    "module": lambda plan, words: words in plan.modules,
}


def test_every_row_of_the_page_is_seen_in_its_command(tmp_path: Path) -> None:
    shown: dict[tuple[str, str], Shown] = {}
    wrong = []
    for row in by_hand_rows():
        if row.unchecked:
            continue
        key = (row.command, row.log)
        shown[key] = shown.get(key) or Shown(row, tmp_path)
        if (shown[key].code != 0) is not row.fails:
            wrong.append(f"{row.command}: exit code {shown[key].code}: {shown[key].text[-300:]}")
            continue
        wrong += [
            f"{row.document}: {row.quoted!r}: no {kind} {words!r} in `{row.command}`"
            for kind, words in row.seen
            if not shown[key].has(kind, words)
        ]
    assert wrong == [], "\n".join(wrong)


def test_the_page_has_enough_rows_and_each_says_something() -> None:
    rows = by_hand_rows()
    assert len({row.document for row in rows}) == 5
    assert sum(1 for row in rows if not row.unchecked) >= 150
    assert [row for row in rows if not (row.seen or (row.unchecked and row.instead))] == []
    assert {kind for row in rows for kind, _ in row.seen} <= KINDS.keys()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("variable", "NCCL_NET_GDR_LEVEL=SYS"),
        ("option", "--nodes=3"),
        ("directive", "--account=nobody"),
        ("mount", "/nowhere"),
        ("module", "none"),
        ("text", "no such words"),
        ("absent", "srun"),
    ],
)
def test_a_wrong_row_would_be_found(kind: str, words: str, tmp_path: Path) -> None:
    row = Row("", "", "", "windlass plan --site lumi --nodes 2 --container x.sif train.py", "", (), "", "", False)
    assert not Shown(row, tmp_path).has(kind, words)
