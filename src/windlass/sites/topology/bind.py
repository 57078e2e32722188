"""Assign cores, device and interface to each local rank. Pure: the same node and request give the same map."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec

from windlass.base.notation.counts import parse_bindings, parse_cpulist
from windlass.errors import ConfigError, UsageError
from windlass.model.finding import Finding
from windlass.model.origin import BUILTIN, Origin
from windlass.model.plan import Binding, RankBinding
from windlass.model.site import PresetSpec
from windlass.model.topology import Device, Topology
from windlass.sites.topology.binding_request import (
    BindingRequest,
    binding_variable,
    default_preset,
    effective_unit,
    named_preset,
    parse_cpu_bind,
)
from windlass.sites.topology.check import problems_of, whole_cores
from windlass.sites.topology.split import (
    Cores,
    device_homes,
    even_runs,
    first_core_of,
    in_unit,
    nearest_nics,
    share_among_devices,
    share_among_ranks,
)

_FLAG = Origin(scope="flag", where="--cpu-bind")
_PARTIAL = frozenset({"missing", "not-allowed", "device"})


def bind(topology: Topology, asked: BindingRequest) -> Binding:
    """The map of this node for this request. Devices are numbered in the unit of `effective_unit`.

    Raises `UsageError` for a request that cannot be met, and `ConfigError` for a preset that breaks the invariants. If
    there are more ranks than cores, the ranks are left unbound, and the binding contains the reason.
    """
    if asked.ranks_per_node < 1 or (asked.ranks_per_device is not None and asked.ranks_per_device < 1):
        raise UsageError("a node needs at least one rank", hint="--ranks-per-node and --ranks-per-device count from 1")
    counted = in_unit(topology, effective_unit(asked, topology))
    binding = _bind(counted, asked)
    return msgspec.structs.replace(binding, device_unit=counted.unit if counted.unit != topology.unit else None)


def _bind(topology: Topology, asked: BindingRequest) -> Binding:
    preset = named_preset(asked)
    if preset is not None:
        return _preset_binding(topology, asked, preset)
    variable = binding_variable(asked.cpu_bind)
    if variable is not None:
        return _binding_by_variable(topology, asked, variable)
    listed = None if asked.cpu_bind in {"auto", "none"} else parse_cpu_bind(asked.cpu_bind)
    if listed is not None:
        return _listed_binding(topology, asked, listed)
    preset = default_preset(asked, topology.unit, len(topology.devices))
    if preset is None:
        return _computed_binding(topology, asked)
    found = _unchecked_preset(topology, asked, preset)
    if any(problem.kind in _PARTIAL for problem in problems_of(found, topology)):
        return _computed_binding(topology, asked, note=f"; preset {preset.name} needs the whole node")
    return _preset_binding(topology, asked, preset)


def _binding_by_variable(topology: Topology, asked: BindingRequest, variable: str) -> Binding:
    """Assign devices as usual. The launcher assigns the cores with the arguments in the job's variable."""
    chosen = _devices_of_ranks(topology, asked)
    because = f"the launcher binds by the job's {variable}, which is unknown before the job"
    unbound: Sequence[tuple[int, ...]] = ((),) * asked.ranks_per_node
    made = _binding(topology, asked, chosen, unbound, because=because, origin=_FLAG)
    return msgspec.structs.replace(made, variable=variable)


def device_order(topology: Topology, asked: BindingRequest) -> tuple[Device, ...]:
    """Devices in the order in which they are assigned to ranks."""
    devices = sorted(topology.devices, key=lambda device: device.index)
    if not asked.by_core:
        return tuple(devices)
    homes = device_homes(topology, devices)
    return tuple(sorted(devices, key=lambda d: (first_core_of(topology, d, homes[d.index]), d.index)))


def _devices_of_ranks(topology: Topology, asked: BindingRequest) -> tuple[tuple[Device, ...], ...]:
    """Devices of each rank: one, a share of one, or all devices for the only rank of a node."""
    order = device_order(topology, asked)
    ranks, share = asked.ranks_per_node, asked.ranks_per_device or 1
    if not order:
        return ((),) * ranks
    if ranks == 1 and asked.devices == "all" and asked.ranks_per_device is None:
        return (order,)
    if ranks > len(order) * share:
        need = -(-ranks // len(order))
        more = "; --device-unit tile counts every tile" if any(device.tiles > 1 for device in order) else ""
        shared = f", {share} ranks each" if share > 1 else ""
        raise UsageError(
            f"{ranks} ranks per node, but the node has {len(order)} devices{shared}",
            hint=f"--ranks-per-node {len(order) * share} fits; --ranks-per-device {need} shares devices{more}",
        )
    return tuple((order[rank // share],) for rank in range(ranks))


def _visible(topology: Topology, asked: BindingRequest, chosen: Sequence[tuple[Device, ...]]) -> tuple[int, ...]:
    """The order of visible devices in which each rank's device has the number local_rank.

    Empty if this is already the default order.
    """
    if asked.devices == "one" or not topology.devices:
        return ()
    used = dict.fromkeys(device.index for devices in chosen for device in devices)
    order = (*used, *(device.index for device in device_order(topology, asked) if device.index not in used))
    return () if order == tuple(range(len(order))) else order


def _computed_binding(topology: Topology, asked: BindingRequest, note: str = "") -> Binding:
    chosen = _devices_of_ranks(topology, asked)
    cores, because = _cores_of_ranks(topology, asked, chosen)
    return _binding(
        topology,
        asked,
        chosen,
        tuple(_cpus_of(run, asked) for run in cores),
        because=because + note,
        origin=_FLAG if asked.cpu_bind == "none" else asked.origin,
    )


def _cores_of_ranks(
    topology: Topology, asked: BindingRequest, chosen: Sequence[tuple[Device, ...]]
) -> tuple[Sequence[Cores], str]:
    """Cores of each rank, and the reason as text. A rank without cores is not bound."""
    unbound: Sequence[Cores] = ((),) * asked.ranks_per_node
    if asked.cpu_bind == "none":
        return unbound, "not bound, as requested"
    if not asked.launcher_binds:
        return unbound, "not bound here: at this site the launcher binds"
    if not topology.cores:
        return unbound, "not bound: the cores of this node are unknown"
    aside = whole_cores(topology, (*asked.agent_cpus, *asked.comm_cpus))
    usable = tuple(core for core in topology.usable_cores() if not aside.intersection(core.cpus))
    too_few = f"not bound: {asked.ranks_per_node} ranks, {len(usable)} usable cores"
    if len(chosen) == 1 and len(chosen[0]) != 1:
        return (usable,), "the only rank gets every usable core of the node" if usable else too_few
    if not topology.devices:
        runs = share_among_ranks(usable, asked.ranks_per_node)
        return (runs, "no devices: usable cores in equal shares") if runs else (unbound, too_few)
    return _near_devices(topology, asked, chosen, usable) or (unbound, too_few)


def _near_devices(
    topology: Topology, asked: BindingRequest, chosen: Sequence[tuple[Device, ...]], usable: Cores
) -> tuple[Sequence[Cores], str] | None:
    share = min(asked.ranks_per_device or 1, asked.ranks_per_node)
    used = tuple(dict.fromkeys(devices[0] for devices in chosen))
    found = share_among_devices(topology, used, usable, ranks_per_device=share)
    if found is None:
        return None
    shares, level = found
    runs = {index: even_runs(cores, share) for index, cores in shares.items()}
    told = all(device.numa in topology.numas for device in used)
    because = f"cores of the {level} next to each rank's device" if told else _guess_text(topology)
    return [runs[devices[0].index][rank % share] for rank, devices in enumerate(chosen)], because


def _guess_text(topology: Topology) -> str:
    if len(topology.numas) == 1:
        return "cores of the node's one NUMA domain in equal shares"
    return "the NUMA domains of the devices are unknown: cores are assigned in order"


def _cpus_of(cores: Cores, asked: BindingRequest) -> tuple[int, ...]:
    kept = cores[: asked.cores_per_rank_max] if asked.cores_per_rank_max else cores
    return tuple(sorted(cpu for core in kept for cpu in (core.cpus if asked.threads == "all" else core.cpus[:1])))


def _binding(
    topology: Topology,
    asked: BindingRequest,
    chosen: Sequence[tuple[Device, ...]],
    cpus: Sequence[tuple[int, ...]],
    *,
    because: str,
    origin: Origin,
) -> Binding:
    place = {cpu: core.numa for core in topology.cores for cpu in core.cpus}
    ranks = tuple(
        RankBinding(
            local_rank=rank,
            cpus=own,
            devices=tuple(device.index for device in devices),
            numa=tuple(sorted({place[cpu] for cpu in own if cpu in place} or _numas_of(topology, devices))),
        )
        for rank, (own, devices) in enumerate(zip(cpus, chosen, strict=True))
    )
    nics = nearest_nics(topology, ranks)
    known = set(topology.cpus) if topology.cores else {*asked.agent_cpus, *asked.comm_cpus}
    return Binding(
        ranks=tuple(msgspec.structs.replace(rank, nic=nic) for rank, nic in zip(ranks, nics, strict=True)),
        because=because,
        origin=origin,
        visible=_visible(topology, asked, chosen),
        agent_cpus=tuple(cpu for cpu in asked.agent_cpus if cpu in known),
        comm_cpus=tuple(cpu for cpu in asked.comm_cpus if cpu in known),
        by_launcher=asked.by_launcher,
    )


def _numas_of(topology: Topology, devices: tuple[Device, ...]) -> set[int]:
    return {device.numa for device in devices if device.numa is not None and device.numa in topology.numas}


def _listed_binding(topology: Topology, asked: BindingRequest, listed: tuple[tuple[int, ...], ...]) -> Binding:
    """The binding from the user's list.

    Raises `UsageError` for a list that cannot work. An unusual but possible list is allowed (see `problems_of`).
    """
    if len(listed) != asked.ranks_per_node:
        raise UsageError(
            f"--cpu-bind lists {len(listed)} ranks, but a node has {asked.ranks_per_node}",
            hint="one list of CPUs per local rank, separated by colons, as in 0-3:4-7",
        )
    if not all(listed):
        raise UsageError("--cpu-bind: a rank without CPUs", hint="one list of CPUs per local rank, as in 0-3:4-7")
    chosen = _devices_of_ranks(topology, asked)
    binding = _binding(topology, asked, chosen, listed, because="as listed by --cpu-bind", origin=_FLAG)
    hard = [p for p in problems_of(binding, topology) if p.kind in {"missing", "not-allowed", "reserved"}]
    if hard:
        raise UsageError(
            f"--cpu-bind: {hard[0].evidence}", hint="--cpu-bind auto takes the usable cores near each device"
        )
    return binding


def _unchecked_preset(topology: Topology, asked: BindingRequest, preset: PresetSpec) -> Binding:
    cpus = parse_bindings(preset.cpus)
    ranks, count = preset.ranks_per_node, len(topology.devices)
    if len(cpus) != ranks or (preset.devices and len(preset.devices) != ranks):
        lists = f"{len(cpus)} CPU lists and {len(preset.devices) or ranks} devices"
        raise ConfigError(f"{_where(preset)}: {lists} for {ranks} ranks", hint="one of each per local rank")
    by_index = {device.index: device for device in topology.devices}
    numbers = preset.devices or tuple(rank * count // ranks for rank in range(ranks) if count)
    vendor = topology.devices[0].vendor if topology.devices else "nvidia"
    chosen = tuple((by_index.get(number, Device(index=number, vendor=vendor)),) for number in numbers)
    asked = dataclasses.replace(asked, comm_cpus=parse_cpulist(preset.comm_cpus))
    site = asked.origin if asked.origin != BUILTIN else Origin(scope="site", where=preset.source)
    origin, none = preset.origin or site, ((),) * ranks
    made = _binding(topology, asked, chosen or none, cpus, because=preset.because, origin=origin)
    return msgspec.structs.replace(made, preset=preset.name)


def _preset_binding(topology: Topology, asked: BindingRequest, preset: PresetSpec) -> Binding:
    """The binding of the preset, after a check of the invariants."""
    if preset.ranks_per_node != asked.ranks_per_node:
        raise UsageError(
            f"--cpu-bind {preset.name} is for {preset.ranks_per_node} ranks per node, not {asked.ranks_per_node}",
            hint=f"--ranks-per-node {preset.ranks_per_node}, or --cpu-bind auto",
        )
    binding = _unchecked_preset(topology, asked, preset)
    problems = problems_of(binding, topology)
    partial = [problem for problem in problems if problem.kind in _PARTIAL]
    if partial and _is_part_of_node(topology, partial):
        raise UsageError(
            f"--cpu-bind {preset.name} needs the whole node: {partial[0].text}",
            hint="--cpu-bind auto computes a map for the cores and devices that this job has",
        )
    if problems:
        raise ConfigError(
            f"{_where(preset)}: {problems[0].evidence}",
            hint="a preset keeps to the socket of its device and off reserved and set-aside cores, without overlap",
        )
    return binding


def _is_part_of_node(topology: Topology, problems: Sequence[Finding]) -> bool:
    return topology.probed or any(problem.kind == "not-allowed" for problem in problems)


def _where(preset: PresetSpec) -> str:
    place = f"{preset.origin.file}: " if preset.origin and preset.origin.file else ""
    return f"{place}binding preset {preset.name!r}"
