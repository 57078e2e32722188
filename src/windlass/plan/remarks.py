"""Remarks for the user before the run: what the catalog contains about plans like this one. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from windlass.backends.schedulers import get_scheduler
from windlass.model.condition import Facts, holds
from windlass.model.finding import Finding
from windlass.model.plan import Binding, Setting
from windlass.model.request import Request
from windlass.model.site import Site
from windlass.model.topology import PluginSpec, ReferenceSpec, Topology
from windlass.plan.inputs import EnvironmentPlace, PlanningContext
from windlass.plan.ray import INDEPENDENT
from windlass.plan.shape import Shape
from windlass.sites.topology.check import problems_of

_SLOW_START_S = 30
_MANY_NODES = 64
_SLOW_LOOK_S = 5.0
_SOME_NODES = 16
_IMPORT_CALLS = 9_000
"""Number of calls of `import torch` on a cold node, from results/start/torch.json."""
_LIBRARIES = {"nvidia": "NCCL", "amd": "RCCL"}
_PLUGIN = re.compile(r"ofi|nccl|rccl", re.IGNORECASE)
_STEERS = re.compile(
    r"(?:NCCL|RCCL|CCL|FI|MPICH|UCX|OMP|MKL|CUDA|HIP|ROCR|HSA|ZE|TORCH\w*|PYTORCH|TRITON|MIOPEN|XLA|JAX|TF|HF|WANDB|DS)_"
    r"|PYTHON(?!UNBUFFERED)|LD_(?:LIBRARY_PATH|PRELOAD)\Z"
)
"""Variables that libraries of the ranks read."""
_PATHS = frozenset({"PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "PYTHONPATH", "MODULEPATH", "PKG_CONFIG_PATH"})


def plan_remarks(
    request: Request, context: PlanningContext, shape: Shape, facts: Facts, environment: tuple[Setting, ...]
) -> tuple[Finding, ...]:
    """All remarks of the catalog and of windlass that apply to this plan."""
    site = context.site
    return (
        *([Finding("site-status", "note", f"{site.name}: {site.file.status}")] if site.file.status else ()),
        *_told_notes(site, facts),
        *_trains_alone(request, context, shape),
        *_slow_start(request, context, shape),
        *_preset_note(site, facts),
        *_one_device(request, shape),
        *_shared_device(request, shape),
        *_modules_ranks(site, facts),
        *_needless_cache(request, context),
        *_over_tcp(request, context, shape, facts, environment),
        *_settings(environment),
        *_replaced_paths(request),
        *_not_carried(context, shape, environment),
        *_crowded(context, shape),
    )


def binding_remarks(binding: Binding, topology: Topology) -> tuple[Finding, ...]:
    """Remarks on ranks that share CPUs because of the user's list. This is allowed, but usually a mistake."""
    if binding.origin.scope != "flag":
        return ()
    shared = [problem.evidence for problem in problems_of(binding, topology) if problem.kind == "overlap"]
    return tuple(Finding("cpus-shared", "warning", f"--cpu-bind: {text}") for text in shared)


def _trains_alone(request: Request, context: PlanningContext, shape: Shape) -> Iterator[Finding]:
    ranks = shape.nodes * shape.ranks_per_node
    if context.trains_alone and ranks > 1 and INDEPENDENT not in request.options:
        yield Finding(
            "no-process-group",
            "warning",
            f"{request.command[0]} joins no process group: each of the {ranks} ranks would train the whole model alone "
            "and write the same files",
            "call windlass.init() or torch.distributed.init_process_group and wrap the model in DDP; "
            f"--with {INDEPENDENT}: the ranks are separate programs",
        )


def _not_carried(context: PlanningContext, shape: Shape, environment: tuple[Setting, ...]) -> Iterator[Finding]:
    """Variables that a job of this scheduler does not get from the submitting shell."""
    if context.allocation is not None or get_scheduler(shape.scheduler).carries_environment:
        return
    planned = {setting.name for setting in environment}
    names = sorted(name for name in context.users_environment if _STEERS.match(name) and name not in planned)
    if names:
        text = f"{shape.scheduler} does not pass variables of your shell to the job: {', '.join(names)}"
        yield Finding("not-carried", "note", text, "give the ones that the ranks need with --env NAME=VALUE")


def _crowded(context: PlanningContext, shape: Shape) -> Iterator[Finding]:
    cpus = sum(len(core.cpus) for core in context.topology.usable_cores())
    if 0 < 2 * cpus < shape.ranks_per_node:
        text = f"{shape.ranks_per_node} ranks share the {cpus} CPUs of a node"
        yield Finding("crowded", "warning", text, "--ranks-per-node sets the number of ranks")


def _told_notes(site: Site, facts: Facts) -> Iterator[Finding]:
    for note in site.file.notes:
        if note.tell is not None and holds(note.tell, facts):
            yield Finding("site-note", "note", f"{note.topic}: {note.verdict}")


def _preset_note(site: Site, facts: Facts) -> Iterator[Finding]:
    """The note of the site's binding preset."""
    preset = next((p for p in site.file.binding.presets if p.name == facts.preset), None)
    if preset is not None and preset.note:
        yield Finding("preset-note", "note", f"binding {preset.name}: {preset.note}")


def _one_device(request: Request, shape: Shape) -> Iterator[Finding]:
    """Frameworks' examples use device LOCAL_RANK, which exists only in the first rank of a node then."""
    if request.devices == "one" and shape.ranks_per_node > 1:
        kind = "xpu" if shape.vendor == "intel" else "cuda"
        text = (
            f"--devices one: each rank has one device, {kind}:0, and {kind}:LOCAL_RANK is there in the first rank alone"
        )
        yield Finding("one-device", "note", text, "use windlass.init(), or `--devices all`")


def _shared_device(request: Request, shape: Shape) -> Iterator[Finding]:
    """NCCL refuses two ranks of one communicator on a device."""
    if shape.vendor == "nvidia" and shape.ranks_per_device > 1 and INDEPENDENT not in request.options:
        text = f"{shape.ranks_per_device} ranks share a device: NCCL refuses that with `Duplicate GPU detected`"
        hint = f"use gloo or MPI among them; --with {INDEPENDENT}: the ranks are separate programs"
        yield Finding("shared-device", "warning", text, hint)


def _modules_ranks(site: Site, facts: Facts) -> Iterator[Finding]:
    """A warning for a module that was made for another number of ranks per node."""
    for spec in site.file.modules:
        if spec.ranks_per_node not in {None, facts.ranks_per_node} and set(spec.load) & set(facts.modules):
            made = f"module {spec.load[-1]} is made for {spec.ranks_per_node} ranks per node"
            hint = "--env NAME=VALUE overrides its settings; windlass binds the ranks to CPUs"
            yield Finding("module-ranks", "warning", f"{made}, not for {facts.ranks_per_node}", hint)


def _slow_start(request: Request, context: PlanningContext, shape: Shape) -> Iterator[Finding]:
    """A warning about slow imports, if the request does nothing against them.

    It uses measurements of this site and file operations that this process timed. The system's own modules are left
    out, because sites keep them where reading is cheap.
    """
    if request.cache or request.container or request.kind == "command":
        return
    place, found = context.place, _file_system(context)
    measured = _measured_start(context, shape, found[1]) if found else ""
    own = place is not None and any(_is_below(place.path, each) for each in context.site.file.storage.system)
    looked = _looked_at(place, shape) if place and not own else ""
    if not measured and not looked:
        return
    path, system = found or (place.path if place else "", place.file_system if place else "")
    yield Finding(
        "slow-start",
        "warning",
        f"the environment is on {system} ({path}): " + "; ".join(part for part in (measured, looked) if part),
        "--cache auto reads it once for all nodes",
    )


def _measured_start(context: PlanningContext, shape: Shape, system: str) -> str:
    """The catalog's start time from this file system, or "" if it is short or unknown."""
    measured = [
        r for r in context.site.file.references if r.unit == "s" and r.nodes and r.what.endswith(f"from {system}")
    ]
    known = [reference for reference in measured if (reference.nodes or 0) <= shape.nodes]
    if not known or (shape.nodes < _MANY_NODES and known[0].value < _SLOW_START_S):
        return ""
    return _figure(max(known, key=lambda reference: reference.nodes or 0), shape.nodes)


def _looked_at(place: EnvironmentPlace, shape: Shape) -> str:
    """The measured times of a shared environment, or "" for few nodes and short times."""
    if not place.shared or shape.nodes < 2:
        return ""
    if not place.answered:
        return f"it did not answer at once, and all {shape.nodes} nodes would read it"
    if place.stat_ms is None or place.open_ms is None:
        return ""
    import_s = _IMPORT_CALLS * (place.stat_ms + place.open_ms) / 2 / 1000
    if import_s < _SLOW_LOOK_S and shape.nodes < _SOME_NODES:
        return ""
    times = f"a stat takes {place.stat_ms:.2g} ms and an open {place.open_ms:.2g} ms from here"
    return f"{times}, so an import of torch's size (9,000 calls) {import_s:.2g} s on one of {shape.nodes} nodes"


def _needless_cache(request: Request, context: PlanningContext) -> Iterator[Finding]:
    """A note about --cache for the machine's own software: it costs memory and gains nothing."""
    for path in request.cache:
        system = next((s for s in context.site.file.storage.system if _is_below(f"{path}/", s)), None)
        if system is not None:
            yield Finding(
                "needless-cache",
                "note",
                f"--cache {path} is the machine's own software ({system}), so it needs no cache",
                "leave it out: --cache is for your own environments and data",
            )


def _file_system(context: PlanningContext) -> tuple[str, str] | None:
    """The shared path that contains the interpreter, and its file system."""
    kinds = context.site.file.storage.file_systems
    return next(((p, kinds[p]) for p in sorted(kinds, key=len, reverse=True) if _is_below(context.python, p)), None)


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _figure(reference: ReferenceSpec, nodes: int) -> str:
    where = "as many nodes" if reference.nodes == nodes else f"{reference.nodes} nodes"
    note = f" ({reference.note})" if reference.note else ""
    return f"{reference.what} took {reference.value:g} s on {where}{note}"


def _over_tcp(
    request: Request, context: PlanningContext, shape: Shape, facts: Facts, environment: tuple[Setting, ...]
) -> Iterator[Finding]:
    """A warning about ranks of several nodes that would use TCP although there is a fabric.

    NCCL and RCCL find no plugin for the fabric, and nothing in the plan makes them stop in that case.
    """
    fabric, library = context.site.file.fabric, _LIBRARIES.get(shape.vendor or "")
    if not fabric.plugin or library is None or shape.nodes < 2 or not shape.all_devices or request.kind == "none":
        return
    chosen = next((s for s in environment if s.name == "NCCL_NET" and not s.when.at_run_time and s.value), None)
    if chosen is not None and chosen.value != "Socket":
        return  # the library stops if the plugin is missing
    why = (
        "NCCL_NET=Socket"
        if chosen
        else f"nothing in this plan provides {fabric.plugin}, {library}'s plugin for the fabric"
    )
    brought = any(holds(p.when, facts) and _image_fits(p, request.container) for p in fabric.plugins)
    if chosen is None and (brought or _brings_plugin(request, context)):
        return
    yield Finding(
        "tcp-fallback",
        "warning",
        f"{shape.nodes} nodes would use TCP instead of the fabric: {why}. {library} prints no warning. "
        "TCP is ten to seventy times slower",
        "do not set NCCL_NET: the site's setting selects the plugin" if chosen else fabric.remedy,
    )


def _image_fits(plugin: PluginSpec, image: str | None) -> bool:
    return not plugin.images or any(fnmatchcase(image or "", pattern) for pattern in plugin.images)


def _brings_plugin(request: Request, context: PlanningContext) -> bool:
    """Whether the user named the plugin, added a directory to the search path, or loaded a module."""
    given = (*request.env, *request.env_prepend, *request.env_append)
    if any(name in {"LD_LIBRARY_PATH", "NCCL_NET_PLUGIN", "LD_PRELOAD"} for name, _ in given):
        return True
    if "NCCL_NET_PLUGIN" in context.users_environment or any(_PLUGIN.search(name) for name in request.modules):
        return True
    return request.container is None and bool(_PLUGIN.search(context.users_environment.get("LD_LIBRARY_PATH", "")))


def _replaced_paths(request: Request) -> Iterator[Finding]:
    """A warning about a path variable of modules that the user replaces completely.

    Libraries are then not found, and the error does not show the cause.
    """
    for name in dict.fromkeys(name for name, _ in request.env if name in _PATHS):
        yield Finding(
            "path-replaced",
            "warning",
            f"--env {name}=… replaces the value from modules and the system",
            f"--env-prepend {name}=DIR adds a folder in front of it",
        )


def _settings(environment: tuple[Setting, ...]) -> Iterator[Finding]:
    monitor = next((s for s in environment if s.name == "FI_MR_CACHE_MONITOR"), None)
    if monitor and monitor.value == "memhooks":
        yield Finding(
            "cache-monitor",
            "warning",
            "FI_MR_CACHE_MONITOR=memhooks is known to hang NCCL and RCCL",
            "unset it, or use userfaultfd",
        )
    unconfirmed = [s.name for s in environment if s.origin.grade in {"unconfirmed", "community"}]
    if unconfirmed:
        yield Finding("unconfirmed-settings", "note", f"not confirmed by the site or vendor: {', '.join(unconfirmed)}")
