"""`windlass.init`: find the place, choose the device, connect the ranks, and print the choice in one line.

The module also keeps the CPU mask of this process, because some builds of torch (through their OpenMP) narrow it during
import. Ranks then share one core with their own data workers, and only the lower speed shows it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import math
import os
import socket
import sys
from collections.abc import Mapping, MutableMapping
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from types import ModuleType
from typing import Any

from windlass.base.notation.counts import parse_cpulist
from windlass.errors import MachineError, UsageError
from windlass.node.sampler.on_request import dump_on_request, stacks_by_hand, stacks_on_request, switch_on
from windlass.node.sys.identity import own_environ
from windlass.runtime import codes, ledger
from windlass.runtime.device import Choice, choose, probe
from windlass.runtime.place import RankPlace, find_place
from windlass.runtime.run import Run, close_at_exit, first_line, say


def import_keeping_affinity(name: str, bound_to: str | None = None) -> tuple[ModuleType, bool]:
    """Import `name` and keep the mask of the calling thread (or set it to `bound_to`, a CPU list).

    Returns the module and whether the mask had to be restored. `bound_to` is the list to which the launcher bound this
    rank. It covers a module that was imported earlier.
    """
    if not hasattr(os, "sched_getaffinity"):
        return importlib.import_module(name), False
    before = os.sched_getaffinity(0)
    wanted = set(parse_cpulist(bound_to)) if bound_to else before
    module = importlib.import_module(name)
    if os.sched_getaffinity(0) == wanted:
        return module, False
    try:
        os.sched_setaffinity(0, wanted)
    except OSError:
        # The launcher's list and the cgroup disagree. Keep the mask that the kernel allows.
        return module, False
    return module, True


_TORCH_PORT = 29500  # the port in every torch example. Used only if nothing distinguishes two jobs
_JOB_NAMES = ("PMIX_NAMESPACE", "PALS_APID", "OMPI_MCA_ess_base_jobid", "FLUX_JOB_ID", "PBS_JOBID")
_HAS_MPI = frozenset({"pals", "openmpi", "hydra", "flux"})


def init(
    *,
    device: str | None = None,
    launcher: str | None = None,
    timeout_s: float | None = None,
    process_group: bool = True,
) -> Run:
    """Set this process up as one rank, under windlass, srun, mpiexec, flux, torchrun, or alone.

    On return, torch's default device and process group are set. The torch variables (`RANK`, `MASTER_ADDR`, ...) are in
    the environment for other libraries. `device` and `launcher` override the detected values. Raises `UsageError` if
    the variables contradict each other. Raises `MachineError` if the ranks do not connect in time.
    """
    environ = own_environ()
    torch, restored = import_keeping_affinity("torch", environ.get(codes.CPUS))
    place = _complete(find_place(environ, launcher=launcher), environ)
    local_rank = _local_rank(place)
    planned = place.local_world_size if place.launcher == "windlass" else None
    choice = choose(probe(torch), local_rank=local_rank, kind=device, ranks_planned=planned)
    limit_s = timeout_s if timeout_s is not None else scaled_timeout_s(place.world_size)
    if limit_s <= 0:
        raise UsageError(f"windlass.init: timeout_s is {limit_s}", hint="give seconds greater than zero")
    switch_on(environ, torch.__version__, environ.get(codes.RUN_DIR))
    stacks_by_hand()
    if "windlass_on_request" not in sys.modules:  # otherwise the start-up hook does both
        stacks_on_request(environ.get(codes.HEARTBEAT))
        dump_on_request(environ.get(codes.HEARTBEAT), environ.get(codes.RUN_DIR), place.rank)
    if choice.kind != "cpu":
        getattr(torch, choice.kind).set_device(choice.index)
    run = Run(
        rank=place.rank,
        local_rank=local_rank,
        world_size=place.world_size,
        local_world_size=place.local_world_size,
        node_rank=place.node_rank,
        device=torch.device(choice.name),
        backend=choice.backend,
        launcher=place.launcher,
        master_addr=place.master_addr,
        master_port=place.master_port,
        timeout_s=limit_s,
    )
    if run.is_main:
        ledger.note(environ, "imported")
    if process_group:
        _meet(torch, run, choice, environ)
    if run.is_main:
        ledger.note(environ, "met")
        say(_summary(run, choice, restored))
    return run


def scaled_timeout_s(world_size: int) -> float:
    """Return how long ranks wait for each other: torch's ten minutes, or more if thousands import torch at once."""
    return max(600.0, 300.0 + 60.0 * math.log2(max(world_size, 1)))


def _complete(place: RankPlace, environ: Mapping[str, str]) -> RankPlace:
    """Return the place with address and port for the rendezvous: from MPI if only MPI has them, otherwise by rule."""
    if (
        place.world_size > 1
        and place.launcher in _HAS_MPI
        and (
            place.master_addr is None or place.local_rank is None or (place.master_port is None and not place.one_node)
        )
    ):
        place = _ask_mpi(place)
    if place.world_size > 1 and place.master_addr is None:
        raise UsageError(
            f"{place.world_size} ranks ({place.launcher}), but the address of rank 0 is unknown",
            hint="start with windlass, or export MASTER_ADDR, or install mpi4py for this MPI",
        )
    if place.master_port is None:
        place = replace(place, master_port=_port(environ))
    return place


def _ask_mpi(place: RankPlace) -> RankPlace:
    """Get rank 0's host, a free port and the local rank through mpi4py, if it is installed and fits this launcher."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        return place
    world = MPI.COMM_WORLD
    if world.Get_size() != place.world_size:
        raise UsageError(
            f"mpi4py sees {world.Get_size()} ranks, {place.launcher} started {place.world_size}",
            hint="mpi4py was built for another MPI than the launcher's; rebuild it, or export MASTER_ADDR",
        )
    addr, port = world.bcast((socket.gethostname(), _free_port()) if place.rank == 0 else None, root=0)
    local = world.Split_type(MPI.COMM_TYPE_SHARED)
    here = replace(place, local_world_size=local.Get_size()) if place.local_world_size is None else place
    local_rank = local.Get_rank() if place.local_rank is None else place.local_rank
    local.Free()
    return replace(
        here,
        master_addr=place.master_addr or ("127.0.0.1" if here.one_node else addr),
        master_port=port if place.master_port is None else place.master_port,
        local_rank=local_rank,
    )


def _free_port() -> int:
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe_socket:
        probe_socket.bind(("", 0))
        return int(probe_socket.getsockname()[1])


def _port(environ: Mapping[str, str]) -> int:
    """Return a port that all ranks of a job derive without communication, from the launcher's name of the job."""
    name = next((environ[key] for key in _JOB_NAMES if environ.get(key)), None)
    if name is None:
        return _TORCH_PORT
    return 15_000 + int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % 15_000


def _local_rank(place: RankPlace) -> int:
    if place.local_rank is not None:
        return place.local_rank
    if place.one_node:
        return place.rank
    raise UsageError(
        f"rank {place.rank} of {place.world_size} ({place.launcher}): its local rank is unknown",
        hint="export LOCAL_RANK in the job script, or start with windlass",
    )


def _meet(torch: Any, run: Run, choice: Choice, environ: MutableMapping[str, str]) -> None:
    """Create the process group of all ranks. An existing group is checked and kept."""
    dist = torch.distributed
    if not dist.is_available():
        if run.world_size > 1:
            raise MachineError("this torch was built without torch.distributed", hint="use another build of torch")
        return
    if dist.is_initialized():
        if (dist.get_rank(), dist.get_world_size()) != (run.rank, run.world_size):
            raise UsageError(
                f"torch.distributed is already set up as rank {dist.get_rank()} of {dist.get_world_size()}, "
                f"but {run.launcher} says rank {run.rank} of {run.world_size}",
                hint="let windlass.init set it up, or pass process_group=False",
            )
        return
    if choice.backend == "ccl":
        import_keeping_affinity("oneccl_bindings_for_pytorch")  # the import registers the backend
    if run.launcher != "alone":
        _export(run, environ)
    options: dict[str, Any] = {"backend": choice.backend, "timeout": timedelta(seconds=run.timeout_s)}
    if choice.kind == "cuda" and choice.backend == "nccl":
        options["device_id"] = run.device
    if run.world_size == 1 and "TORCHELASTIC_RUN_ID" not in environ:
        options |= {"store": dist.HashStore(), "rank": 0, "world_size": 1}  # no port, no host name, so no conflict
    if choice.backend == "gloo":
        _bind_defaults_early()
    try:
        dist.init_process_group(**options)
    except (RuntimeError, ValueError) as error:
        raise MachineError(
            f"rank {run.rank} on {socket.gethostname()} did not meet the other {run.world_size - 1} ranks at "
            f"{run.master_addr}:{run.master_port} within {run.timeout_s:.0f} s: {first_line(error)}",
            hint="check that rank 0 runs, that this node reaches its address, and that the port is free",
        ) from error
    if choice.backend == "gloo":
        close_at_exit()


def _bind_defaults_early() -> None:
    """Import `torch.distributed.nn.functional` (which checkpointing imports) before the process group exists.

    Its import makes the job's group a default argument. That group is never freed, and its threads still run when the
    interpreter ends. The import loads nine small modules. Before the group exists, the default is none.
    """
    with contextlib.suppress(ImportError):
        import torch.distributed.nn.functional  # noqa: F401


def _export(run: Run, environ: MutableMapping[str, str]) -> None:
    """Export the torch variables, for DDP wrappers and libraries that read them. Existing values stay."""
    words = {
        "RANK": run.rank,
        "WORLD_SIZE": run.world_size,
        "LOCAL_RANK": run.local_rank,
        "LOCAL_WORLD_SIZE": run.local_world_size,
        "MASTER_ADDR": run.master_addr,
        "MASTER_PORT": run.master_port,
    }
    for name, value in words.items():
        if value is not None:
            environ.setdefault(name, str(value))


def _summary(run: Run, choice: Choice, restored: bool) -> str:
    nodes = ""
    if run.local_world_size and run.world_size % run.local_world_size == 0:
        nodes = f" on {run.world_size // run.local_world_size} node(s)"
    where = f", meeting at {run.master_addr}:{run.master_port}" if run.world_size > 1 else ""
    mask = ", CPU mask restored after importing torch" if restored else ""
    return (
        f"{run.world_size} rank(s){nodes} from {run.launcher}, device {choice.name} ({choice.because}), "
        f"backend {run.backend}, waits up to {run.timeout_s:.0f} s{where}{mask}"
    )
