#!/usr/bin/env python3
"""Replays a bundle of `windlass selftest` on any machine: compares it with the catalog and prints a site-file patch.

scripts/replay_bundle.py windlass-selftest-SITE-TIME.tar.gz     # differences, then the patch
cp windlass-selftest-*.tar.gz tests/data/bundles/               # from then on a test replays it

Nothing of the bundle is executed. An error is a contradiction between windlass and what was seen on the machine: it
fails the test. A note is a difference that may be right, as a queue that the site has changed.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from windlass.base.notation.counts import format_cpulist, parse_cpulist
from windlass.base.notation.style import for_terminal
from windlass.errors import WindlassError
from windlass.model.finding import Finding, Severity, finding_lines, worst_first
from windlass.model.plan import Plan, plan_from_json
from windlass.model.secrets import MASK
from windlass.model.site import QueueSpec, Site
from windlass.plan.inputs import PlanningContext
from windlass.plan.plan import make_plan
from windlass.run.adopt import ClusterAnswers, measurements
from windlass.run.failure.ends import read_seats
from windlass.sites.adopted import Measurements, site_file_text
from windlass.sites.catalog import load_site, site_names
from windlass.sites.check import check_text
from windlass.sites.detect import catalog_signs, detect
from windlass.sites.folders import catalog_names
from windlass.sites.topology.described import choose_topology

MAX_BYTES = 8 << 20
_OF_ITS_DAY = frozenset({"windlass", "version", "remarks", "request", "site", "topology", "agents"})
"""Fields of a plan that are compared elsewhere, or that say when and how it was made."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bundle:
    """The parts of a bundle that are compared."""

    windlass: str
    plan: Plan
    seen: ClusterAnswers
    findings: tuple[Finding, ...]
    variables: Mapping[int, Mapping[str, str]]
    """What each rank had of the variables of collective libraries."""
    cpus: Mapping[int, tuple[int, ...]]
    """What each rank was bound to."""


def read_bundle(path: Path) -> Bundle:
    """A bundle from its archive. Raises `ValueError` for anything else: the file comes from a stranger."""
    files = dict(_members(path))
    report = json.loads(files.get("report.json", b"{}"))
    if "plan.json" not in files or "seen" not in report:
        raise ValueError(f"{path}: made by an older windlass, or the node was not seen: {report.get('not_seen', '')}")
    plan = plan_from_json(files["plan.json"], where=str(path))
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder) / "where"
        where.mkdir()
        for name, data in files.items():
            if re.fullmatch(r"where/\d{1,9}", name):
                (Path(folder) / name).write_bytes(data)
        seats = {seat.rank: tuple(parse_cpulist(seat.cpus)) for seat in read_seats(where)}
    return Bundle(
        windlass=report["windlass"],
        plan=plan,
        seen=msgspec.convert(report["seen"], ClusterAnswers),
        findings=tuple(msgspec.convert(each, Finding) for each in report["findings"]),
        variables={each["rank"]: each["variables"] for each in report["reports"]},
        cpus=seats,
    )


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Plain files alone, header by header: extended headers of an archive may be as large as they like, and slow."""
    with gzip.open(path) as packed:
        data = packed.read(MAX_BYTES + 1)
    at = 0
    while data[at : at + tarfile.BLOCKSIZE].strip(b"\0"):
        try:
            member = tarfile.TarInfo.frombuf(data[at : at + tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
        except tarfile.TarError as error:
            raise ValueError(f"{path}: {error}") from None
        at += tarfile.BLOCKSIZE
        top, _, name = member.name.partition("/")
        plain = member.type == tarfile.REGTYPE and top == "selftest" and 0 <= member.size <= len(data) - at
        if not plain or len(data) > MAX_BYTES:
            raise ValueError(f"{path}: {member.name!r} is not a file of a bundle, or the bundle is too large")
        yield name, data[at : at + member.size]
        at += -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def compare(bundle: Bundle) -> tuple[Finding, ...]:
    """Where windlass as it is now differs from what was seen."""
    site = load_site(bundle.plan.site, partition=bundle.plan.partition)
    parts = (_verdicts(bundle), _site(bundle), _node(bundle, site), _queues(bundle, site), _variables(bundle))
    return worst_first([*(finding for part in parts for finding in part), *_replan(bundle, site)])


def _finding(kind: str, severity: Severity, text: str) -> Finding:
    return Finding(kind, severity, text)


def _verdicts(bundle: Bundle) -> Iterator[Finding]:
    """What the self-test itself found wrong there."""
    yield from (found for found in bundle.findings if found.severity == "error")


def _site(bundle: Bundle) -> Iterator[Finding]:
    found = detect(bundle.seen.evidence, catalog_signs())
    if bundle.plan.request.site is None and found.name != bundle.plan.site:
        yield _finding("site", "error", f"planned for {bundle.plan.site}, recognised now as {found.name}")


def _node(bundle: Bundle, site: Site) -> Iterator[Finding]:
    """The catalog's node against the one that was looked at."""
    if bundle.seen.topology is not None and site.file.node.domains:
        for remark in choose_topology(site, bundle.seen.topology)[1]:
            yield _finding("node", "error" if remark.severity == "warning" else "note", remark.evidence)


def _queues(bundle: Bundle, site: Site) -> Iterator[Finding]:
    known = {queue.name: queue for queue in site.file.queues if queue.kind != "qos"}
    for queue in measurements("x", bundle.seen).queues if known else ():
        text = _queue_text(queue)
        if queue.name not in known:
            yield _finding("queue", "note", f"{queue.name} ({text}) is not in the catalog")
        elif _queue_text(known[queue.name]) != text:
            yield _finding("queue", "note", f"{queue.name} has {text}, in the catalog {_queue_text(known[queue.name])}")


def _queue_text(queue: QueueSpec) -> str:
    return f"{queue.nodes_min or 1}-{queue.nodes_max or 'any'} nodes, {queue.time_max or 'any time'}"


def _variables(bundle: Bundle) -> Iterator[Finding]:
    """Variables that the plan set and a rank had otherwise: a module or an entry point of an image changed them."""
    for setting in bundle.plan.environment:
        fixed = setting.value is not None and "$" not in setting.value and setting.value != MASK
        for rank, had in bundle.variables.items():
            if fixed and setting.name in had and had[setting.name] != setting.value:
                text = f"{setting.name} was {had[setting.name]!r} in rank {rank}, planned {setting.value!r}"
                yield _finding("variable", "note", text)
                break


def _replan(bundle: Bundle, site: Site) -> list[Finding]:
    """The same request planned now, in the same surroundings: as many ranks on the same CPUs, or an error."""
    old = bundle.plan
    context = PlanningContext(
        site=site,
        topology=old.topology,
        allocation=bundle.seen.allocation,
        python=old.command[0] if old.command else "python3",
        python_because=old.interpreter_because,
        on_node=True,
    )
    try:
        new, _ = make_plan(old.request, context)
    except WindlassError as error:
        return [_finding("plan", "error", f"the request is refused now: {error}")]
    found = []
    if (new.nodes, new.ranks_per_node, new.launcher) != (old.nodes, old.ranks_per_node, old.launcher):
        text = f"{new.nodes} x {new.ranks_per_node} ranks by {new.launcher}"
        found.append(_finding("plan", "error", f"{text} now, {old.world_size} by {old.launcher} then"))
    lists = [rank.cpus for rank in new.binding.ranks]
    for rank, cpus in bundle.cpus.items():
        planned = lists[rank % new.ranks_per_node] if lists else ()
        if planned and set(planned) != set(cpus):
            text = f"rank {rank} ran on {format_cpulist(cpus)}, now planned {format_cpulist(planned)}"
            found.append(_finding("binding", "error", text))
    own = {each.name for each in old.environment if each.value == MASK or each.origin.scope == "environment"}
    then, now = (
        _without_reasons(
            msgspec.to_builtins(
                msgspec.structs.replace(plan, environment=tuple(e for e in plan.environment if e.name not in own))
            )
        )
        for plan in (old, new)
    )
    changed = [key for key in {**then, **now} if key not in _OF_ITS_DAY and then.get(key) != now.get(key)]
    return [*found, *(_finding("plan", "note", _first_change(key, then.get(key), now.get(key))) for key in changed)]


def _without_reasons(value: Any) -> Any:
    """The value without sentences for people, which may change at any time."""
    if isinstance(value, dict):
        return {key: _without_reasons(one) for key, one in value.items() if not key.endswith("because")}
    return [_without_reasons(one) for one in value] if isinstance(value, list | tuple) else value


def _first_change(key: str, then: Any, now: Any) -> str:
    """The first place inside of a field in which two plans differ."""
    if isinstance(then, list | tuple) and isinstance(now, list | tuple):
        for index, (a, b) in enumerate(zip(then, now, strict=False)):
            if a != b:
                return _first_change(f"{key}[{index}]", a, b)
        return f"{key}: {len(then)} entries then, {len(now)} now"
    if isinstance(then, dict) and isinstance(now, dict):
        name = next(name for name in {**then, **now} if then.get(name) != now.get(name))
        return _first_change(f"{key}.{name}", then.get(name), now.get(name))
    return f"{key}: {then!r} then, {now!r} now"


def patch_text(bundle: Bundle, name: str | None = None) -> str:
    """A site file of what was seen. For a site of the catalog an overlay with what differs, for another machine a new
    file. `windlass sites check` accepts it."""
    site = bundle.plan.site
    generic = site == "workstation" or site.startswith("generic-")
    seen = measurements(name or bundle.seen.evidence.cluster_name or "new-machine" if generic else site, bundle.seen)
    text = site_file_text(seen if generic else _differing(seen, bundle))
    if not generic:
        text = text.replace(f'kind = "site"\nname = "{site}"', 'kind = "overlay"', 1)
    ok = [found.kind for found in bundle.findings if found.severity == "ok"]
    status = f"self-test of windlass {bundle.windlass} on {bundle.seen.date}, {bundle.plan.world_size} ranks"
    text = _with_status(text, f"{status}: {', '.join(ok) or 'nothing'} as planned")
    problems = check_text(text, file="patch", stem=seen.name, known=catalog_names)
    if problems:
        raise ValueError(f"the patch is no site file: {problems[0].sentence()}")
    return text


def _with_status(text: str, status: str) -> str:
    lines = [f"status = {json.dumps(status)}" if line.startswith("status = ") else line for line in text.splitlines()]
    lines[0] = "# From a bundle of `windlass selftest`."
    return "\n".join(lines) + "\n"


def _differing(seen: Measurements, bundle: Bundle) -> Measurements:
    """Of the measurements, what the catalog does not say."""
    site = load_site(bundle.plan.site, partition=bundle.plan.partition)
    known = {queue.name: _queue_text(queue) for queue in site.file.queues}
    queues = tuple(queue for queue in seen.queues if known and known.get(queue.name) != _queue_text(queue))
    detected = detect(bundle.seen.evidence, catalog_signs()).site == site.name
    same = not any(found.severity == "error" for found in _node(bundle, site))
    return msgspec.structs.replace(
        seen,
        extends=site.name,
        cluster_name=None if detected else seen.cluster_name,
        queues=queues,
        offers=(),
        launcher=None,
        modules=(),
        network=None if seen.network == site.file.network else seen.network,
        node=None if same else seen.node,
        node_missing="as in the catalog" if same else seen.node_missing,
    )


def main(argv: list[str]) -> int:
    code = 0
    for path in map(Path, argv):
        bundle = read_bundle(path)
        found = compare(bundle)
        known = "in the catalog" if bundle.plan.site in site_names() else "unknown"
        head = f"{path}: {bundle.plan.site} ({known}), windlass {bundle.windlass}, {bundle.seen.date}"
        lines = "\n".join(finding_lines(found)) or "no difference"
        print(for_terminal(f"{head}\n{lines}\n\n--- patch\n{patch_text(bundle)}"))
        code |= any(finding.severity == "error" for finding in found)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
