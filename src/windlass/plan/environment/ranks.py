"""The variables that frameworks read in a rank. The rank script sets each of them inside the task.

The rank script, the container runtimes (which must carry the names inside) and the documentation use one table.
"""

from __future__ import annotations

import msgspec

from windlass.base.notation.counts import counted
from windlass.base.tables import packaged_table
from windlass.model.plan import Binding, Setting
from windlass.model.topology import Topology


class RankVariable(msgspec.Struct, frozen=True, kw_only=True):
    """A variable and the placeholder for its value."""

    name: str
    value: str
    readers: str


RANK_VARIABLES = tuple(
    RankVariable(name=name, **told) for name, told in packaged_table(__file__, "rank_variables.toml").items()
)
FOLDER_VARIABLES = {
    "WINDLASS_RUN_DIR": "the folder of this run, for scripts and for `windlass.init`",
    "WINDLASS_CACHE_DIR": "node-local folder for caches of compilers and libraries, removed after the run",
}
"""Other variables that the rank script exports."""


def rank_variable_names() -> tuple[str, ...]:
    return tuple(variable.name for variable in RANK_VARIABLES)


def thread_settings(binding: Binding, topology: Topology, wished: int | None) -> tuple[Setting, ...]:
    """Set the number of threads to the number of the rank's cores.

    torchrun's default of 1 wastes cores, and the library default uses the cores of the whole node.
    """
    if wished is not None:
        because, count = "requested with --threads", wished
    else:
        counts = [len({core.id for cpu in rank.cpus if (core := topology.core_of(cpu))}) for rank in binding.ranks]
        if not counts or min(counts) == 0:
            return ()
        count = min(counts)
        because = f"each rank has {counted(count, 'core')}"
    return (Setting(name="OMP_NUM_THREADS", value=str(count), because=because),)


_HIDE_DEVICES = (("CUDA_VISIBLE_DEVICES", "-1"), ("HIP_VISIBLE_DEVICES", "-1"), ("ONEAPI_DEVICE_SELECTOR", "!*:gpu"))


def hidden_device_settings() -> tuple[Setting, ...]:
    """Settings that hide the devices of every vendor from the ranks (--device cpu)."""
    because = "the job uses no device (--device cpu), so the ranks must not find one"
    return tuple(Setting(name=name, value=value, because=because, keep_user=False) for name, value in _HIDE_DEVICES)


def cpu_settings(topology: Topology, vendor: str | None, world_size: int) -> tuple[Setting, ...]:
    """Settings for nodes that are known to have no device of any vendor. A topology without cores is unknown."""
    if world_size == 1 or vendor is not None or topology.devices or not topology.cores:
        return ()
    return (
        Setting(
            name="ACCELERATE_USE_CPU",
            value="true",
            because="these nodes have no devices: without it the ranks of accelerate and HF Trainer each train alone",
        ),
    )


def framework_settings(
    imports: frozenset[str], binding: Binding, launcher: str, *, one_device: bool, all_devices: tuple[int, ...]
) -> tuple[Setting, ...]:
    """Settings with which the processes of JAX and TensorFlow find each other, for scripts that import them.

    JAX takes the number of processes from its arguments or from a launcher that it supports. Without srun, ranks
    therefore get srun's variables.
    """
    made: list[tuple[str, str, str]] = []
    if imports & {"jax", "flax", "orbax", "equinox", "haiku", "optax"}:
        because = "jax.distributed.initialize() reads it"
        made.append(("JAX_COORDINATOR_ADDRESS", "{master_addr}:{master_port}", because))
        if launcher != "srun":
            made += [
                ("SLURM_JOB_ID", "{job_id}", f"{because}; the value is not used"),
                ("SLURM_STEP_NODELIST", "{master_addr}", f"{because}; the value is not used"),
                ("SLURM_NTASKS", "{world_size}", because),
                ("SLURM_PROCID", "{rank}", because),
                ("SLURM_LOCALID", "{local_rank}", because),
            ]
        devices = max((len(rank.devices) for rank in binding.ranks), default=0)
        if devices:
            own = "{device}" if (binding.visible or all_devices) == all_devices else "{local_rank}"
            own = ",".join(map(str, range(devices))) if one_device else own
            made.append(("JAX_LOCAL_DEVICE_IDS", own, "the numbers of this rank's devices among the visible ones"))
    if imports & {"tensorflow", "keras"} and "horovod" not in imports:
        value = '{"cluster": {"worker": [${w_workers}]}, "task": {"type": "worker", "index": {rank}}}'
        made.append(("TF_CONFIG", value, "MultiWorkerMirroredStrategy finds the other workers by it"))
    return tuple(Setting(name=n, value=v, because=b, expand=True, keep_user=n == "TF_CONFIG") for n, v, b in made)


def visibility_settings(
    binding: Binding, variable: str | None, mode: str, *, by_launcher: bool, all_devices: tuple[int, ...]
) -> tuple[Setting, ...]:
    """Set the one variable that selects the visible devices of a rank.

    If all devices are visible in their own order, no variable is needed.
    """
    if variable is None or not any(rank.devices for rank in binding.ranks):
        return ()
    if mode == "one":
        if by_launcher:
            return ()
        return (
            Setting(
                name=variable,
                value="{device}",
                because="each rank sees only its own device, as number 0",
                expand=True,
                keep_user=False,
            ),
        )
    order = binding.visible or all_devices
    if order == all_devices:
        return ()
    return (
        Setting(
            name=variable,
            value=",".join(str(index) for index in order),
            because="devices in the order of the ranks' cores, so that device number = local rank is the nearest one",
            keep_user=False,
        ),
    )
