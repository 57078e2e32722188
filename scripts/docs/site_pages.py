"""What a site's page has from the catalog: node, queues, storage, settings with reasons, dated sources. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from markdown_table import table
from windlass.base.notation.shell import quote_words
from windlass.model.condition import ALWAYS, When
from windlass.model.plan import Binding
from windlass.model.site import QueueSpec, Site, SiteFile
from windlass.model.topology import Topology
from windlass.sites.catalog import load_site, site_names
from windlass.sites.topology.bind import bind
from windlass.sites.topology.binding_request import binding_request_from_site
from windlass.sites.topology.described import topology_from_spec
from windlass.sites.topology.picture import node_picture


def catalog_sites() -> list[Site]:
    """The machines that have a page of their own: all but the generic entries."""
    return [load_site(name) for name in site_names() if not name.startswith("generic-") and name != "workstation"]


def site_picture(site: Site) -> str:
    """A node with one rank per device, as `windlass sites show` draws it in text; empty where no node is described."""
    if not site.file.node.domains:
        return ""
    binding, topology = _bound(site)
    return node_picture(binding, topology, f"{site.file.title}: one rank per device")


def site_part(site: Site) -> str:
    """The generated part, without the marks around it."""
    blocks = (
        _node(site),
        _section("Queues and limits", _queues(site.file)),
        _section("Storage", _storage(site.file)),
        _section("Python environments", _environments(site.file)),
        _section("What a plan has, and why", _settings(site)),
        _section("Where sources differ", _notes(site.file)),
        _section("Sources", _sources(site.file)),
    )
    return "\n".join(block for block in blocks if block)


def overview(sites: Sequence[Site]) -> str:
    """The first page of the sites: all machines in one table."""
    rows = []
    for site in sites:
        file = site.file
        devices = topology_from_spec(file.node, file.devices).devices if file.node.domains else ()
        rows.append(
            (
                f"[{file.title}]({site.name}.md)",
                file.operator,
                f"{file.scheduler.kind}, {file.launcher.kind}",
                f"{len(devices)} × {file.devices.name}" if devices else file.devices.name,
                file.network or "",
                max((spec.checked for spec in file.sources.values()), default=""),
            )
        )
    head = ("machine", "operator", "scheduler, launcher", "torch devices of a node", "network", "newest source")
    return "\n".join(
        (
            "# Sites",
            "",
            "The machines of the catalog. Each page has the first commands, the defaults, the binding and the sources.",
            "`windlass sites show NAME` prints the entry.",
            "",
            *table(head, rows),
            "",
            "Other machines: [a machine that is not in the catalog](generic.md). Your own site file:",
            "[writing a site file](writing-a-site-file.md).",
            "",
            "The facts come from the sites' documents. No entry was run on its machine yet, and every plan says so.",
            "",
        )
    )


def _bound(site: Site) -> tuple[Binding, Topology]:
    file = site.file
    topology = topology_from_spec(file.node, file.devices)
    asked = binding_request_from_site(file.binding, file.devices, ranks_per_node=max(1, len(topology.devices)))
    return bind(topology, asked), topology


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join((f"## {title}", "", *lines, "")) if lines else ""


def _node(site: Site) -> str:
    if not site.file.node.domains:
        return ""
    binding, _ = _bound(site)
    reason = f"preset `{binding.preset}`: {binding.because}" if binding.preset else binding.because
    order = " ".join(str(index) for index in binding.visible)
    lines = [
        f"![A node of {site.file.title} with one rank per device](maps/{site.name}.svg)",
        "",
        f"One rank per device: {reason}." + (f" Every rank sees the devices in the order {order}." if order else ""),
        "",
        "```",
        f"windlass sites show {site.name}                  # this entry as text, with the map",
        f"windlass plan --site {site.name} --nodes 2       # what would run, anywhere",
        f"windlass plan --site {site.name} --nodes 2 --explain",
        "```",
    ]
    return _section("The node", lines)


def _queues(file: SiteFile) -> list[str]:
    if not file.queues:
        return []
    rows = [
        (f"`{q.name}`" + (" (default)" if q.default else ""), q.kind, _size(q), _time(q), _remark(q))
        for q in file.queues
    ]
    return table(("name", "kind", "nodes", "time", "remarks"), rows)


def _size(queue: QueueSpec) -> str:
    if queue.nodes_max:
        return f"{queue.nodes_min or 1} to {queue.nodes_max}"
    return f"from {queue.nodes_min}" if queue.nodes_min else ""


def _time(queue: QueueSpec) -> str:
    bins = ", ".join(f"{step.time_max} to {step.nodes_max} nodes" for step in queue.bins)
    return f"{bins}, otherwise {queue.time_max}" if bins else queue.time_max or ""


def _remark(queue: QueueSpec) -> str:
    said = (
        queue.note,
        "" if queue.devices else "no accelerators",
        "only if you name it" if queue.by_name and queue.devices else "",
        "" if queue.firm else "not confirmed, windlass only warns",
    )
    return ". ".join(dict.fromkeys(part for part in said if part))


def _storage(file: SiteFile) -> list[str]:
    store = file.storage
    kind = "" if store.local_kind == "unknown" else f", {store.local_kind}"
    rows = (
        ("home", _code(store.home)),
        ("large and shared", _code(store.scratch)),
        ("downloads (`HF_HOME` and others)", _code(store.downloads)),
        ("JIT caches, one per node", f"`{store.local}`{kind}"),
        ("`windlass stage` puts things into", _code(store.stage)),
        ("visible on all nodes", ", ".join(f"`{path}`" for path in store.shared)),
        ("notes", store.note),
    )
    known = [row for row in rows if row[1]]
    return table(("what", "where"), known) if len(known) > 1 else []


def _environments(file: SiteFile) -> list[str]:
    python = file.python
    if not python.because:
        return []
    beneath = {"nothing": "", "module": " on top of the module's packages", "image": " on top of the image's packages"}
    rows = (
        ("how", f"{python.kind}{beneath[python.beneath]}"),
        ("why", python.because),
        ("image", _code(python.image)),
        ("torch", _code(python.torch)),
        ("mpi4py", _code(f'MPICC="{python.mpicc}"') if python.mpicc and python.beneath != "image" else ""),
        ("where", _code(python.place)),
        ("quotas", ", ".join(f"`{path}`: {text}" for path, text in python.quotas.items())),
        ("notes", python.note),
    )
    lines = table(("what", ""), [row for row in rows if row[1]])
    return [*lines, "", f"All steps: `windlass env plan --site {file.name}` ([how to](../howto/environment.md))."]


def _code(path: str) -> str:
    return f"`{path}`" if path else ""


def _settings(site: Site) -> list[str]:
    """Everything that the catalog puts into a plan here: directives, launcher arguments, modules, variables, limits."""
    file = site.file
    rows: list[tuple[str, ...]] = []
    for kind, specs in (("directive", file.scheduler.directives), ("launcher", file.launcher.arguments)):
        rows += [(kind, f"`{quote_words(a.words)}`", _when(a.when), a.because, a.source) for a in specs]
    for module in file.modules:
        words = " ".join((*(f"use {path}" for path in module.use), *module.load))
        when = _when(module.when) if module.default else "asked for with `--module`"
        rows.append(("module", f"`{words}`", when, module.because, module.source))
    for s in sorted(file.settings, key=lambda s: (s.when.option is not None, s.when.option or "")):
        rows.append(("variable", f"`{_assignment(s.name, s.value)}`", _when(s.when), s.because, s.source))
    rows += [("limit", f"`ulimit {quote_words(a.words)}`", _when(a.when), a.because, a.source) for a in file.limits]
    rows += [("prologue", f"`{line.line}`", _when(line.when), line.because, line.source) for line in file.prologue]
    if not rows:
        return []
    lead = [
        "Your own value always wins. `windlass explain NAME --site " + site.name + "` explains one variable.",
        "",
    ]
    return lead + table(("what", "value", "when", "because", "source"), rows)


def _assignment(name: str, value: str | None) -> str:
    return f"{name} unset" if value is None else f"{name}={value}"


def _when(when: When) -> str:
    return "" if when == ALWAYS else when.text()


def _notes(file: SiteFile) -> list[str]:
    rows = [(note.topic, note.verdict, note.alternatives, note.source) for note in file.notes]
    return table(("about", "taken here", "elsewhere", "source"), rows) if rows else []


def _sources(file: SiteFile) -> list[str]:
    rows = [(f"`{key}`", spec.where, spec.checked, spec.grade) for key, spec in file.sources.items()]
    return table(("source", "where", "read on", "grade"), rows) if rows else []
