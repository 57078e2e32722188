"""Find what a plan would refuse in a site: its node, its presets, its launcher's arguments. Pure.

`sites/check.py` reads one file. This module checks the complete site, with the hardware and the partition that its
files name.
"""

from __future__ import annotations

from collections.abc import Iterator

from windlass.base.notation.counts import format_cpulist, parse_cpulist
from windlass.errors import WindlassError
from windlass.model.site import PresetSpec, Site, SiteFile
from windlass.model.topology import Topology, Vendor
from windlass.sites.shape import Misfit, Path
from windlass.sites.topology.bind import bind
from windlass.sites.topology.binding_request import binding_request_from_site, parse_cpu_bind
from windlass.sites.topology.check import whole_cores
from windlass.sites.topology.described import topology_from_spec

VISIBILITY_NAMES: dict[Vendor, tuple[str, ...]] = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    "intel": ("ZE_AFFINITY_MASK",),
}


def site_misfits(site: Site) -> Iterator[Misfit]:
    """All reasons to refuse every plan, or a plan with one of the site's presets."""
    file = site.file
    yield from _devices(file)
    try:
        topology = topology_from_spec(file.node, file.devices)
    except WindlassError as error:
        yield Misfit(path=("node",), message=error.message.removeprefix("node: "), hint=error.hint or "")
        return
    yield from _launcher_words(file, topology)
    if not topology.cores:
        return
    yield from _set_aside(file, topology)
    for preset in file.binding.presets:
        yield from _refused(file, topology, preset)
    yield from _refused(file, topology, None)


def _devices(file: SiteFile) -> Iterator[Misfit]:
    spec = file.devices
    names = VISIBILITY_NAMES[spec.vendor] if spec.vendor else ()
    if spec.visibility and names and spec.visibility not in names:
        message = f"{spec.visibility} does not choose {spec.vendor} devices"
        yield Misfit(path=("devices", "visibility"), message=message, hint=f"write {names[0]!r}")
    tiles, count = file.node.tiles_per_card, sum(len(domain.devices) for domain in file.node.domains)
    if tiles < 1:
        yield Misfit(path=("node", "tiles_per_card"), message=f"is {tiles}; a card has at least one tile")
    elif spec.unit == "tile" and count % tiles:
        message = f"the domains list {count} tiles, which do not make whole cards of {tiles}"
        yield Misfit(path=("node", "tiles_per_card"), message=message, hint="list every tile in a domain")


def _launcher_words(file: SiteFile, topology: Topology) -> Iterator[Misfit]:
    """Check a CPU list in the launcher's arguments. No plan checks these."""
    for index, argument in enumerate(file.launcher.arguments):
        path: Path = ("launcher", "arguments", index, "words")
        joined = "=".join(argument.words)
        name, _, value = joined.partition("=")
        if name not in {"--cpu-bind", "--cpu_bind"}:
            continue
        try:
            lists = parse_cpu_bind(value) or ()
        except WindlassError as error:
            yield Misfit(path=path, message=error.message, hint=error.hint or "")
            continue
        owner: dict[int, int] = {}
        for rank, cpus in enumerate(lists):
            shared = [cpu for cpu in cpus if owner.setdefault(cpu, rank) != rank]
            if shared:
                text = f"gives CPUs {format_cpulist(shared)} to local ranks {owner[shared[0]]} and {rank}"
                yield Misfit(path=path, message=text)
        if topology.cores and (missing := set(owner) - set(topology.cpus)):
            yield Misfit(path=path, message=f"the node has no CPU {format_cpulist(missing)}")
        if reserved := set(owner) & set(topology.reserved):
            yield Misfit(path=path, message=f"CPUs {format_cpulist(reserved)} are reserved for the system")


def _set_aside(file: SiteFile, topology: Topology) -> Iterator[Misfit]:
    for key, text in (("agent_cpus", file.binding.agent_cpus), ("comm_cpus", file.binding.comm_cpus)):
        if missing := set(parse_cpulist(text)) - set(topology.cpus):
            yield Misfit(path=("binding", key), message=f"the node has no CPU {format_cpulist(missing)}")
    if set(topology.cpus) <= whole_cores(topology, topology.reserved):
        yield Misfit(path=("node", "reserved"), message="reserves every core: no rank could run")


def _refused(file: SiteFile, topology: Topology, preset: PresetSpec | None) -> Iterator[Misfit]:
    """The reasons to refuse a plan with this preset, or without a preset."""
    names = [known.name for known in file.binding.presets]
    path: Path = ("binding", "presets", names.index(preset.name)) if preset else ("binding",)
    try:
        asked = binding_request_from_site(
            file.binding,
            file.devices,
            ranks_per_node=preset.ranks_per_node if preset else max(1, len(topology.devices)),
            cpu_bind=preset.name if preset else "auto",
        )
        bind(topology, asked)
    except WindlassError as error:
        yield Misfit(path=path, message=error.message, hint=error.hint or "")
