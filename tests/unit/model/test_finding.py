"""The one form of a finding: order, counts, one line, and what node programs print."""

from __future__ import annotations

import msgspec
import pytest

from windlass.model.finding import (
    SEVERITIES,
    Finding,
    count_text,
    decode_findings,
    finding_lines,
    worst_first,
    worst_severity,
)


def _findings(*severities: str) -> list[Finding]:
    return decode_findings([{"kind": f"kind-{index}", "severity": one} for index, one in enumerate(severities)])


def test_the_worst_severity_ignores_skipped_checks_and_is_ok_for_none() -> None:
    assert worst_severity(_findings("ok", "warning", "skipped", "note")) == "warning"
    assert worst_severity(_findings("skipped")) == worst_severity([]) == "ok"


def test_findings_are_sorted_by_severity_and_keep_their_order_within_one() -> None:
    found = worst_first(_findings("note", "error", "ok", "error", "skipped", "warning"))
    assert [finding.kind for finding in found] == ["kind-1", "kind-3", "kind-5", "kind-0", "kind-2", "kind-4"]
    assert tuple(dict.fromkeys(finding.severity for finding in found)) == SEVERITIES


def test_counts_name_only_what_needs_attention() -> None:
    assert count_text(_findings("note", "error", "ok", "note", "skipped")) == "1 error, 2 notes"
    assert count_text(_findings("ok")) == ""


def test_a_finding_of_a_node_gets_the_node_as_its_subject_unless_it_names_one() -> None:
    printed = [{"kind": "swap", "severity": "ok"}, {"kind": "device", "severity": "ok", "subject": "device 3"}]
    assert [finding.subject for finding in decode_findings(printed, subject="nid1")] == ["nid1", "device 3"]


@pytest.mark.parametrize("printed", [None, {}, [{"severity": "ok"}], [{"kind": "x", "severity": "fail"}], [3]])
def test_anything_else_that_a_node_prints_is_refused(printed: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_findings(printed)


def test_text_has_severity_kind_subject_evidence_and_the_advice_below() -> None:
    finding = Finding(kind="straggler", severity="error", subject="rank 3", evidence="it is slow", advice="replace it")
    assert finding_lines([finding]) == ["error    straggler: rank 3: it is slow", "         → replace it"]
    assert finding.line() == "straggler: rank 3: it is slow (replace it)"
