"""Results of thousands of nodes are a few lines, and the odd nodes stand out."""

from __future__ import annotations

from windlass.cli.doctor import health_lines
from windlass.diagnose.doctor.health import Health, failing_hosts, fold
from windlass.diagnose.doctor.nodes import decoded
from windlass.model.finding import Finding, Severity, worst_severity
from windlass.node.checks.finding import ok

HOSTS = tuple(f"nid{number:04d}" for number in range(1, 1001))


def _findings(odd: str, severity: Severity) -> list[Finding]:
    return [
        Finding("devices", severity, "3 by nvidia-smi, where the plan has 4", "use another", subject=host)
        if host == odd
        else Finding("devices", "ok", "4 by nvidia-smi", subject=host)
        for host in HOSTS
    ]


def _health(findings: list[Finding]) -> Health:
    folded = fold(findings)
    severity = worst_severity(folded)
    return Health(version=2, site="s", nodes=1000, level="quick", severity=severity, findings=folded)


def test_a_thousand_nodes_are_one_line_and_the_odd_one_another() -> None:
    lines = health_lines(_health(_findings("nid0417", "error")))
    assert lines[0] == "error    devices: nid0417: 3 by nvidia-smi, where the plan has 4"
    assert lines[1].endswith("→ use another")
    assert lines[2] == "ok       devices: nid[0001-0416,0418-1000]: 4 by nvidia-smi"
    assert "1 check failed on 1000 nodes" in lines[3]


def test_an_examination_outside_of_a_job_says_what_it_left_out() -> None:
    health = Health(version=1, site="frontier", nodes=1, outside=True, level="quick", severity="ok", findings=())
    assert health_lines(health)[-1].startswith("outside of a job on frontier: get an allocation")


def test_results_that_differ_in_a_number_only_are_one() -> None:
    findings = [
        Finding("space", "warning", f"/tmp has {index}.5 MiB free", subject=host) for index, host in enumerate(HOSTS)
    ]
    (only,) = fold(findings)
    assert only.facts == {"nodes": 1000} and only.subject == "nid[0001-1000]"


def test_a_node_is_to_blame_where_the_others_are_well_and_the_plan_where_all_fail() -> None:
    assert failing_hosts(_findings("nid0417", "error"), HOSTS) == {
        "nid0417": "devices: 3 by nvidia-smi, where the plan has 4"
    }
    assert failing_hosts(_findings("nid0417", "warning"), HOSTS) == {}
    everywhere = [Finding("x", "error", "no", subject=host) for host in HOSTS]
    assert failing_hosts(everywhere, HOSTS) == {}
    alone = [Finding("x", "error", "no", subject="a")]
    assert failing_hosts(alone, ("a",)) == {}


def test_findings_of_another_form_are_no_findings() -> None:
    found = decoded([ok(f"check {n}", f"seen {n}", free=n) for n in range(3)])
    assert found is not None and [finding.kind for finding in found] == ["check 0", "check 1", "check 2"]
    assert found[0].facts == {"free": 0}
    assert decoded(None) is None and decoded([{"kind": 1}]) is None
