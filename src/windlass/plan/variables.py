"""Choose the variables that a plan gives its ranks: windlass' own, the site's, the container's, the user's. Pure.

It takes the candidates of all scopes, evaluates their conditions, and applies the user's values last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

import msgspec

from windlass.model.condition import ALWAYS, Facts, holds
from windlass.model.origin import Origin
from windlass.model.plan import Binding, Setting, setting_of
from windlass.model.request import Request
from windlass.model.secrets import MASK, is_secret
from windlass.model.site import ModuleSpec, SettingSpec, Site
from windlass.plan.agents import MPS_PIPES, MPS_SHARE
from windlass.plan.environment import caches, ranks
from windlass.plan.inputs import PlanningContext
from windlass.plan.shape import RAY, Shape

_CHOOSE_DEVICES = frozenset({"srun", "flux"})
"""Launchers that can give each rank the device closest to its cores."""


def plan_environment(
    request: Request,
    context: PlanningContext,
    shape: Shape,
    binding: Binding,
    facts: Facts,
    container_settings: tuple[Setting, ...],
) -> tuple[Setting, ...]:
    site, with_ray = context.site, RAY in request.options  # Ray chooses threads and devices of its workers itself
    no_device = request.gpus_per_node == 0
    vendor = None if no_device else site.file.devices.vendor or shape.vendor
    builtin: list[Setting] = [
        Setting(name="PYTHONUNBUFFERED", value="1", because="a rank's output appears when it is written"),
        *(() if with_ray else ranks.thread_settings(binding, context.topology, request.threads)),
        *ranks.cpu_settings(context.topology, vendor, shape.nodes * shape.ranks_per_node),
        *(ranks.hidden_device_settings() if no_device else ()),
        *caches.cache_settings(caches.cache_dirs(shape.vendor)),
        *caches.download_settings(
            site,
            request.account or (context.allocation.account if context.allocation else None),
            container=facts.container,
            decided={*context.users_environment, *request.unset, *(name for name, _ in request.env)},
        ),
        *(() if with_ray else _visibility(context, shape, binding)),
        *_offline(site),
    ]
    if shape.nodes * shape.ranks_per_node > 1 and not with_ray:
        one = shape.devices == "one"
        builtin += ranks.framework_settings(
            context.imports, binding, shape.launcher, one_device=one, all_devices=_node_devices(context, shape)
        )
    own_mps = MPS_PIPES in {*context.users_environment, *(name for name, _ in request.env)}
    builtin += _of_shape(shape, binding, mps=not (facts.container or own_mps))
    if request.comm_log is not None:
        builtin += _comm_log(shape)
    preset = next((p for p in site.file.binding.presets if p.name == binding.preset), None)
    groups = (
        tuple(builtin),
        settings_that_hold(site.file.settings, facts),
        settings_that_hold(preset.settings, facts) if preset else (),
        container_settings,
        ranks.thread_settings(binding, context.topology, request.threads) if request.threads else (),
    )
    made = leave_to_modules(layer(*groups), site.file.modules, facts.modules)
    chosen = with_users_values(made, context.users_environment)
    own = flag_settings(request.env, request.unset, request.env_prepend, request.env_append, fill=request.placeholders)
    return layer(chosen, own)


def _of_shape(shape: Shape, binding: Binding, *, mps: bool) -> Iterator[Setting]:
    """Settings that follow from the launcher, the nodes and the devices."""
    if shape.scheduler == "none" and shape.nodes == 1:
        because = "one machine: gloo would otherwise resolve the host name, which may fail"
        yield Setting(name="GLOO_SOCKET_IFNAME", value="lo", because=because)
    if shape.launcher == "srun" and (cpus := shape.cpus_per_rank(binding)):
        because = "since Slurm 22.05 an srun inside the job does not inherit --cpus-per-task"
        yield Setting(name="SRUN_CPUS_PER_TASK", value=str(cpus), because=because)
    if shape.vendor == "intel" and shape.device_unit == "tile" and shape.ranks_per_device > 1:
        share = shape.ranks_per_device
        parts = ",".join(f"{device}:{share}" for device in shape.all_devices)
        because = f"splits every tile into {share} parts, one for each of its ranks (--ranks-per-device)"
        yield Setting(name="ZEX_NUMBER_OF_CCS", value=parts, because=because)
    if shape.vendor == "nvidia" and shape.ranks_per_device > 1 and mps:
        share = min(100, 200 // shape.ranks_per_device)
        because = "the part of a device that one of its ranks may use by MPS: twice its share, because not all are busy"
        yield Setting(name=MPS_SHARE, value=str(share), because=because)


def _node_devices(context: PlanningContext, shape: Shape) -> tuple[int, ...]:
    """Devices that a rank sees without any setting. A component with a share of the node must always be limited."""
    return shape.all_devices if context.devices_of_node is None else ()


def _visibility(context: PlanningContext, shape: Shape, binding: Binding) -> tuple[Setting, ...]:
    site = context.site
    made = ranks.visibility_settings(
        binding,
        shape.visibility,
        shape.devices,
        by_launcher=site.file.devices.by_launcher and shape.launcher in _CHOOSE_DEVICES,
        all_devices=_node_devices(context, shape),
    )
    origin = site.origin_of("devices.visibility")
    return tuple(msgspec.structs.replace(setting, origin=origin) for setting in made)


def _offline(site: Site) -> tuple[Setting, ...]:
    if not site.file.offline:
        return ()
    because = "compute nodes of this site cannot reach the internet: fail at once instead of waiting for timeouts"
    origin = site.origin_of("offline")
    return tuple(
        Setting(name=name, value=value, because=because, origin=origin)
        for name, value in (("HF_HUB_OFFLINE", "1"), ("WANDB_MODE", "offline"))
    )


def _comm_log(shape: Shape) -> list[Setting]:
    """Write the collective library's log of the chosen ranks into files of the run folder."""
    because = "requested with --comm-log"
    flag = Origin(scope="flag", where="--comm-log")
    if shape.vendor == "intel":
        pairs = [("CCL_LOG_LEVEL", "info"), ("FI_LOG_LEVEL", "warn")]
    elif shape.vendor in {"nvidia", "amd"}:
        pairs = [
            ("NCCL_DEBUG", "INFO"),
            ("NCCL_DEBUG_SUBSYS", "INIT,NET,ENV,GRAPH"),
            ("NCCL_DEBUG_FILE", "${WINDLASS_RUN_DIR}/comm/rank-{rank}.log"),
        ]
    else:
        pairs = [("TORCH_CPP_LOG_LEVEL", "INFO")]  # TORCH_DISTRIBUTED_DEBUG on some ranks only would hang all ranks
    return [Setting(name=n, value=v, because=because, origin=flag, expand=True, keep_user=False) for n, v in pairs]


def settings_that_hold(specs: Iterable[SettingSpec], facts: Facts) -> tuple[Setting, ...]:
    """Settings whose conditions hold.

    Of several settings with one name the last wins. There are two exceptions: joined settings add up, and settings with
    a condition for the node are kept together with their unconditional alternative.
    """
    return tuple(setting_of(spec) for spec in specs if holds(spec.when, facts))


def layer(*groups: Iterable[Setting]) -> tuple[Setting, ...]:
    """Merge groups of settings, lowest scope first, into one list that decides each name once."""
    chosen: dict[tuple[str, str, str], Setting] = {}
    for group in groups:
        for setting in group:
            key = (
                setting.name,
                f"{setting.prepend}{setting.value}" if setting.joins else "",
                setting.when.text() if setting.when.at_run_time else "",
            )
            if not setting.joins and not setting.when.at_run_time:
                for old in [k for k in chosen if k[0] == setting.name]:
                    del chosen[old]
            chosen[key] = setting
    return tuple(chosen.values())


def with_users_values(settings: Iterable[Setting], users: Mapping[str, str]) -> tuple[Setting, ...]:
    """Replace settings with values that the user set in the environment, and mark them as the user's."""
    out: dict[str, Setting] = {}
    rest: list[Setting] = []
    for setting in settings:
        mine = users.get(setting.name)
        if mine is None or not setting.keep_user or setting.joins:
            rest.append(setting)
        elif setting.name not in out:
            catalog = "unset it" if setting.value is None else f"say {setting.value}"
            same = mine == setting.value
            out[setting.name] = msgspec.structs.replace(
                setting,
                value=MASK if is_secret(setting.name, mine) else mine,
                because="you set it in your environment" + (", as the catalog does" if same else ""),
                origin=Origin(scope="environment", where="your environment"),
                when=ALWAYS,
                expand=False,
                secret=is_secret(setting.name, mine),
                module="",
                note="" if same else f"the catalog would {catalog}: {setting.because} ({setting.origin.text()})",
            )
            rest.append(out[setting.name])
    return tuple(rest)


def leave_to_modules(
    settings: Iterable[Setting], specs: Iterable[ModuleSpec], loaded: Iterable[str]
) -> tuple[Setting, ...]:
    """Mark each setting that a loaded module is known to set with the module's name."""
    names = {name.split("/", 1)[0] for name in loaded}
    owners = {
        pattern: next(name for name in spec.load if name.split("/", 1)[0] in names)
        for spec in specs
        if names & {name.split("/", 1)[0] for name in spec.load}
        for pattern in spec.variables
    }
    return tuple(
        msgspec.structs.replace(setting, module=owner)
        if not setting.joins and (owner := next((m for p, m in owners.items() if fnmatchcase(setting.name, p)), ""))
        else setting
        for setting in settings
    )


Pairs = tuple[tuple[str, str], ...]


def flag_settings(
    env: Pairs, unset: tuple[str, ...], prepend: Pairs = (), append: Pairs = (), *, fill: bool = False
) -> tuple[Setting, ...]:
    """Settings from `--env` and `--env-prepend`.

    Secrets are masked. The caller stores them unmasked in a file. If several values are prepended to one variable, the
    first is searched first. `fill`: their values may contain placeholders.
    """
    flag = Origin(scope="flag", where="--env")
    made = [
        Setting(
            name=name,
            value=MASK if is_secret(name, value) else value,
            because="requested by you",
            origin=flag,
            secret=is_secret(name, value),
            fill=fill,
            keep_user=False,
        )
        for name, value in env
    ]
    made += [
        Setting(
            name=name,
            value=None,
            because="unset by your request",
            origin=Origin(scope="flag", where="--env"),
            keep_user=False,
        )
        for name in unset
    ]
    made += [_joining(name, value, prepend=True, fill=fill) for name, value in reversed(prepend)]
    made += [_joining(name, value, prepend=False, fill=fill) for name, value in append]
    return tuple(made)


def _joining(name: str, value: str, *, prepend: bool, fill: bool) -> Setting:
    flag = "--env-prepend" if prepend else "--env"
    return Setting(
        name=name,
        value=value,
        because="requested by you",
        origin=Origin(scope="flag", where=flag),
        prepend=prepend,
        append=not prepend,
        fill=fill,
        keep_user=False,
    )
