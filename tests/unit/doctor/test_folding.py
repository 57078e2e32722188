"""Results of thousands of nodes are a few lines, and the odd nodes stand out."""

from __future__ import annotations

import msgspec
import pytest

from windlass.cli.doctor import health_lines
from windlass.diagnose.doctor.health import Health, failing_hosts, fold
from windlass.diagnose.doctor.nodes import odd_hardware
from windlass.model.finding import Finding, Severity, decode_findings, worst_severity
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
    found = decode_findings([ok(f"check {n}", f"seen {n}", free=n) for n in range(3)])
    assert [finding.kind for finding in found] == ["check 0", "check 1", "check 2"]
    assert found[0].facts == {"free": 0}
    for other in (None, [{"kind": 1}]):
        with pytest.raises(msgspec.ValidationError):
            decode_findings(other)


def test_a_node_of_another_type_stands_out_and_small_differences_of_memory_do_not() -> None:
    def node(cpus: str = "64 x A", memory: int = 256 << 30, driver: str = "570.1") -> list[Finding]:
        facts = {"CPUs": cpus, "links": "", "memory": memory}
        return [Finding("hardware", "ok", facts=facts), Finding("devices", "ok", facts={"driver": driver})]

    unchecked = [Finding("hardware", "warning", "could not be checked")]
    alike = {"n1": node(), "n2": node(memory=250 << 30), "n3": node(driver=""), "n4": unchecked}
    assert odd_hardware(alike) == {}
    odd = odd_hardware({**alike, "n5": node(cpus="32 x A"), "n6": node(memory=128 << 30), "n7": node(driver="550.1")})
    assert {host: finding.evidence for host, finding in odd.items()} == {
        "n5": "CPUs: 32 x A, on most nodes 64 x A",
        "n6": "memory: 128 GiB, on most nodes 256 GiB",
        "n7": "driver: 550.1, on most nodes 570.1",
    }
