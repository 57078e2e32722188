"""Which variables a plan gives its ranks: windlass' own, the site's, the container's, the user's. Pure."""

from __future__ import annotations

import msgspec

from windlass.model.condition import Facts
from windlass.model.origin import Origin
from windlass.model.plan import Binding, Setting
from windlass.model.request import Request
from windlass.model.site import Site
from windlass.model.topology import Topology
from windlass.plan.environment import caches, choose, ranks
from windlass.plan.inputs import PlanningContext
from windlass.plan.shape import Shape

_CHOOSE_DEVICES = frozenset({"srun", "flux"})
"""Launchers that can hand each rank the device closest to its cores."""


def plan_environment(
    request: Request,
    context: PlanningContext,
    shape: Shape,
    binding: Binding,
    facts: Facts,
    container_settings: tuple[Setting, ...],
) -> tuple[Setting, ...]:
    site = context.site
    builtin: list[Setting] = [
        Setting(name="PYTHONUNBUFFERED", value="1", because="a rank's output is seen when it is written"),
        *ranks.thread_settings(binding, context.topology, request.threads),
        *ranks.cpu_settings(
            context.topology, site.file.devices.vendor or shape.vendor, shape.nodes * shape.ranks_per_node
        ),
        *caches.cache_settings(caches.cache_dirs(shape.vendor)),
        *caches.download_settings(
            site,
            request.account or (context.allocation.account if context.allocation else None),
            container=facts.container,
            decided={*context.users_environment, *request.unset, *(name for name, _ in request.env)},
        ),
        *_visibility(site, shape, binding, context.topology),
        *_offline(site),
    ]
    if shape.scheduler == "none" and shape.nodes == 1:
        builtin.append(
            Setting(
                name="GLOO_SOCKET_IFNAME",
                value="lo",
                because="one machine: gloo would otherwise look up the host name, which may not resolve",
            )
        )
    if shape.launcher == "srun" and shape.cpus_per_rank(binding):
        builtin.append(
            Setting(
                name="SRUN_CPUS_PER_TASK",
                value=str(shape.cpus_per_rank(binding)),
                because="since Slurm 22.05 an srun inside the job does not inherit --cpus-per-task",
            )
        )
    if request.comm_log is not None:
        builtin += _comm_log(shape)
    preset = next((p for p in site.file.binding.presets if p.name == binding.preset), None)
    groups = (
        tuple(builtin),
        choose.settings_that_hold(site.file.settings, facts),
        choose.settings_that_hold(preset.settings, facts) if preset else (),
        container_settings,
        ranks.thread_settings(binding, context.topology, request.threads) if request.threads else (),
    )
    made = choose.leave_to_modules(choose.layer(*groups), site.file.modules, facts.modules)
    chosen = choose.with_users_values(made, context.users_environment)
    own = choose.flag_settings(
        request.env, request.unset, request.env_prepend, request.env_append, fill=request.placeholders
    )
    return choose.layer(chosen, own)


def _visibility(site: Site, shape: Shape, binding: Binding, topology: Topology) -> tuple[Setting, ...]:
    made = ranks.visibility_settings(
        binding,
        shape.visibility,
        shape.devices,
        by_launcher=site.file.devices.by_launcher and shape.launcher in _CHOOSE_DEVICES,
        all_devices=shape.all_devices,
    )
    origin = site.origin_of("devices.visibility")
    return tuple(msgspec.structs.replace(setting, origin=origin) for setting in made)


def _offline(site: Site) -> tuple[Setting, ...]:
    if not site.file.offline:
        return ()
    because = "compute nodes of this site cannot reach the internet: say so at once instead of waiting for time-outs"
    origin = site.origin_of("offline")
    return tuple(
        Setting(name=name, value=value, because=because, origin=origin)
        for name, value in (("HF_HUB_OFFLINE", "1"), ("WANDB_MODE", "offline"))
    )


def _comm_log(shape: Shape) -> list[Setting]:
    """The collective library's log of the chosen ranks, into files of the run folder."""
    because = "you asked for the collective library's log (--comm-log)"
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
        pairs = [("TORCH_CPP_LOG_LEVEL", "INFO")]  # TORCH_DISTRIBUTED_DEBUG on some ranks only would hang them all
    return [Setting(name=n, value=v, because=because, origin=flag, expand=True, keep_user=False) for n, v in pairs]
