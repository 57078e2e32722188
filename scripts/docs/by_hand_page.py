"""docs/explanation/by-hand.md, made from by_hand.toml: what five documents have people type, and where it is seen."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from markdown_table import table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DATA = Path(__file__).parent / "by_hand.toml"
KINDS = {
    "variable": "variable of each rank",
    "option": "option of the launcher",
    "directive": "directive of the batch job",
    "mount": "bound into the container",
    "module": "module in the job",
    "text": "",
    "absent": "not in the output",
}


_HEAD = """\
Steps of five documents, and the same with windlass. The left column quotes the document. The right column is output of
the command above the table. `plan` shows what `run` and `submit` do with the same options. The date is that of the last
check ([sources](../reference/sources.md)), because the documents have none."""
_CHECKED = """\
A test runs every command on this page and compares {checked} rows. {unchecked} rows cannot be checked and give the
reason."""


class Row(NamedTuple):
    """A step of a document. `seen` has kinds and words; without any, `instead` says what windlass has."""

    document: str
    under: str
    quoted: str
    command: str
    log: str
    seen: tuple[tuple[str, str], ...]
    instead: str
    unchecked: str
    fails: bool


def by_hand_rows() -> list[Row]:
    found = []
    for document in _documents():
        for step in document["steps"]:
            why = step.get("unchecked", "")
            for quoted, *rest in step["rows"]:
                seen = () if why else tuple((each.split(" ", 1)[0], each.split(" ", 1)[1]) for each in rest)
                command, log = step.get("command", ""), step.get("log", "")
                instead = rest[0] if why else ""
                found.append(
                    Row(
                        document["title"],
                        step["under"],
                        quoted,
                        command,
                        log,
                        seen,
                        instead,
                        why,
                        bool(step.get("fails")),
                    )
                )
    return found


def by_hand_page() -> str:
    rows = by_hand_rows()
    unchecked = sum(1 for row in rows if row.unchecked)
    checked = _CHECKED.format(checked=len(rows) - unchecked, unchecked=unchecked)
    lines = ["# Site tutorials, and the same with windlass", "", _HEAD, "", checked]
    for document in _documents():
        lines += ["", f"## {document['title']}", "", document["about"]]
        for step in document["steps"]:
            lines += ["", f"**{step['under']}.** " + _about(step), ""]
            cells = [(_code(quoted), _seen(step, rest)) for quoted, *rest in step["rows"]]
            lines += table(("in the document", "with windlass"), cells)
    return "\n".join(lines).rstrip() + "\n"


def _about(step: dict[str, str]) -> str:
    if "unchecked" in step:
        return f"Not checked: {step['unchecked']}."
    with_log = f" with a log that contains {_code(step['log'])}" if "log" in step else ""
    refused = ", which is refused" if step.get("fails") else ""
    return f"{_code(step['command'])}{with_log}{refused}"


def _seen(step: dict[str, str], rest: list[str]) -> str:
    if "unchecked" in step:
        return rest[0]
    parts = [each.split(" ", 1) for each in rest]
    return ", ".join(_code(words) + (f" ({KINDS[kind]})" if KINDS[kind] else "") for kind, words in parts)


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{' '.join(text.split())}{pad}{fence}"


def _documents() -> list[dict[str, object]]:  # type: ignore[explicit-any]
    return list(tomllib.loads(DATA.read_text())["documents"])
