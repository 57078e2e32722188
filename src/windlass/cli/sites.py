"""The catalog of machines: list them, show one, find out which one this is, adopt a new one, check a file of yours."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from windlass.base.notation.counts import counted
from windlass.base.notation.shell import quote_words
from windlass.base.notation.style import table_lines
from windlass.base.settings import ConfigFolders, Settings, current_environ, job_keys, read_settings
from windlass.cli.show import Result
from windlass.errors import WindlassError
from windlass.model.condition import ALWAYS, When
from windlass.model.finding import Finding
from windlass.model.origin import ArgumentSpec, Origin, SourceSpec
from windlass.model.site import ModuleSpec, NoteSpec, QueueSpec, Site
from windlass.model.topology import DeviceSpec, FabricSpec, PeakSpec, ReferenceSpec
from windlass.plan.site_check import site_misfits
from windlass.run.adopt import adopt_site
from windlass.sites.adopted import Measurements
from windlass.sites.catalog import load_site, site_names, sites_of_file
from windlass.sites.check import check_file, located, problem
from windlass.sites.detect import detect_site
from windlass.sites.topology.bind import bind
from windlass.sites.topology.binding_request import binding_request_from_site
from windlass.sites.topology.described import topology_from_spec
from windlass.sites.topology.draw import draw_node


def site_text(site: Site) -> str:
    """The whole entry, in the order in which a user needs it."""
    file = site.file
    head = [f"{site.name}: {file.title}" + (f" ({file.operator})" if file.operator else "")]
    if file.status:
        head.append(f"  {file.status}")
    sections = (
        ("machine", _machine(site)),
        ("queues", table_lines([(*_queue(q), _layer(site, f"queues.{q.kind} {q.name}")) for q in file.queues])),
        ("batch directives", _flat(_argument(a) for a in file.scheduler.directives)),
        ("launcher arguments", _flat(_argument(a) for a in file.launcher.arguments)),
        ("modules", _flat(_modules(m, _layer(site, f"modules.{' '.join(m.load)}")) for m in file.modules)),
        ("variables", _flat(_setting(s.name, s.value, s.because, s.when, s.origin, s.note) for s in file.settings)),
        (
            "binding presets",
            _flat(_preset(p.name, p.ranks_per_node, p.cpus, p.because, p.origin) for p in file.binding.presets),
        ),
        ("containers", _flat(_container(site))),
        ("storage", _storage(site)),
        ("Python environments", _python(site)),
        ("peak rates of one device", [_peak(p) + _layer(site, f"peaks.{p.precision}") for p in file.peaks]),
        ("measured by others", [_reference(reference, site) for reference in file.references]),
        ("notes", _flat(_note(n, _layer(site, f"notes.{n.topic}")) for n in file.notes)),
        ("node", _node(site)),
        ("sources", [_source(key, spec) for key, spec in file.sources.items()]),
    )
    lines = [*head, ""]
    for title, body in sections:
        if body:
            lines += [title, *(f"  {line}".rstrip() for line in body), ""]
    return "\n".join(lines)


def centre_text(settings: Settings, site: Site) -> str:
    """The computing centre's settings for jobs at this site, in addition to its site files."""
    centre = settings.centre
    if centre is None:
        return ""
    if centre.why_not:
        return f"centre\n  {centre.folder} is not used: {centre.why_not}\n"
    lines = [f"files in {centre.folder}"]
    for key in job_keys():
        used = settings.job_default(site.name, key)
        layer = "centre" if used == settings.centre_default(site.name, key) else "user"
        lines += [f"{key} = {used}  [{layer}]"] if used else []
    for rule in centre.forbidden_at(site.name):
        lines.append(f"forbidden: {', '.join(rule.options)}: {rule.because}")
    for nodes in centre.bad_nodes:
        if nodes.site == site.name:
            lines.append(f"not used until {nodes.until}: {nodes.hosts}: {nodes.because}")
    return "\n".join(["centre", *(f"  {line}" for line in lines), ""])


def adopted_text(seen: Measurements, path: str, *, by_name: bool) -> str:
    """The measured values, the missing values and how to get them, and how to use the file."""
    node = f"not known: {seen.node_missing}"
    if seen.node:
        devices = sum(len(domain.devices) for domain in seen.node.domains)
        node = f"{seen.node.cores} cores, {counted(devices, 'device')}, as on {seen.node_host}"
    rows = (
        ("scheduler", seen.scheduler),
        ("queues", ", ".join(queue.name for queue in seen.queues) or "none told"),
        ("launcher", seen.launcher or f"unknown; windlass uses that of {seen.extends}"),
        ("fabric", seen.network or ("none seen" if seen.node else "unknown, because no node was measured")),
        ("modules", " ".join(seen.modules)),
        ("node", node),
    )
    use = f"--site {seen.name}" if by_name else f"--site {path}"
    lines = [f"{name:<11}{value}" for name, value in rows if value]
    return "\n".join((*lines, "", f"written to {path}; use it with {use}"))


def _flat(groups: Iterable[list[str]]) -> list[str]:
    return [line for group in groups for line in group]


def _when(when: When) -> str:
    return "" if when == ALWAYS else f"   when {when.text()}"


def _from(origin: Origin | None) -> str:
    return f"  [{origin.text()}]" if origin else ""


def _layer(site: Site, key: str) -> str:
    """The file that sets a value, if the line has no room for the source."""
    origin = site.origin_of(key)
    return f"  [{f'{origin.scope} {origin.file}'.strip()}]"


def _words(words: tuple[str, ...], because: str, when: When, origin: Origin | None) -> str:
    return f"{quote_words(words)}{_when(when)}: {because}{_from(origin)}"


def _setting(name: str, value: str | None, because: str, when: When, origin: Origin | None, note: str) -> list[str]:
    lines = [f"{name}={value}" if value is not None else f"{name} unset"]
    lines[0] += _when(when)
    lines.append(f"    {because}{_from(origin)}")
    return [*lines, f"    note: {note}"] if note else lines


def _argument(spec: ArgumentSpec) -> list[str]:
    line = _words(spec.words, spec.because, spec.when, spec.origin)
    return [line, f"    note: {spec.note}"] if spec.note else [line]


def _peak(peak: PeakSpec) -> str:
    return f"{peak.precision:<6}{peak.tflops:g} TFLOP/s" + (f"  ({peak.note})" if peak.note else "")


def _reference(reference: ReferenceSpec, site: Site) -> str:
    nodes = f" on {counted(reference.nodes, 'node')}" if reference.nodes else ""
    ranks = f" x {counted(reference.ranks_per_node, 'rank')}" if reference.nodes and reference.ranks_per_node else ""
    note = f"  ({reference.note})" if reference.note else ""
    layer = _layer(site, f"references.{reference.what} {reference.nodes}x{reference.ranks_per_node}")
    return f"{reference.what}{nodes}{ranks}: {reference.value:g} {reference.unit}{note}{layer}"


def _devices(devices: DeviceSpec) -> str:
    """Text such as `NVIDIA A100 (nvidia), cuda, nccl, 40 GB at 1.6 TB/s`."""
    if not devices.vendor:
        return ""
    memory = f"{devices.memory_gb:g} GB" if devices.memory_gb else ""
    speed = f" at {devices.memory_tbs:g} TB/s" if memory and devices.memory_tbs else ""
    parts = (f"{devices.name} ({devices.vendor})", devices.torch_type, devices.backend, memory + speed)
    return ", ".join(part for part in parts if part)


def _machine(site: Site) -> list[str]:
    file = site.file
    rows = (
        ("hardware", "hardware", file.hardware),
        ("network", "network", file.network),
        ("largest", "largest_nodes", f"{file.largest_nodes} nodes" if file.largest_nodes else None),
        ("scheduler", "scheduler.kind", file.scheduler.kind),
        ("launcher", "launcher.kind", file.launcher.kind),
        ("processors", "node.cpu", file.node.cpu),
        ("devices", "devices.name", _devices(file.devices)),
        ("plugin", "fabric.plugin", _plugin(file.fabric)),
        ("rendezvous", "rendezvous.suffix", f"first host{file.rendezvous.suffix}"),
    )
    return [f"{name:<11}{value}  [{site.origin_of(key).text()}]" for name, key, value in rows if value]


def _plugin(fabric: FabricSpec) -> str:
    if not fabric.plugin:
        return ""
    by = ", ".join(plugin.by for plugin in fabric.plugins)
    return f"{fabric.plugin}, brought by {by}" if by else f"{fabric.plugin}: {fabric.remedy}"


def _queue(queue: QueueSpec) -> tuple[str, ...]:
    nodes = f"{queue.nodes_min or 1}-{queue.nodes_max} nodes" if queue.nodes_max else ""
    bins = ", ".join(f"{step.time_max} to {step.nodes_max} nodes" for step in queue.bins)
    times = f"{bins}, else {queue.time_max}" if bins else queue.time_max or ""
    said = ("default" if queue.default else "", "" if queue.devices else "no accelerators", queue.note)
    return f"{queue.kind} {queue.name}", nodes, times, "  ".join(part for part in said if part)


def _modules(spec: ModuleSpec, layer: str) -> list[str]:
    words = " ".join((*(f"use {path}" for path in spec.use), *spec.load))
    line = f"{words}{_when(spec.when)}{'' if spec.default else '   (only with --module)'}: {spec.because}{layer}"
    return [line, f"    note: {spec.note}"] if spec.note else [line]


def _preset(name: str, ranks: int, cpus: str, because: str, origin: Origin | None) -> list[str]:
    return [f"{name}: {ranks} ranks per node", f"    {cpus}", f"    {because}{_from(origin)}"]


def _container(site: Site) -> Iterable[list[str]]:
    for box in site.file.containers:
        here = f"containers.{box.runtime}"
        lines = [f"{box.runtime}{' (default)' if box.default else ''}{_layer(site, f'{here}.runtime')}"]
        lines += [f"    {_words(a.words, a.because, a.when, a.origin)}" for a in box.arguments]
        lines += [
            f"    bind {b.source_path}{':' + b.target if b.target else ''}{_when(b.when)}: {b.because}{_from(b.origin)}"
            for b in box.binds
        ]
        lines += [f"    {s.name}={s.value}{_when(s.when)}: {s.because}{_from(s.origin)}" for s in box.settings]
        if box.activate:
            images = ", ".join(box.activate_images) or "of this site"
            lines.append(f"    first, in images {images}: {box.activate}{_layer(site, f'{here}.activate')}")
        yield [*lines, f"    note: {box.note}"] if box.note else lines


def _storage(site: Site) -> list[str]:
    store = site.file.storage
    rows = (
        ("home", "home", store.home),
        ("scratch", "scratch", store.scratch),
        ("downloads", "downloads", store.downloads),
        ("shared", "shared", " ".join(store.shared)),
        ("node-local", "local", f"{store.local} ({store.local_kind})"),
        ("staging", "stage", store.stage),
        ("note", "note", store.note),
    )
    return [f"{name:<11}{value}{_layer(site, f'storage.{key}')}" for name, key, value in rows if value]


def _python(site: Site) -> list[str]:
    python = site.file.python
    if not python.because:
        return []
    keys = ("kind", "beneath", "torch", "place", "because", "note")
    rows = [(key, getattr(python, key), _layer(site, f"python.{key}")) for key in keys]
    rows.append(("all steps", f"windlass env plan --site {site.name}", ""))
    return [f"{name:<11}{value}{layer}" for name, value, layer in rows if value]


def _note(note: NoteSpec, layer: str) -> list[str]:
    lines = [f"{note.topic}: {note.verdict}{layer}"]
    return [*lines, f"    alternatives: {note.alternatives}"] if note.alternatives else lines


def _node(site: Site) -> list[str]:
    """The map of a node with one rank per device."""
    file = site.file
    if not file.node.domains:
        return []
    topology = topology_from_spec(file.node, file.devices)
    asked = binding_request_from_site(file.binding, file.devices, ranks_per_node=max(1, len(topology.devices)))
    return draw_node(bind(topology, asked), topology).splitlines()


def _source(key: str, spec: SourceSpec) -> str:
    return f"{key}: {spec.where} ({spec.grade}, checked {spec.checked})"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true")
    sub = parser.add_subparsers(
        dest="action", required=True, metavar="list | show [NAME] | detect | adopt NAME | check FILE"
    )
    for name, text in (("list", "all machines"), ("detect", "show which machine this is, and the evidence")):
        sub.add_parser(name, help=text)
    show = sub.add_parser("show", help="show all facts about one machine, with sources")
    show.add_argument("name", nargs="?", metavar="NAME", help="default: this machine")
    show.add_argument("--partition")
    adopt = sub.add_parser("adopt", help="measure this cluster and write a site file of it")
    adopt.add_argument("name", help="its name, for `--site NAME`")
    adopt.add_argument(
        "--output", metavar="FILE", help="path of the file (default: sites/NAME.toml in the config folder)"
    )
    adopt.add_argument("--force", action="store_true", help="replace an existing file")
    check = sub.add_parser("check", help="validate your own site file")
    check.add_argument("files", nargs="+", metavar="FILE")


def progress(args: argparse.Namespace) -> str | None:
    return "measuring this cluster" if args.action == "adopt" else "looking"


def main(args: argparse.Namespace) -> Result:
    settings = read_settings(current_environ())
    if args.action == "list":
        return _list(settings.folders)
    if args.action == "show":
        name = args.name or settings.site or detect_site(folders=settings.folders, environ=current_environ()).name
        site = load_site(name, partition=args.partition, folders=settings.folders)
        return Result(text=site_text(site) + centre_text(settings, site), data=site)
    if args.action == "detect":
        detection = detect_site(folders=settings.folders, environ=current_environ(), ask_scheduler=True)
        return Result(text="\n".join(detection.lines()), data=detection)
    if args.action == "adopt":
        return _adopt(args, settings.folders)
    problems = [p for file in args.files for p in _check(Path(file), settings.folders)]
    text = "\n".join(one.sentence() for one in problems) or "no problems"
    return Result(text=text, data=problems, exit_code=2 if problems else 0)


def _adopt(args: argparse.Namespace, folders: ConfigFolders) -> Result:
    target = Path(args.output) if args.output else None
    adopted = adopt_site(args.name, current_environ(), folders=folders, target=target, replace=args.force)
    text = adopted_text(adopted.seen, str(adopted.path), by_name=not args.output)
    return Result(text=text, data=adopted.seen)


def _check(path: Path, folders: ConfigFolders) -> tuple[Finding, ...]:
    """Problems of the file. If it has none, the reasons for which plans would refuse its site."""
    problems = check_file(path, folders=folders)
    if problems:
        return problems
    try:
        return located(path, (m for site in sites_of_file(path, folders) for m in site_misfits(site)))
    except WindlassError as error:
        return (problem(str(path), 1, error.message, hint=error.hint or ""),)


def _list(folders: ConfigFolders) -> Result:
    sites = [load_site(name, folders=folders).file for name in site_names(folders)]
    rows = [
        {
            "name": site.name,
            "title": site.title,
            "operator": site.operator,
            "scheduler": site.scheduler.kind,
            "launcher": site.launcher.kind,
            "hardware": site.hardware,
            "network": site.network,
        }
        for site in sites
    ]
    width = max(len(str(row["name"])) for row in rows)
    text = "\n".join(
        f"{row['name']:<{width}}  {row['scheduler']:<6} {row['launcher']:<8} {row['title']}"
        + (f" ({row['operator']})" if row["operator"] else "")
        for row in rows
    )
    return Result(text=text, data=rows)
