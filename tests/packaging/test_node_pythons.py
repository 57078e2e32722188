"""What travels to the nodes, really run by every Python that it may meet there, as far as they are on this machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from interpreters import NODE, interpreters

from test_layers import SRC, TRAVELS
from windlass.agents.ship import script_text
from windlass.model.finding import decode_findings
from windlass.node.sys.messages import read_messages

HERE = interpreters(NODE)
_USUAL = {NODE[0], f"{sys.version_info[0]}.{sys.version_info[1]}"}
"""The oldest, and that of the tests; the others are left to `make test-all`."""
VERSIONS = [pytest.param(v, marks=() if v in _USUAL else pytest.mark.slow) for v in NODE]


def python(version: str) -> str:
    if version not in HERE:
        pytest.skip(f"no Python {version} on this machine")
    return HERE[version]


def said(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False, cwd="/")
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("version", VERSIONS)
def test_every_module_that_travels_is_imported_without_anything_else(version: str, tmp_path: Path) -> None:
    files = sorted((SRC / TRAVELS).rglob("*.py"))
    (tmp_path / "windlass").mkdir()
    (tmp_path / "windlass" / "__init__.py").touch()
    names = []
    for file in files:
        place = tmp_path / "windlass" / file.relative_to(SRC)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(file.read_bytes())
        if file.stem not in {"__init__", "sitecustomize"}:
            names.append(".".join(("windlass", *file.relative_to(SRC).with_suffix("").parts)))
    code = "import importlib, sys; sys.path.insert(0, sys.argv[1]); [importlib.import_module(n) for n in sys.argv[2:]]"
    said(python(version), "-I", "-S", "-W", "error", "-c", code, str(tmp_path), *names)
    assert len(names) > 60


@pytest.mark.parametrize("version", VERSIONS)
def test_the_checks_of_a_node_run(version: str) -> None:
    spec = {
        "nodes": 1, "first": 0, "seconds": 20, "devices": {}, "nics": [], "interfaces": {}, "folders": [], "job": "",
        "meeting": None, "place": ["NOT_SET"],
    }  # fmt: skip
    text = said(python(version), "-I", "-S", "-c", script_text("windlass.node.checks.main:main", spec))
    found = decode_findings(read_messages(text.splitlines())[0]["findings"])
    assert found and not [finding for finding in found if "could not be checked" in finding.evidence]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_rank_of_a_self_test_reports(version: str) -> None:
    text = said(python(version), "-I", "-S", "-c", script_text("windlass.node.checks.selftest:main", {}))
    (report,) = read_messages(text.splitlines())
    assert report["python"].startswith(f"{version}.")
