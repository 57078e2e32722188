"""Compare a plan with what the ranks of its self-test saw, and write the archive of the self-test.

The archive is for people outside the project. It contains no values of the user's variables, except those of the
collective libraries.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

import windlass
from windlass.base.notation.counts import format_cpulist, parse_cpulist
from windlass.errors import WindlassError
from windlass.model.finding import Finding
from windlass.model.plan import Plan, plan_to_json
from windlass.node.sys.messages import read_messages
from windlass.node.sys.reading import read_text
from windlass.run.adopt import ClusterAnswers, ask_cluster
from windlass.run.bundle import plan_for_strangers, scrubber, write_archive
from windlass.run.failure.ends import read_seats
from windlass.run.failure.rank_logs import rank_logs
from windlass.run.folder import RunFolder, read_plan


def reports(plan: Plan, folder: RunFolder) -> list[dict[str, object]]:
    """Return the reports of the ranks, by rank. A rank with an incomplete message has not reported."""
    found = read_messages(text for _, text in rank_logs(plan, folder.path).lines())
    return sorted(found, key=lambda report: int(report["rank"]))


def judge(plan: Plan, folder: RunFolder) -> list[Finding]:
    """Compare the plan with what the ranks saw."""
    said = reports(plan, folder)
    findings = [_finding("ranks", len(said) == plan.world_size, f"{len(said)} of {plan.world_size} reported")]
    planned = {rank.local_rank: rank.cpus for rank in plan.binding.ranks}
    seats = sorted(read_seats(folder.part("where")))
    wrong = [
        f"rank {seat.rank}: {seat.cpus} instead of {format_cpulist(planned[seat.rank % plan.ranks_per_node])}"
        for seat in seats
        if planned.get(seat.rank % plan.ranks_per_node)
        and set(parse_cpulist(seat.cpus)) != set(planned[seat.rank % plan.ranks_per_node])
    ]
    findings.append(_finding("binding", not wrong, "; ".join(wrong[:4]) or "every rank is bound as planned"))
    torch_said = [report["torch"] for report in said if isinstance(report["torch"], dict)]
    right = [answer for answer in torch_said if answer.get("all_reduce_right")]
    missing = [answer for answer in torch_said if "missing" in answer]
    if not torch_said or missing:
        return [*findings, Finding("all-reduce", "skipped", "not tested: torch is not installed for this interpreter")]
    failed = next((str(answer["failed"]) for answer in torch_said if answer.get("failed")), "")
    findings.append(_finding("all-reduce", len(right) == len(said), failed or f"right on {len(right)} ranks"))
    return [*findings, Finding("transport", "ok", _transport(folder, torch_said))]


def _finding(kind: str, right: bool, evidence: str) -> Finding:
    return Finding(kind, "ok" if right else "error", evidence)


def _transport(folder: RunFolder, answers: list[dict[str, object]]) -> str:
    """Return which transport moved the bytes, from the collective library's log if it exists."""
    for file in sorted(folder.part("comm").iterdir()):
        for line in read_text(file, within=folder.path, errors="replace").splitlines():
            if "Using network" in line:
                return line.split("Using network", 1)[1].strip()
    return str(answers[0].get("backend"))


_PARTS = ("result.json", "rank.sh", "launch.sh", "launcher.log")


def write_bundle(
    bundle: Path,
    folder: RunFolder,
    findings: list[Finding],
    environ: Mapping[str, str],
    given: Iterable[tuple[str, str]] = (),
) -> None:
    """Write one archive with the plan, the scripts, the reports of the ranks and the findings.

    It contains no secret of `environ` and `given` (--env) from any source, because a library's error message may
    contain any variable.
    """
    plan = read_plan(folder.path)
    about: dict[str, object] = {
        "windlass": windlass.__version__,
        "findings": msgspec.to_builtins(findings),
        "reports": reports(plan, folder),
    }
    try:
        about["seen"] = msgspec.to_builtins(_without_people(ask_cluster(environ)))
    except WindlassError as error:  # the reports of the ranks are useful without it
        about["not_seen"] = str(error)
    files = {
        "report.json": json.dumps(about, indent=1),
        "plan.json": plan_to_json(plan_for_strangers(plan)).decode(),
    }
    for name in _PARTS:
        if folder.part(name).exists():
            files[name] = _text(folder.part(name), folder.path)
    for part in ("where", "comm"):
        files |= {f"{part}/{file.name}": _text(file, folder.path) for file in sorted(folder.part(part).iterdir())}
    write_archive(
        bundle, "selftest", files, scrubber(environ, given, plan, home=environ.get("HOME", "")), option="--bundle"
    )


_PEOPLE = re.compile(
    r"""\b((?:Allow|Deny)(?:Accounts|Groups)=)(?!ALL\b)\S+"""
    r"""|("(?:acl_users|acl_groups|acl_hosts|acl_roots|managers|operators|mail_from|comment)"\s*:\s*)"(?:[^"\\]|\\.)*\""""
)
"""In answers of schedulers: who may use a queue."""


def _without_people(seen: ClusterAnswers) -> ClusterAnswers:
    """Return the cluster's answers without the names of accounts, groups and users."""

    def hide(found: re.Match[str]) -> str:
        return f"{found[1]}hidden" if found[1] else f'{found[2]}"hidden"'

    answers = {argv: _PEOPLE.sub(hide, text) for argv, text in seen.answers.items()}
    job = msgspec.structs.replace(seen.allocation, account=None) if seen.allocation else None
    return msgspec.structs.replace(seen, answers=answers, allocation=job)


def _text(path: Path, within: Path) -> str:
    return read_text(path, within=within, errors="surrogateescape")
