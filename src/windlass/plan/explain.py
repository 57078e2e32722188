"""Explain a name: find it in the plan and in the catalog. Compare two plans. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from windlass.backends.containers import get_runtime
from windlass.base.notation.counts import format_cpulist
from windlass.base.notation.shell import quote_words
from windlass.errors import UsageError, nearest
from windlass.model.condition import ALWAYS, When
from windlass.model.jsontext import one_line_json
from windlass.model.origin import BUILTIN, Argument
from windlass.model.plan import AgentsPlan, Mount, Plan, RayPlan, Setting
from windlass.model.site import SettingSpec, Site
from windlass.plan.environment.ranks import FOLDER_VARIABLES, RANK_VARIABLES, hidden_device_settings
from windlass.plan.render.rank_lines import wrap_spec
from windlass.plan.show import argument_text, setting_line


class Occurrence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One occurrence of a name: in the plan, or in the catalog under a condition that does not hold here."""

    where: str
    text: str
    because: str
    source: str
    active: bool
    replaced: bool = False
    """The plan would contain it if the user had not asked for something different."""
    when: str = ""
    note: str = ""


def find_name(
    name: str, plan: Plan, site: Site, *, default: Plan | None = None, others: Iterable[Site] = ()
) -> tuple[Occurrence, ...]:
    """Return all occurrences of a name.

    The active ones come first, then those of the `default` plan that the user's options replaced. `others` are searched
    if this site does not have the name.
    """
    active = _in_plan(name, plan)
    replaced = _replaced(active, _in_plan(name, default)) if default is not None else []
    texts = {occurrence.text for occurrence in replaced}
    found = [*active, *replaced, *(f for f in _in_catalog(name, plan, site) if f.text not in texts)]
    found += _in_notes(name, site)
    found = found or _elsewhere(name, plan, others)
    if not found:
        known = {s.name for s in plan.environment} | {s.name for s in site.file.settings}
        known |= {a.name for a in (*plan.launch, *plan.directives)} | ({"agents"} if plan.agents else set())
        close = nearest(name, known)
        raise UsageError(
            f"{name}: not in this plan, and not in the catalog entry of {site.name}",
            hint=(f"did you mean {close}? " if close else "")
            + "`windlass plan --explain` or `windlass explain RUN` shows all settings with their reasons",
        )
    return tuple(found)


def _replaced(active: list[Occurrence], before: list[Occurrence]) -> list[Occurrence]:
    kept = {(occurrence.where, occurrence.text) for occurrence in active}
    gone = [occurrence for occurrence in before if (occurrence.where, occurrence.text) not in kept]
    return [msgspec.structs.replace(occurrence, active=False, replaced=True) for occurrence in gone]


def _elsewhere(name: str, plan: Plan, others: Iterable[Site]) -> list[Occurrence]:
    """Occurrences in the rest of the catalog: each fact once, those of most machines first."""
    sites: dict[Occurrence, list[str]] = {}
    for site in others:
        for occurrence in _in_catalog(name, plan, site):
            names = sites.setdefault(occurrence, [])
            if site.name not in names:
                names.append(site.name)
    return [
        msgspec.structs.replace(occurrence, where=f"{occurrence.where} on {', '.join(names)}")
        for occurrence, names in sorted(sites.items(), key=lambda item: -len(item[1]))
    ]


def _in_plan(name: str, plan: Plan) -> list[Occurrence]:
    box, agents = plan.container, plan.agents
    settings: tuple[tuple[str, tuple[Setting, ...]], ...] = (
        ("variable", plan.environment),
        ("variable inside the container", box.settings if box else ()),
        (
            "variable for the container",
            get_runtime(box.runtime).host_settings(wrap_spec(plan, "RUN_DIR")) if box else (),
        ),
    )
    out = [
        _active(where, setting_line(one), one, note=one.note, when=one.when.text() if one.when.at_run_time else "")
        for where, group in settings
        for one in group
        if one.name == name
    ]
    out += [
        Occurrence(where=where, text=text, because=because, source=BUILTIN.text(), active=True, note=note)
        for where, text, because, note in _of_ranks(name, plan)
    ]
    arguments: tuple[tuple[str, tuple[Argument, ...]], ...] = (
        ("launcher argument", plan.launch),
        ("batch directive", plan.directives),
        ("limit", plan.limits),
        ("container argument", box.arguments if box else ()),
        ("agents' argument", agents.launch if agents else ()),
    )
    out += [
        _active(where, argument_text(one), one)
        for where, group in arguments
        for one in group
        if one.name == name or one.name.lstrip("-") == name.lstrip("-") or name in one.words
    ]
    if agents and name in {"agent", "agents", *agents.services}:
        cpus = f"cpus {format_cpulist(agents.cpus)} {agents.cpus_because}" if agents.cpus else agents.cpus_because
        out.append(_active("agents", f"one on every node: {', '.join(agents.services)}", agents, note=cpus))
    if plan.ray and name.lower() in {"ray", "ray_address"}:
        text = "RAY_ADDRESS of the first node: ray.init() in the command connects to the Ray of this run"
        out.append(_active("ray", text, plan.ray))
    mounts = box.mounts if box else ()
    out += [_active("mount", f"{m.source} -> {m.target}", m) for m in mounts if name in {m.source, m.target}]
    return out


def _active(
    where: str, text: str, of: Setting | Argument | AgentsPlan | RayPlan | Mount, *, note: str = "", when: str = ""
) -> Occurrence:
    """A part of the plan, with its reason and source."""
    return Occurrence(
        where=where, text=text, because=of.because, source=of.origin.text(), active=True, note=note, when=when
    )


def _of_ranks(name: str, plan: Plan) -> Iterator[tuple[str, str, str, str]]:
    """Variables that the rank script always exports: place, text, reason and note."""
    for variable in RANK_VARIABLES:
        if variable.name == name:
            note = plan.rendezvous.because if name in {"MASTER_ADDR", "MASTER_PORT"} else ""
            yield "rank variable", f"{name}={variable.value}", f"read by {variable.readers}", note
    if name in FOLDER_VARIABLES:
        yield "variable", name, FOLDER_VARIABLES[name], ""


def _in_catalog(name: str, plan: Plan, site: Site) -> list[Occurrence]:
    """Catalog entries for this name that are not in the plan, with the condition that would add them."""
    inside = plan.container.settings if plan.container else ()
    present = {(s.value, s.because) for s in (*plan.environment, *inside) if s.name == name}
    out: list[Occurrence] = []
    for where, spec in _settings_of(site):
        if spec.name == name and (spec.value, spec.because) not in present:
            out.append(
                Occurrence(
                    where="variable",
                    text=f"{spec.name}={spec.value}" if spec.value is not None else f"{spec.name} unset",
                    because=spec.because,
                    source=spec.origin.text() if spec.origin else spec.source,
                    active=False,
                    when=spec.when.text() if not where else where + _also(spec.when),
                    note=spec.note,
                )
            )
    for setting in hidden_device_settings():
        if setting.name == name and (setting.value, setting.because) not in present:
            text, source = f"{name}={setting.value}", setting.origin.text()
            when = "--device cpu"
            out.append(
                Occurrence(where="variable", text=text, because=setting.because, source=source, active=False, when=when)
            )
    out += [
        Occurrence(
            where="left out",
            text=gone.text,
            because=gone.because,
            source=gone.origin.text(),
            active=False,
            note=f"{gone.by} leaves it out (`drop` in its site file)",
        )
        for gone in site.dropped
        if name in {gone.name, gone.text} or gone.name.lstrip("-") == name.lstrip("-")
    ]
    for where, specs, used in (
        ("launcher argument", site.file.launcher.arguments, plan.launch),
        ("batch directive", site.file.scheduler.directives, plan.directives),
    ):
        there = {argument.words for argument in used}
        for argument_spec in specs:
            first = argument_spec.words[0].split("=", 1)[0] if argument_spec.words else ""
            if first.lstrip("-") == name.lstrip("-") and argument_spec.words not in there:
                out.append(
                    Occurrence(
                        where=where,
                        text=quote_words(argument_spec.words),
                        because=argument_spec.because,
                        source=argument_spec.origin.text() if argument_spec.origin else argument_spec.source,
                        active=False,
                        when=argument_spec.when.text(),
                    )
                )
    return out


def _settings_of(site: Site) -> Iterator[tuple[str, SettingSpec]]:
    """Every variable of the site, with the option that it needs in addition to its own condition."""
    for spec in site.file.settings:
        yield "", spec
    for preset in site.file.binding.presets:
        for spec in preset.settings:
            yield f"with --cpu-bind {preset.name}", spec
    for container in site.file.containers:
        images = f" of {', '.join(container.images)}" if container.images else ""
        for spec in container.settings:
            yield f"in a container{images} ({container.runtime})", spec


def _also(when: When) -> str:
    return "" if when == ALWAYS else f", {when.text()}"


def _in_notes(name: str, site: Site) -> list[Occurrence]:
    word = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w])")  # NCCL_NET is not NCCL_NET_GDR_LEVEL, -c is not -core
    return [
        Occurrence(
            where="note",
            text=f"{note.topic}: {note.verdict}",
            because=f"alternatives: {note.alternatives}" if note.alternatives else "",
            source=note.source,
            active=False,
        )
        for note in site.file.notes
        if word.search(f"{note.topic} {note.verdict} {note.alternatives}")
    ]


def occurrences_text(occurrences: tuple[Occurrence, ...]) -> str:
    lines: list[str] = []
    for occurrence in occurrences:
        state = (
            "in this plan" if occurrence.active else "replaced by yours" if occurrence.replaced else "not in this plan"
        )
        lines.append(
            occurrence.text if occurrence.where == "note" else f"{occurrence.text}   ({occurrence.where}, {state})"
        )
        for label, value in (
            ("because", occurrence.because),
            ("when", occurrence.when),
            ("source", occurrence.source),
            ("note", occurrence.note),
        ):
            if value:
                lines.append(f"  {label:<8}{value}")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def diff_lines(old: Plan, new: Plan) -> list[str]:
    """The differences between two plans, one line each: `-` only in the first, `+` only in the second."""
    if old.parts or new.parts:
        whole = [_component_plans(plan) for plan in (old, new)]
        names = dict.fromkeys(name for plans in whole for name in plans)
        found = {name: diff_lines(*(plans.get(name, _no_parts(old)) for plans in whole)) for name in names}
        return [f"{name}: {line}" if name else line for name, lines in found.items() for line in lines]
    out: list[str] = []
    for title, left, right in (
        ("shape", _facts(old), _facts(new)),
        ("command", {"command": quote_words(old.command)}, {"command": quote_words(new.command)}),
        ("launch", _by_name(old.launch), _by_name(new.launch)),
        ("directives", _by_name(old.directives), _by_name(new.directives)),
        ("modules", _names((*old.modules_use, *old.modules)), _names((*new.modules_use, *new.modules))),
        ("prologue", _names(p.line for p in old.prologue), _names(p.line for p in new.prologue)),
        ("variables", _by_setting(old), _by_setting(new)),
        ("binding", _by_rank(old), _by_rank(new)),
        ("cache", _by_cache(old), _by_cache(new)),
        ("agents", _by_agents(old), _by_agents(new)),
        ("container", _by_container(old), _by_container(new)),
        ("limits", _by_name(old.limits), _by_name(new.limits)),
        ("the rest", _rest(old), _rest(new)),
    ):
        changes = _changes(left, right)
        if changes:
            out += [title, *(f"  {line}" for line in changes)]
    return out


def _component_plans(plan: Plan) -> dict[str, Plan]:
    """The plan of each component by its name, and the plan of the job that contains them by the empty name."""
    names = (one.name for one in plan.request.components)
    return {"": _no_parts(plan), **dict(zip(names, plan.parts, strict=True))}


def _no_parts(plan: Plan) -> Plan:
    return msgspec.structs.replace(plan, parts=(), request=msgspec.structs.replace(plan.request, components=()))


def _changes(left: dict[str, str], right: dict[str, str]) -> list[str]:
    lines: list[str] = []
    for key in [*left, *(key for key in right if key not in left)]:
        if left.get(key) == right.get(key):
            continue
        if key in left:
            lines.append(f"- {left[key]}")
        if key in right:
            lines.append(f"+ {right[key]}")
    return lines


def _facts(plan: Plan) -> dict[str, str]:
    names = ("site", "partition", "nodes", "ranks_per_node", "scheduler", "launcher", "hosts", "windlass")
    return {name: f"{name} {getattr(plan, name)}" for name in names}


_TOLD = {"request", "remarks", "version", "world_size", "job_id", "name", "environment", "command", "secret_words"}
_TOLD |= {"site", "partition", "nodes", "ranks_per_node", "scheduler", "launcher", "hosts", "windlass", "modules_use"}
_TOLD |= {"launch", "directives", "modules", "prologue", "binding", "container", "limits", "topology", "agents"}
"""Fields that other parts of a comparison show, or that cannot change the run."""


def _rest(plan: Plan) -> dict[str, str]:
    """All other fields, so that a new field cannot be forgotten here."""
    asked = plan.request
    out = {"cwd": f"in {asked.cwd}", "placeholders": f"placeholders {asked.placeholders}"}
    out["comm_log"] = f"comm_log {asked.comm_log}"
    for name in plan.__struct_fields__:
        if name not in _TOLD:
            out[name] = f"{name} {one_line_json(getattr(plan, name))}"
    return out


def _by_name(arguments: tuple[Argument, ...]) -> dict[str, str]:
    """Arguments by name, and by number among those with the same name."""
    out: dict[str, str] = {}
    for argument in arguments:
        same = sum(1 for key in out if key.rpartition(" ")[0] == argument.name)
        out[f"{argument.name} {same}"] = quote_words(argument.words)
    return out


def _names(words: Iterable[str]) -> dict[str, str]:
    return {word: word for word in words}


def _by_setting(plan: Plan) -> dict[str, str]:
    return {f"{s.name} {s.when.text()} {s.value if s.joins else ''}": setting_line(s) for s in plan.environment}


def _by_rank(plan: Plan) -> dict[str, str]:
    return {
        str(rank.local_rank): f"local rank {rank.local_rank}: cpus {format_cpulist(rank.cpus) or 'any'}"
        f" devices {','.join(str(d) for d in rank.devices) or '-'}"
        for rank in plan.binding.ranks
    }


def _by_cache(plan: Plan) -> dict[str, str]:
    cache = plan.cache
    if cache is None:
        return {}
    out = {f"root {root.path}": f"root {root.path}" for root in cache.roots}
    out["how"] = f"{cache.placement}, {cache.budget_bytes} bytes, trace {'on' if cache.trace else 'off'}"
    return out


def _by_agents(plan: Plan) -> dict[str, str]:
    agents = plan.agents
    if agents is None:
        return {}
    out = {
        "services": f"services {', '.join(agents.services)}",
        "cpus": f"cpus {format_cpulist(agents.cpus) or 'any'}: {agents.cpus_because}",
        "ready": f"up within {agents.ready_s:g} s",
    }
    if agents.restart is not None:
        out["restart"] = f"restart: {agents.restart.because}; standby {agents.restart.standby_because}"
    return out | {f"argument {k}": v for k, v in _by_name(agents.launch).items()}


def _by_container(plan: Plan) -> dict[str, str]:
    box = plan.container
    if box is None:
        return {}
    out = {"image": f"{box.runtime} {box.image}"}
    if box.host_libs:
        out["host libraries"] = box.host_libs.own or ", ".join(box.host_libs.names)
    out |= {f"mount {m.target}": f"mount {m.source} -> {m.target}" for m in box.mounts}
    return out | {f"argument {k}": v for k, v in _by_name(box.arguments).items()}
