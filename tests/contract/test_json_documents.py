"""The documents of `--json`: each command has one, with a version, and its keys keep their types."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec

from contract.pinned import hold
from contract.test_command_line import SITE, SUB_COMMANDS
from json_documents import DOCUMENTS
from json_page import components, json_page, type_text
from unit.cli.typed import in_process, script
from windlass.cli.main import command_names

ROOT = Path(__file__).parents[2]


def test_every_document_keeps_its_version_keys_and_types() -> None:
    schemas, types = components()
    found = {
        f"windlass {name} --json, version {DOCUMENTS[name].version}": [type_text(schema)]
        for name, schema in schemas.items()
    }
    for name, schema in types.items():
        keys = schema.get("properties", {})
        found[name] = [f"{key}: {type_text(value)}" for key, value in keys.items()] or [type_text(schema)]
    hold("documents", found)


def test_the_page_of_the_documents_is_up_to_date() -> None:
    assert (ROOT / "docs" / "reference" / "json.md").read_text() == json_page(), "run scripts/docs/generate.py"


def test_commands_with_json_and_documents_are_the_same(tmp_path: Path) -> None:
    actions = {**SUB_COMMANDS, "env": ("plan", "create", "check", "pack"), "sites": (*SUB_COMMANDS["sites"], "adopt")}
    lines = {(command, *action) for command in command_names() for action in _each(actions.get(command, ()))}
    offered = set()
    for words in lines:
        done = in_process(*words, "--help", cwd=tmp_path)
        if re.search(r"^  --json\b|^Also has .*--json\b", done.stdout, re.MULTILINE):
            offered.add(" ".join(words))
    documented = {re.sub(r" --.*|(?<=trace) \w+", "", name) for name in DOCUMENTS}
    assert offered == documented


def _each(actions: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [(action,) for action in actions] or [()]


def test_commands_print_the_document_that_is_documented(tmp_path: Path) -> None:
    script(tmp_path)
    (tmp_path / "a.log").write_text("OSError: [Errno 98] Address already in use\n")
    (tmp_path / "bad.toml").write_text("nodes = 3\n")
    lines = {
        "plan": (*SITE, "place.py"),
        "explain": ("OMP_NUM_THREADS", *SITE[:-2]),
        "explain-log": ("a.log",),
        "sites list": (),
        "sites show": ("frontier",),
        "sites detect": (),
        "sites check": ("bad.toml",),
        "env plan": ("--site", "frontier"),
        "image plan": ("pytorch-ngc",),
        "nodes list": (),
        "runs list": (),
        "watch": ("--demo", "2", "--once"),
        "bench reference": ("collectives",),
        "alloc": (*SITE[:-2], "--dry-run"),
    }
    for name, words in lines.items():
        done = in_process(*name.split(), "--json", *words, cwd=tmp_path)
        assert done.stdout, f"{name}: {done.stderr}"
        data = json.loads(done.stdout)
        document = DOCUMENTS[name]
        value = msgspec.convert(data, document.type, strict=False)
        assert isinstance(data, list) or data.get("version", document.version) == document.version, name
        assert json.loads(msgspec.json.encode(value, order="deterministic")) == data, f"{name}: a key has no type"
