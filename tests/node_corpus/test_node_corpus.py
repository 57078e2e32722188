"""`windlass doctor` on pretended nodes with planted faults: each is named on its node, and its remedy works.

`make test` plants a tenth of them, all in one allocation. `WINDLASS_GOLDEN=write` records the rest for
`docs/reference/verdicts.md`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from node_corpus.faults import FAULTS, GROUPS, Fault
from node_corpus.nodes import NODES, Diagnosis, Nodes, nodes
from node_corpus.table import RECORDED
from requirements import missing_programs, require

pytestmark = pytest.mark.apart
_MAX_BROKEN_S = 30.0
_SLACK_S = 10.0
"""On top of it: the healthy part of the check, on a machine that other tests use at the same time."""
_TOGETHER = {
    "node2": ("/dev/shm of 64 MB", "64 open files", "TMPDIR that does not exist", "less memory on one node"),
    "node3": ("HOME read-only on one node", "30 minutes of CPU time", "a library preloaded on one node"),
    "node4": ("ranks of an earlier run", "another CPU type on one node", "address space of 20 GB"),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    why = missing_programs("unshare", "nsenter", "setpriv", "cc")
    require("namespaces", os.geteuid() == 0 and not why, why or "only root can make nodes with own mounts")
    with nodes(tmp_path_factory.mktemp("corpus")) as made:
        yield made


def _named(fault: Fault, found: Diagnosis) -> str:
    """Empty where the fault was named on its node with its remedy and nothing else was; else what was said."""
    where = fault.node if fault.seen_on is None else fault.seen_on
    hits = [one for one in found.findings if one["kind"] == fault.kind]
    right = len(hits) == 1 and hits[0].get("subject", "") == where and fault.remedy in hits[0].get("advice", "")
    others = {one["kind"] for one in found.findings} - {fault.kind, *fault.beside}
    wrong_node = {one.get("subject", where) for one in found.findings} - {where}
    return "" if right and not others and not wrong_node else str(found.findings)


def test_a_tenth_of_the_faults_at_once_are_named_each_on_its_node(cluster: Nodes) -> None:
    by_name = {fault.name: fault for fault in FAULTS}
    planted = {node: [by_name[name] for name in names] for node, names in _TOGETHER.items()}
    found = cluster.doctor({node: "\n".join(fault.plant for fault in faults) for node, faults in planted.items()})
    expected = {(fault.kind, node) for node, faults in planted.items() for fault in faults}
    beside = {(kind, node) for node, faults in planted.items() for fault in faults for kind in fault.beside}
    said = {(one["kind"], one.get("subject", "")) for one in found.findings}
    assert expected <= said <= expected | beside, found.text


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("vendor", ["", "nvidia", "amd", "intel"])
def test_healthy_nodes_get_no_finding(cluster: Nodes, vendor: str) -> None:
    assert cluster.doctor(vendor=vendor).findings == []
    if not vendor:
        assert cluster.doctor(level="").findings == []


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("group", GROUPS)
def test_faults_are_named_on_their_node_and_their_remedies_work(cluster: Nodes, group: str) -> None:
    rows = {}
    for fault in GROUPS[group]:
        if fault.prepare:
            subprocess.run(["sh", "-c", fault.prepare], cwd=cluster.site.home, check=True, timeout=60)
        words = _filled(cluster, fault.words)
        plants = {fault.node: fault.plant} if fault.node else {}
        found = cluster.doctor(plants, words=words, level=fault.level, vendor=fault.vendor, env=fault.env)
        missed = _named(fault, found)
        if found.seconds > _MAX_BROKEN_S + _SLACK_S:
            missed = missed or f"took {found.seconds:.0f} s"
        rows[fault.name] = {"kind": fault.kind, "missed": missed, "remedy": _mended(cluster, fault, words)}
    if os.environ.get("WINDLASS_GOLDEN") == "write":
        kept = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
        RECORDED.write_text(json.dumps({**kept, group: rows}, indent=1) + "\n")
    bad = {name: row for name, row in rows.items() if row["missed"] or row["remedy"].startswith("not clean")}
    assert len(bad) <= len(rows) // 20, json.dumps(bad, indent=1)


def _filled(cluster: Nodes, words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word.format(home=cluster.site.home, python=sys.executable) for word in words)


def _mended(cluster: Nodes, fault: Fault, words: tuple[str, ...]) -> str:
    """Do what the advice says: nothing is left to say."""
    if fault.mend == "avoid":
        return "leave the node out"
    if not fault.mend and fault.mended_words is None and fault.mended_env is None:
        return ""
    after = cluster.doctor(
        {fault.node: f"{fault.plant}\n{fault.mend}"} if fault.mend else {},
        words=words if fault.mended_words is None else _filled(cluster, fault.mended_words),
        level=fault.level,
        vendor=fault.vendor,
        env=fault.env if fault.mended_env is None else fault.mended_env,
    )
    return "applied" if not after.findings else f"not clean: {after.findings}"


def test_every_fault_has_a_name_of_its_own() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names) >= 60
    assert {fault.node for fault in FAULTS} <= {"", *NODES}
