"""Why is this there? Everything that the plan and the catalog know about one name. Pure."""

from __future__ import annotations

import re

import msgspec

from windlass.errors import UsageError, nearest
from windlass.model.origin import Argument
from windlass.model.plan import Plan
from windlass.model.site import Site
from windlass.notation.cpulist import format_cpulist
from windlass.notation.shell import quote_words
from windlass.plan.show import setting_line


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One place where a name occurs: in the plan, or in the catalog under a condition that does not hold here."""

    where: str
    text: str
    because: str
    source: str
    active: bool
    when: str = ""
    note: str = ""


def find_name(name: str, plan: Plan, site: Site) -> tuple[Finding, ...]:
    """All findings, the active ones first. A name that nobody knows is a `UsageError` with the nearest one."""
    found = [*_in_plan(name, plan), *_in_catalog(name, plan, site), *_in_notes(name, site)]
    if not found:
        known = {s.name for s in plan.environment} | {s.name for s in site.file.settings}
        known |= {a.name for a in (*plan.launch, *plan.directives)} | ({"agents"} if plan.agents else set())
        close = nearest(name, known)
        raise UsageError(
            f"{name}: neither this plan nor the catalog entry of {site.name} has it",
            hint=(f"did you mean {close}? " if close else "")
            + "`windlass plan --explain` shows everything with reasons",
        )
    return tuple(found)


def _in_plan(name: str, plan: Plan) -> list[Finding]:
    out = [
        Finding(
            where="variable",
            text=setting_line(setting),
            because=setting.because,
            source=setting.origin.text(),
            active=True,
            note=setting.note,
            when=setting.when.text() if setting.when.at_run_time else "",
        )
        for setting in plan.environment
        if setting.name == name
    ]
    groups: tuple[tuple[str, tuple[Argument, ...]], ...] = (
        ("launcher argument", plan.launch),
        ("batch directive", plan.directives),
        ("limit", plan.limits),
        ("container argument", plan.container.arguments if plan.container else ()),
        ("agents' argument", plan.agents.launch if plan.agents else ()),
    )
    for where, arguments in groups:
        out += [
            Finding(
                where=where,
                text=quote_words(argument.words),
                because=argument.because,
                source=argument.origin.text(),
                active=True,
            )
            for argument in arguments
            if argument.name == name or argument.name.lstrip("-") == name.lstrip("-") or name in argument.words
        ]
    if plan.agents and name in {"agent", "agents", *plan.agents.services}:
        cpus = f"cpus {format_cpulist(plan.agents.cpus)} {plan.agents.cpus_because}"
        out.append(
            Finding(
                where="agents",
                text=f"one on every node: {', '.join(plan.agents.services)}",
                because=plan.agents.because,
                source=plan.agents.origin.text(),
                active=True,
                note=cpus if plan.agents.cpus else plan.agents.cpus_because,
            )
        )
    if plan.container:
        out += [
            Finding(
                where="mount", text=f"{m.source} -> {m.target}", because=m.because, source=m.origin.text(), active=True
            )
            for m in plan.container.mounts
            if name in {m.source, m.target}
        ]
    return out


def _in_catalog(name: str, plan: Plan, site: Site) -> list[Finding]:
    """Catalog entries for this name that are not in the plan, with the condition that would bring them in."""
    present = {(s.value, s.because) for s in plan.environment if s.name == name}
    out: list[Finding] = []
    for spec in site.file.settings:
        if spec.name == name and (spec.value, spec.because) not in present:
            out.append(
                Finding(
                    where="variable",
                    text=f"{spec.name}={spec.value}" if spec.value is not None else f"{spec.name} unset",
                    because=spec.because,
                    source=spec.origin.text() if spec.origin else spec.source,
                    active=False,
                    when=spec.when.text(),
                    note=spec.note,
                )
            )
    for where, specs, used in (
        ("launcher argument", site.file.launcher.arguments, plan.launch),
        ("batch directive", site.file.scheduler.directives, plan.directives),
    ):
        there = {argument.words for argument in used}
        for argument_spec in specs:
            first = argument_spec.words[0].split("=", 1)[0] if argument_spec.words else ""
            if first.lstrip("-") == name.lstrip("-") and argument_spec.words not in there:
                out.append(
                    Finding(
                        where=where,
                        text=quote_words(argument_spec.words),
                        because=argument_spec.because,
                        source=argument_spec.origin.text() if argument_spec.origin else argument_spec.source,
                        active=False,
                        when=argument_spec.when.text(),
                    )
                )
    return out


def _in_notes(name: str, site: Site) -> list[Finding]:
    word = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w])")  # NCCL_NET is not NCCL_NET_GDR_LEVEL, -c is not -core
    return [
        Finding(
            where="note",
            text=f"{note.topic}: {note.verdict}",
            because=f"alternatives: {note.alternatives}" if note.alternatives else "",
            source=note.source,
            active=False,
        )
        for note in site.file.notes
        if word.search(f"{note.topic} {note.verdict} {note.alternatives}")
    ]


def findings_text(findings: tuple[Finding, ...]) -> str:
    lines: list[str] = []
    for finding in findings:
        state = "in this plan" if finding.active else "note" if finding.where == "note" else "not in this plan"
        lines.append(finding.text if finding.where == "note" else f"{finding.text}   ({finding.where}, {state})")
        for label, value in (
            ("because", finding.because),
            ("when", finding.when),
            ("source", finding.source),
            ("note", finding.note),
        ):
            if value:
                lines.append(f"  {label:<8}{value}")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"
