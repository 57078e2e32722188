"""The requested binding: the site's defaults and the user's flags merged into one value. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from windlass.base.notation.counts import parse_bindings, parse_cpulist
from windlass.base.notation.shell import NAME
from windlass.errors import UsageError, unknown_name
from windlass.model.origin import BUILTIN, Origin
from windlass.model.site import BindingSpec, PresetSpec
from windlass.model.topology import DeviceSpec, DeviceUnit, Topology

_LIST_CHARACTERS = frozenset("0123456789,:- ")


@dataclass(frozen=True, kw_only=True, slots=True)
class BindingRequest:
    """All inputs of a binding except the node itself."""

    ranks_per_node: int
    devices: Literal["all", "one"] = "all"
    device_unit: DeviceUnit | None = None
    """None: the unit of the topology, or the unit of a named preset."""
    ranks_per_device: int | None = None
    order: Literal["device", "core"] = "device"
    threads: Literal["first", "all"] = "all"
    agent_cpus: tuple[int, ...] = ()
    comm_cpus: tuple[int, ...] = ()
    """For computed maps. A preset has its own value."""
    cores_per_rank_max: int | None = None
    cpu_bind: str = "auto"
    """`auto`, `none`, a preset's name, or a list such as `0-3:4-7`."""
    presets: tuple[PresetSpec, ...] = ()
    device_by_launcher: bool = False
    """With one device per rank, the launcher assigns cores in order and picks the closest device to them."""
    launcher_binds: bool = True
    """False if the site leaves binding to its launcher's own plugin."""
    by_launcher: bool = True
    """Copied to the binding: launcher flags apply it, not the rank script."""
    origin: Origin = BUILTIN

    @property
    def by_core(self) -> bool:
        """True if ranks follow the order of the cores and not that of the devices."""
        return self.order == "core" or (self.devices == "one" and self.device_by_launcher)

    @property
    def preset_names(self) -> tuple[str, ...]:
        return tuple(preset.name for preset in self.presets)


def binding_request_from_site(
    binding: BindingSpec,
    devices: DeviceSpec,
    *,
    ranks_per_node: int,
    mode: Literal["all", "one"] | None = None,
    cpu_bind: str = "auto",
    with_agent: bool = False,
) -> BindingRequest:
    """The site's defaults with the user's number of ranks. Cores for the agent are reserved only if there is one."""
    return BindingRequest(
        ranks_per_node=ranks_per_node,
        devices=mode or devices.mode,
        order=binding.order,
        threads=binding.threads,
        agent_cpus=parse_cpulist(binding.agent_cpus) if with_agent else (),
        comm_cpus=parse_cpulist(binding.comm_cpus),
        cores_per_rank_max=binding.cores_per_rank_max,
        cpu_bind=cpu_bind,
        presets=binding.presets,
        device_by_launcher=devices.by_launcher,
        launcher_binds=binding.launcher_binds,
    )


def parse_cpu_bind(text: str) -> tuple[tuple[int, ...], ...] | None:
    """CPUs of each rank in `0-3:4-7`, or None if the text is a name.

    The formats of PALS (`list:0-3:4-7`, `verbose,list:…`) and Slurm (`mask_cpu:0xf,0xf0`, `map_cpu:0,4`) are accepted
    too, because users paste them from their site's documentation.
    """
    body = text.strip()
    for prefix in ("verbose,", "v,", "list:"):
        body = body.removeprefix(prefix)
    kind, sign, rest = body.replace("=", ":", 1).partition(":")
    if sign and kind in {"mask_cpu", "map_cpu"}:
        try:
            numbers = [int(word, 16 if kind == "mask_cpu" else 0) for word in rest.split(",")]
        except ValueError as error:
            raise UsageError(
                f"--cpu-bind: not a list of numbers: {text!r}", hint="as in mask_cpu:0xfe,0xfe00"
            ) from error
        if kind == "map_cpu":
            return tuple((number,) for number in numbers)
        return tuple(_cpus_of_mask(number) for number in numbers)
    if body and set(body) <= _LIST_CHARACTERS:
        return parse_bindings(body)
    return None


def _cpus_of_mask(mask: int) -> tuple[int, ...]:
    return tuple(cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1)


def binding_variable(cpu_bind: str) -> str | None:
    """The variable of `env:NAME`, whose value the launcher uses for binding. None for any other text."""
    kind, sign, name = cpu_bind.partition(":")
    if kind != "env" or not sign:
        return None
    if not NAME.match(name):
        raise UsageError(f"--cpu-bind {cpu_bind}: {name!r} is not the name of a variable", hint="as in env:CPU_BIND")
    return name


def named_preset(asked: BindingRequest) -> PresetSpec | None:
    """The preset that `cpu_bind` names, or None if it is not a name. Raises `UsageError` for an unknown name."""
    if asked.cpu_bind in {"auto", "none"} or binding_variable(asked.cpu_bind):
        return None
    for preset in asked.presets:
        if preset.name == asked.cpu_bind:
            return preset
    if parse_cpu_bind(asked.cpu_bind) is None:
        raise unknown_name(
            "binding", asked.cpu_bind, ("auto", "none", "env:NAME", *asked.preset_names), where="--cpu-bind"
        )
    return None


def default_preset(asked: BindingRequest, unit: DeviceUnit, devices: int) -> PresetSpec | None:
    """The preset that `auto` uses for this number of ranks and this device unit, if the site has one."""
    if asked.cpu_bind != "auto":
        return None
    return preset_for_ranks(
        asked.presets, asked.ranks_per_node, unit, devices=devices, ranks_per_device=asked.ranks_per_device
    )


def preset_for_ranks(
    presets: Iterable[PresetSpec], ranks_per_node: int, unit: DeviceUnit, *, devices: int, ranks_per_device: int | None
) -> PresetSpec | None:
    """The default preset for this number of ranks.

    With `ranks_per_device`, only a preset that shares all devices in this way.
    """
    for preset in presets:
        shares = ranks_per_device is None or preset.ranks_per_node == ranks_per_device * devices
        if preset.default and preset.ranks_per_node == ranks_per_node and preset.device_unit in {None, unit} and shares:
            return preset
    return None


def effective_unit(asked: BindingRequest, topology: Topology) -> DeviceUnit:
    """The device unit of the binding: the user's, then that of a named preset, then that of the topology."""
    preset = named_preset(asked)
    wanted = preset.device_unit if preset else None
    if preset and wanted and asked.device_unit and wanted != asked.device_unit:
        raise UsageError(
            f"--cpu-bind {preset.name} is for devices that are a {wanted}, not --device-unit {asked.device_unit}",
            hint=f"leave --device-unit out, or use --device-unit {wanted}",
        )
    return asked.device_unit or wanted or topology.unit
