"""Show a plan as text for people. Pure."""

from __future__ import annotations

from windlass.backends.launchers.base import RUN_MARK
from windlass.base.notation.counts import counted, format_cpulist
from windlass.base.notation.shell import expandable, quote, quote_words
from windlass.base.notation.style import table_lines
from windlass.model.finding import SERIOUS, finding_lines
from windlass.model.origin import Argument
from windlass.model.plan import Plan, Setting
from windlass.model.request import Component, Request
from windlass.node.cache.config import state_folder
from windlass.plan.cache import agents_folder
from windlass.plan.render.batch_script import has_prologue, prologue_lines
from windlass.plan.render.rank_script import rank_script
from windlass.plan.render.variables import JobFacts
from windlass.plan.trainers import trainer_spec
from windlass.sites.topology.draw import draw_node

RUN_DIR = "RUN_DIR"
"""Placeholder for the run folder, which does not exist yet when a plan is shown."""
OWN_PATHS = "own-paths"
"""The finding whose `paths` belong to this machine, in a plan for another machine."""


def plan_text(
    plan: Plan,
    *,
    explain: bool = False,
    script: bool = False,
    color: bool = False,
    width: int = 110,
    columns: int | None = None,
) -> str:
    """All actions of a plan, in their order. With `explain`, also the reason for each line.

    Long command lines are folded between arguments to fit `columns`, so that a shell can read them. None: one line
    each. The plan of a job file shows the job, then each component.
    """
    if plan.parts:
        job = [_section("warnings", _remarks(plan)[0]), _summary(plan), _section("components", _components(plan))]
        job.append(_section("batch directives", _arguments(plan.directives, explain, columns=columns)))
        for one, part in zip(plan.request.components, plan.parts, strict=True):
            text = plan_text(part, explain=explain, script=script, color=color, width=width, columns=columns)
            job.append(f"component {one.name}\n\n{text}")
        return "\n".join(part for part in job if part)
    warnings, notes = _remarks(plan)
    parts = [
        _section("warnings", warnings),
        _summary(plan),
        _section("command of each rank", _marked(plan, _command(plan))),
        _section("launch", _arguments(plan.launch, explain, f"/bin/sh {RUN_DIR}/rank.sh", columns)),
        _section("batch directives", _arguments(plan.directives, explain, columns=columns)),
        _section("before the launcher", _marked(plan, prologue_lines(plan)) if has_prologue(plan) else []),
        _section("variables", _settings(plan.environment, explain)),
        _section("cooperative cache", _marked(plan, _cache(plan, explain))),
        _section("agents", _agents(plan, explain)),
        _section("trainer", _trainer(plan)),
        _section("ray", _marked(plan, _ray(plan, explain))),
        _section("container", _marked(plan, _container(plan, explain))),
        _section("limits", _arguments(plan.limits, explain)),
        _section("node", draw_node(plan.binding, plan.topology, width=width, color=color).splitlines()),
        _section("notes", notes),
    ]
    if script:
        port = plan.rendezvous.fixed_port  # otherwise the name of the variable that batch scripts set
        facts = JobFacts(
            run_dir=RUN_DIR, run_id="RUN_ID", master_addr=_address(plan), master_port=port, job_id="JOB_ID"
        )
        parts.append(_section("rank script", _marked(plan, rank_script(plan, facts).rstrip("\n").splitlines())))
    return "\n".join(part for part in parts if part)


def _marked(plan: Plan, lines: list[str]) -> list[str]:
    """The lines, with a comment on each that contains a path of this machine in a plan for another one.

    The comment is after the line, or above it if the command continues on the next line.
    """
    paths = [path for one in plan.remarks if one.kind == OWN_PATHS for path in one.facts["paths"]]
    out: list[str] = []
    begin = 0
    for line in lines:
        begin = begin if out and out[-1].endswith("\\") else len(out)
        mine, more = any(path in line for path in paths), line.endswith("\\")
        if mine and (more or begin < len(out)):
            out.insert(begin, "# a path of this machine:")
        out.append(f"{line}   # a path of this machine" if mine and not more and begin == len(out) else line)
    return out


def _address(plan: Plan) -> str:
    rule = plan.rendezvous
    return "127.0.0.1" if plan.nodes == 1 else f"FIRST_HOST{rule.suffix}"


def _section(title: str, lines: list[str]) -> str:
    if not lines:
        return ""
    return "\n".join([title, *(f"  {line}".rstrip() for line in lines), ""])


def _components(plan: Plan) -> list[str]:
    """One line for each component: its place, what it waits for, and what its end means for the job."""
    ends = {
        "wait": "the job waits for its end",
        "job": "its end ends the job",
        "service": "ends with the job",
        "ignore": "its end does not matter",
    }
    rows = []
    for one, part in zip(plan.request.components, plan.parts, strict=True):
        size = f"{counted(part.nodes, 'node')} x {counted(part.ranks_per_node, 'rank')}"
        hosts = part.hosts or ""
        cpus = tuple(sorted({cpu for rank in part.binding.ranks for cpu in rank.cpus}))
        place = f"cpus {format_cpulist(cpus)}" if cpus else ""
        needs = f"needs {', '.join(one.needs)}" if one.needs else ""
        rows.append((one.name, size, hosts, place, needs, _ready_text(one), ends[one.end]))
    return table_lines(rows)


def _ready_text(one: Component) -> str:
    test = one.ready
    if test is None:
        return ""
    what = f"answers GET {test.http}" if test.http else f"prints {test.log!r}" if test.log else f"makes {test.file}"
    what = "accepts connections" if test.port else "has finished" if test.finished else what
    return f"ready when it {what}, within {test.within_s:g} s"


def headline(plan: Plan) -> str:
    """One line: the command, the site and the size."""
    if plan.parts:
        names = f"{counted(plan.nodes, 'node')}, {counted(len(plan.parts), 'component')}"
        return f"{plan.name} on {plan.site}: {names}"
    size = f"{counted(plan.nodes, 'node')} x {counted(plan.ranks_per_node, 'rank')}"
    return f"{plan.name} on {plan.site}: {size} = {counted(plan.world_size, 'rank')}, {plan.launcher}"


def _summary(plan: Plan) -> str:
    lines = [
        headline(plan),
        f"  scheduler {plan.scheduler}, launcher {plan.launcher}"
        + (f", container {plan.container.runtime}" if plan.container else "")
        + (f", partition {plan.partition}" if plan.partition else ""),
    ]
    if plan.hosts:
        lines.append(f"  hosts {plan.hosts}")
    if plan.parts:
        return "\n".join([*lines, ""])
    rule = plan.rendezvous
    port = (
        str(rule.fixed_port)
        if rule.fixed_port
        else f"{rule.port_base} to {rule.port_base + rule.port_span - 1} by job id and run, checked to be free"
    )
    lines.append(f"  rendezvous {_address(plan)}, port {port}")
    if plan.request.supervised:
        lines.append(f"  kept alive: {_alive(plan.request)}")
    if plan.partners:
        lines.append("  partners: nodes 0 and 1, 2 and 3, … keep each other's newest snapshot in memory (--spares)")
    return "\n".join([*lines, ""])


def _alive(request: Request) -> str:
    parts = [f"{counted(request.restarts_allowed, 'restart')} in a row without a newer snapshot"]
    if request.spares:
        parts.append(f"{counted(request.spares, 'spare node')}")
    if request.hang_after_s:
        parts.append(f"a hang after {request.hang_after_s:g} s of silence")
    if request.until_done:
        parts.append("submitted again until it is done")
    return ", ".join(parts)


def _command(plan: Plan) -> list[str]:
    lines = [quote_words(plan.command)]
    if plan.interpreter_because and plan.command:
        lines.append(f"with {plan.command[0]}: {plan.interpreter_because}")
    if plan.request.cwd:
        lines.append(f"in {plan.request.cwd}")
    return lines


def _arguments(arguments: tuple[Argument, ...], explain: bool, tail: str = "", columns: int | None = None) -> list[str]:
    if not arguments:
        return [tail] if tail else []
    if not explain:
        return _folded([*(argument_text(argument) for argument in arguments), *([tail] if tail else [])], columns)
    width = min(44, max(len(argument_text(argument)) for argument in arguments))
    lines: list[str] = []
    for argument in arguments:
        text = argument_text(argument)
        lines.append(f"{text:<{width}}  {argument.because}  [{argument.origin.text()}]")
    return [*lines, tail] if tail else lines


def _folded(words: list[str], columns: int | None) -> list[str]:
    """The arguments in lines that fit. A backslash ends each line but the last.

    The section's indentation is left free.
    """
    lines = [words[0]]
    for word in words[1:]:
        if columns is not None and len(lines[-1]) + len(word) + 5 > columns:
            lines[-1] += " \\"
            lines.append(f"  {word}")
        else:
            lines[-1] += f" {word}"
    return lines


def argument_text(argument: Argument) -> str:
    words = (word.replace("{run_dir}", RUN_DIR).replace(RUN_MARK, "RUN") for word in argument.words)
    return quote_words(tuple(words))


def _settings(settings: tuple[Setting, ...], explain: bool) -> list[str]:
    lines: list[str] = []
    for setting in sorted(settings, key=lambda s: s.name):
        lines.append(setting_line(setting))
        if explain:
            lines.append(f"    {setting.because}  [{setting.origin.text()}]")
            if setting.note:
                lines.append(f"    note: {setting.note}")
    return lines


def setting_line(setting: Setting) -> str:
    """`NAME=value` in shell syntax. A comment has the node's test, and states if the user set the value."""
    value = expandable(setting.value or "") if setting.expand else quote(setting.value or "")
    if setting.value is None:
        text = f"unset {setting.name}"
    elif setting.prepend:
        text = f"{setting.name}={value}:${setting.name}"
    elif setting.append:
        text = f"{setting.name}=${setting.name}:{value}"
    else:
        text = f"{setting.name}={value}"
    said = [f"left to the module {setting.module} where that sets it"] if setting.module else []
    if setting.when.at_run_time:
        said.append(f"if {setting.when.text()}")
    if setting.origin.scope in {"environment", "flag"}:
        said.append("yours")
    elif setting.origin.grade in {"unconfirmed", "community"}:
        said.append(setting.origin.grade)
    return f"{text}   # {', '.join(said)}" if said else text


def _cache(plan: Plan, explain: bool) -> list[str]:
    cache = plan.cache
    if cache is None:
        return []
    reason = f"   {cache.because}  [{cache.origin.text()}]" if explain else ""
    lines = [
        f"{root.path} -> {state_folder(agents_folder(plan, 'UID', 'RUN_ID'), 'RUN_ID', 'NODE')}/view{root.path}"
        + (f" (really {root.real})" if root.real != root.path else "")
        + reason
        for root in cache.roots
    ]
    if cache.variables:
        lines.append(f"paths below are replaced in {', '.join(cache.variables)}, on the node")
    lines.append(
        f"{cache.placement}, up to {cache.budget_bytes >> 20} MiB a node, "
        + ("files read are recorded, and pushed ahead the next time" if cache.trace else "no trace")
        + ("; `submit` records the script's imports first" if cache.trace and cache.ahead and cache.variables else "")
    )
    if cache.readers > 1:
        lines.append(f"{cache.readers} nodes read the shared file system, each as the root of a separate tree")
    if cache.store:
        lines.append(f"stored in {cache.store} of each node, not in memory")
    if cache.allow_other:
        lines.append("root may enter the view (allow_other)")
    return lines


def _agents(plan: Plan, explain: bool) -> list[str]:
    agents = plan.agents
    if agents is None:
        return []
    reason = f"   {agents.because}  [{agents.origin.text()}]" if explain else ""
    lines = [
        f"one on every node: {', '.join(agents.services)}{reason}",
        f"cpus {format_cpulist(agents.cpus)} {agents.cpus_because}" if agents.cpus else agents.cpus_because,
        f"interpreter: {agents.interpreter}",
        f"up within {agents.ready_s:g} s",
    ]
    if agents.restart is not None:
        where = "in place" if agents.restart.in_place else "by the launcher"
        lines.append(f"restarts {where}: {agents.restart.because}")
        if agents.restart.standby_because:
            lines.append(f"standby process: {agents.restart.standby_because}")
    return [*lines, *_arguments(agents.launch, explain, tail=f"AGENT {RUN_DIR}/agent.pyz")]


def _trainer(plan: Plan) -> list[str]:
    trainer = plan.trainer
    if trainer is None:
        return []
    spec = trainer_spec(trainer.name)
    places = ", ".join(f"{trainer.folder.rstrip('/')}/{pattern}" for pattern in spec.checkpoints) if spec else ""
    how = {"itself": "by the script", "argument": "by windlass", "possible": "not yet", "never": "no"}[trainer.resume]
    return [
        f"{trainer.name}: {trainer.because}",
        f"time nearly up: {trainer.notice or 'no signal'}: {trainer.notice_because}",
        *(["its `scontrol requeue` does not reach Slurm: windlass restarts the run"] if trainer.holds_requeue else []),
        f"checkpoints: {places}",
        f"resumed: {how}: {trainer.resume_because}",
    ]


def _ray(plan: Plan, explain: bool) -> list[str]:
    ray = plan.ray
    if ray is None:
        return []
    reason = f"   {ray.because}  [{ray.origin.text()}]" if explain else ""
    cores, devices = ray.cpus or "its", "its" if ray.devices is None else ray.devices
    return [
        f"a head on the first node, a worker on each other node, with {cores} cores and {devices} devices{reason}",
        f"started by {ray.python}; the command runs once, on the first node, with RAY_ADDRESS and a token",
    ]


def _container(plan: Plan, explain: bool) -> list[str]:
    box = plan.container
    if box is None:
        return []
    lines = [f"{box.executable} {box.verb} {box.image}"]
    lines += _arguments(box.arguments, explain)
    for mount in box.mounts:
        flags = "".join(
            f", {word}" for word, on in (("read-only", mount.read_only), ("if it exists", mount.optional)) if on
        )
        line = f"{mount.source} -> {mount.target}{flags}"
        lines.append(f"{line}   {mount.because}  [{mount.origin.text()}]" if explain else line)
    if box.activate:
        lines.append(f"first: {box.activate}")
    if box.host_libs and explain:
        where = ", ".join((box.host_libs.own, *box.host_libs.folders) if box.host_libs.own else box.host_libs.folders)
        lines.append(
            f"libraries of the host, looked for in {where}   {box.host_libs.because}  [{box.host_libs.origin.text()}]"
        )
    if box.note:
        lines.append(f"note: {box.note}")
    return lines


def _remarks(plan: Plan) -> tuple[list[str], list[str]]:
    """Remarks that need attention, which come first, and the others."""
    serious, rest = (
        finding_lines(one for one in plan.remarks if (one.severity in SERIOUS) == first) for first in (True, False)
    )
    return serious, rest
