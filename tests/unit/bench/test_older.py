"""Records of version 0.1.0: every one that is kept here is read and shown, and what is no record is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windlass.bench import compare, report
from windlass.bench.page import page
from windlass.bench.reading import read_record
from windlass.bench.reference import load_references
from windlass.errors import ConfigError, VersionError

RESULTS = Path(__file__).parents[3] / "results"
REFERENCES = load_references()
# Measures of other programs, which say themselves what they are.
OTHERS = {
    "push-before-after-preliminary",
    "push-floors",
    "waits-for-libraries-16-cores-cuda",
    "norm-sweep",
    "parts",
}
KEPT = [
    path
    for folder in ("h200", "h200/tried", "h200/commands", "start")
    for path in sorted((RESULTS / folder).glob("*.json"))
]


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_kept_record_is_shown_or_refused_with_a_sentence(path: Path) -> None:
    if path.stem in OTHERS:
        with pytest.raises(ConfigError, match="not a benchmark record"):
            read_record(path)
        return
    record = read_record(path)
    assert record.rows
    assert record.title in report.text(record, REFERENCES)
    assert page([record], REFERENCES).startswith("<!doctype html>")
    assert not compare.compare(record, record).only_a


def test_a_start_of_several_nodes_is_a_table_of_cases() -> None:
    record = read_record(RESULTS / "start" / "torch.json")
    assert record.case == "start"
    assert record.options["import"] == "torch"
    assert record.rows[0].labels == {"case": "native", "nodes": 1, "ranks": 1}
    assert len(record.rows[0].samples["start_s"]) == 5
    lines = report.text(record, REFERENCES).splitlines()
    assert any(line.split()[:4] == ["cache", "4", "4", "4.89"] for line in lines)


def test_a_push_shows_its_share_of_the_link() -> None:
    record = read_record(RESULTS / "start" / "push-links-400M.json")
    assert record.rows[0].figures["link_share"].formula == "rate / the link's rate"
    assert "of the link" in report.text(record, REFERENCES)


def test_what_was_not_measured_is_told_as_skipped(tmp_path: Path) -> None:
    row = {"case": "sbcast", "nodes": 2, "ranks": 2, "seconds": None, "shared_calls": None, "shared_bytes": None}
    raw = {"version": 1, "what": "bench start", "machine": {"cpus": 2}, "rows": [row | {"not_measured": "no Slurm"}]}
    (tmp_path / "r.json").write_text(json.dumps(raw))
    record = read_record(tmp_path / "r.json")
    assert (record.rows, record.skipped) == ((), ("sbcast on 2 nodes: no Slurm",))
    assert "nothing was measured" in report.text(record, REFERENCES)


@pytest.mark.parametrize("kind", ["bench start", "windlass.bench.train"])
def test_a_newer_version_of_an_older_form_is_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "r.json").write_text(json.dumps({"record": kind, "version": 2}))
    with pytest.raises(VersionError, match="newer"):
        read_record(tmp_path / "r.json")
