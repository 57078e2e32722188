"""windlass selftest: a bundle that shows what a machine did with a plan."""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path

from unit.cli.typed import windlass


def _bare_python(folder: Path) -> Path:
    """An interpreter without torch: the self-test must do without, and is quick then."""
    tool = folder / "bare-python"
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    tool.chmod(0o755)
    return tool


def test_the_bundle_holds_plan_scripts_places_and_a_verdict(tmp_path: Path) -> None:
    words = ("--python", str(_bare_python(tmp_path)), "-r", "2", "--bundle", "b.tar.gz")
    ended = windlass("selftest", *words, cwd=tmp_path, env={"SOME_TOKEN": "correct-horse-battery"})
    assert ended.code == 0, ended.text
    assert "ok       ranks: 2 of 2 reported" in ended.stdout
    with tarfile.open(tmp_path / "b.tar.gz") as bundle:
        names = {Path(name).name for name in bundle.getnames()}
        member = bundle.extractfile("selftest/report.json")
        assert member is not None
        report = json.loads(member.read())
        texts = [bundle.extractfile(entry) for entry in bundle.getmembers() if entry.isfile()]
        assert all(b"correct-horse-battery" not in text.read() for text in texts if text)
    assert {"plan.json", "result.json", "rank.sh", "launch.sh", "report.json"} <= names
    assert [entry["rank"] for entry in report["reports"]] == [0, 1]
    assert report["seen"]["topology"]["cores"]


def test_a_bundle_that_cannot_be_written_is_an_error_in_words(tmp_path: Path) -> None:
    words = ("--python", str(_bare_python(tmp_path)), "--bundle", "/nowhere/b.tar.gz")
    ended = windlass("selftest", *words, cwd=tmp_path)
    assert ended.code == 2
    assert "cannot write the bundle /nowhere/b.tar.gz" in ended.stderr
