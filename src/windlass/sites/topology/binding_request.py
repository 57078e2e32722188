"""What a binding should be like: the site's habits and the user's flags, settled into one value. Pure."""

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
    """Everything besides the node itself that decides a binding."""

    ranks_per_node: int
    devices: Literal["all", "one"] = "all"
    device_unit: DeviceUnit | None = None
    """None: as the topology counts, or as a named preset needs it."""
    ranks_per_device: int | None = None
    order: Literal["device", "core"] = "device"
    threads: Literal["first", "all"] = "all"
    agent_cpus: tuple[int, ...] = ()
    comm_cpus: tuple[int, ...] = ()
    """For computed maps; a preset states its own."""
    cores_per_rank_max: int | None = None
    cpu_bind: str = "auto"
    """`auto`, `none`, a preset's name, or a list such as `0-3:4-7`."""
    presets: tuple[PresetSpec, ...] = ()
    device_by_launcher: bool = False
    """With one device per rank the launcher hands out cores in order and picks the closest device to them."""
    launcher_binds: bool = True
    """False where the site leaves binding to its launcher's own plugin."""
    by_launcher: bool = True
    """Copied to the binding: launcher flags apply it, not the rank script."""
    origin: Origin = BUILTIN

    @property
    def by_core(self) -> bool:
        """True where ranks follow the order of the cores and not that of the devices."""
        return self.order == "core" or (self.devices == "one" and self.device_by_launcher)

    @property
    def preset_names(self) -> tuple[str, ...]:
        return tuple(preset.name for preset in self.presets)


def binding_request_from_site(
    binding: BindingSpec,
    devices: DeviceSpec,
    *,
    ranks_per_node: int,
    ranks_per_device: int | None = None,
    mode: Literal["all", "one"] | None = None,
    unit: DeviceUnit | None = None,
    cpu_bind: str = "auto",
    with_agent: bool = False,
    origin: Origin = BUILTIN,
) -> BindingRequest:
    """The site's habits with the user's flags on top. Cores for the agent are set aside only if there is one."""
    return BindingRequest(
        ranks_per_node=ranks_per_node,
        ranks_per_device=ranks_per_device,
        devices=mode or devices.mode,
        device_unit=unit,
        order=binding.order,
        threads=binding.threads,
        agent_cpus=parse_cpulist(binding.agent_cpus) if with_agent else (),
        comm_cpus=parse_cpulist(binding.comm_cpus),
        cores_per_rank_max=binding.cores_per_rank_max,
        cpu_bind=cpu_bind,
        presets=binding.presets,
        device_by_launcher=devices.by_launcher,
        launcher_binds=binding.launcher_binds,
        origin=origin,
    )


def parse_cpu_bind(text: str) -> tuple[tuple[int, ...], ...] | None:
    """CPUs of each rank in `0-3:4-7`, or None where the text is a name.

    The spellings of PALS (`list:0-3:4-7`, `verbose,list:…`) and Slurm (`mask_cpu:0xf,0xf0`, `map_cpu:0,4`) are taken
    too, because people paste what their site's page shows.
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
    """The variable of `env:NAME`, whose value the launcher is to bind by; None for any other word."""
    kind, sign, name = cpu_bind.partition(":")
    if kind != "env" or not sign:
        return None
    if not NAME.match(name):
        raise UsageError(f"--cpu-bind {cpu_bind}: {name!r} is not the name of a variable", hint="as in env:CPU_BIND")
    return name


def named_preset(asked: BindingRequest) -> PresetSpec | None:
    """The preset that `cpu_bind` names; None where it names none of the kind. An unknown name is a `UsageError`."""
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
    """The preset that `auto` takes for this number of ranks and this unit of devices, if the site has one."""
    if asked.cpu_bind != "auto":
        return None
    return preset_for_ranks(
        asked.presets, asked.ranks_per_node, unit, devices=devices, ranks_per_device=asked.ranks_per_device
    )


def preset_for_ranks(
    presets: Iterable[PresetSpec], ranks_per_node: int, unit: DeviceUnit, *, devices: int, ranks_per_device: int | None
) -> PresetSpec | None:
    """The default preset for so many ranks. With `ranks_per_device` only one that shares all devices in that way."""
    for preset in presets:
        shares = ranks_per_device is None or preset.ranks_per_node == ranks_per_device * devices
        if preset.default and preset.ranks_per_node == ranks_per_node and preset.device_unit in {None, unit} and shares:
            return preset
    return None


def effective_unit(asked: BindingRequest, topology: Topology) -> DeviceUnit:
    """What one device is in the binding of this asked: said by the user, else by a named preset, else as counted."""
    preset = named_preset(asked)
    wanted = preset.device_unit if preset else None
    if preset and wanted and asked.device_unit and wanted != asked.device_unit:
        raise UsageError(
            f"--cpu-bind {preset.name} is for devices that are a {wanted}, not --device-unit {asked.device_unit}",
            hint=f"leave --device-unit out, or say --device-unit {wanted}",
        )
    return asked.device_unit or wanted or topology.unit
