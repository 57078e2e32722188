"""Bundles of `windlass selftest` from real machines, replayed: `tests/data/bundles/*.tar.gz`."""

from __future__ import annotations

import dataclasses
import io
import tarfile
from pathlib import Path

import msgspec
import pytest
import replay_bundle
from replay_bundle import Bundle, compare, patch_text, read_bundle

from looping import each
from windlass.model.finding import Finding
from windlass.model.request import Allocation
from windlass.model.secrets import MASK
from windlass.run.adopt import ClusterAnswers, measurements
from windlass.run.selftest_bundle import _without_people
from windlass.sites.catalog import load_site
from windlass.sites.evidence import Evidence
from windlass.sites.topology.described import topology_from_spec

FOLDER = Path(__file__).parents[2] / "data" / "bundles"
BUNDLES = sorted(FOLDER.glob("*.tar.gz"))


@each("path", BUNDLES, ids=lambda path: path.name)
def test_windlass_still_agrees_with_what_was_seen(path: Path) -> None:
    bundle = read_bundle(path)
    assert [found.sentence() for found in compare(bundle) if found.severity == "error"] == []
    assert "self-test of windlass" in patch_text(bundle)


def _slurm(**changes: object) -> Bundle:
    return dataclasses.replace(read_bundle(FOLDER / "slurm-4-nodes.tar.gz"), **changes)  # type: ignore[arg-type]


def test_the_slurm_of_four_nodes_is_replayed_from_its_answers() -> None:
    bundle = _slurm()
    facts = measurements("sim", bundle.seen)
    assert [(queue.name, queue.nodes_max) for queue in facts.queues] == [("batch", 4)]
    assert sorted(bundle.cpus) == list(range(8)) and sorted(bundle.variables) == list(range(8))
    assert compare(bundle) == ()


def test_ranks_that_ran_elsewhere_than_planned_now_are_an_error() -> None:
    found = compare(_slurm(cpus={0: (1,), 1: (1,)}))
    assert [each.evidence for each in found] == ["rank 0 ran on 1, now planned 0"]


def test_another_node_than_the_catalogs_is_an_error_and_in_the_patch() -> None:
    """As if Frontier's nodes had another number of cores, its cluster another name and its queues other limits."""
    bundle = _slurm()
    spec = load_site("lumi").file
    seen = ClusterAnswers(
        date="2026-11-16",
        evidence=Evidence(variables={"LMOD_SYSTEM_NAME": "frontier"}, schedulers={"slurm": "x"}),
        answers={
            "scontrol --oneliner show partition": "PartitionName=batch State=UP MaxTime=1-00:00:00 TotalNodes=9000\n"
            "PartitionName=new State=UP MaxTime=02:00:00 TotalNodes=8"
        },
        topology=topology_from_spec(spec.node, spec.devices),
    )
    plan = msgspec.structs.replace(bundle.plan, site="frontier", partition=None)
    other = dataclasses.replace(bundle, plan=plan, seen=seen)
    kinds = {(found.kind, found.severity) for found in compare(other)}
    assert {("queue", "note"), ("plan", "note")} <= kinds
    text = patch_text(other)
    assert 'kind = "overlay"\nextends = "frontier"' in text and 'name = "new"' in text
    smaller = msgspec.structs.replace(seen, topology=bundle.seen.topology)
    assert ("node", "error") in {(f.kind, f.severity) for f in compare(dataclasses.replace(other, seen=smaller))}
    assert "\n[node]" in patch_text(dataclasses.replace(other, seen=smaller))


def test_a_variable_that_a_module_changed_is_noted() -> None:
    bundle = _slurm()
    name = next(s.name for s in bundle.plan.environment if s.value not in (None, MASK) and "$" not in str(s.value))
    found = compare(dataclasses.replace(bundle, variables={3: {name: "else"}}))
    assert found[0].evidence.startswith(f"{name} was 'else' in rank 3")


def test_failures_of_the_self_test_stay_errors() -> None:
    wrong = Finding("all-reduce", "error", "timeout")
    assert compare(_slurm(findings=(wrong,))) == (wrong,)


def test_names_of_people_are_not_in_the_answers() -> None:
    seen = ClusterAnswers(
        date="2026-11-16",
        evidence=Evidence(),
        answers={
            "scontrol": "PartitionName=a AllowGroups=ALL AllowAccounts=alice,bob State=UP DenyAccounts=carol",
            "qstat": '{"q":{"acl_users":"dave@host","acl_user_enable":"True","comment":"ask \\"erin\\" first"}}',
        },
        allocation=Allocation(scheduler="slurm", job_id="1", hosts=("n1",), account="frank"),
    )
    text = msgspec.json.encode(_without_people(seen)).decode()
    assert not [name for name in ("alice", "bob", "carol", "dave", "erin", "frank") if name in text]
    assert "AllowGroups=ALL" in text and 'acl_user_enable\\":\\"True' in text


@each("kind", ["link", "outside", "large"])
def test_an_archive_of_a_stranger_is_refused(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "b.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        entry = tarfile.TarInfo("../plan.json" if kind == "outside" else "selftest/plan.json")
        entry.size = 8
        if kind == "link":
            entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(entry, io.BytesIO(b"{}      "))
    if kind == "large":
        monkeypatch.setattr(replay_bundle, "MAX_BYTES", 600)
    with pytest.raises(ValueError, match="is not a file of a bundle"):
        read_bundle(path)
