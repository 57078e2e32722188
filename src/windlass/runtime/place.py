"""Read the position of this process among the ranks from the environment. Pure: a mapping in, a `RankPlace` out.

Each launcher has one row: our names on the left, the variables that it sets in a job on the right. Several rows can be
complete at once (`srun --mpi=pmi2` also sets PMI variables, hydra starts its proxies through srun). So all rows are
read first and reconciled afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from windlass.base.notation.counts import parse_counts
from windlass.base.notation.hostlist import expand_hostlist
from windlass.errors import UsageError, unknown_name
from windlass.runtime import codes

# If two views agree, the earlier one is preferred: the first has the most values.
_VIEWS: Mapping[str, Mapping[str, str]] = {
    "torch": {
        "rank": "RANK",
        "world_size": "WORLD_SIZE",
        "local_rank": "LOCAL_RANK",
        "local_world_size": "LOCAL_WORLD_SIZE",
        "node_rank": "GROUP_RANK",
        "node_rank_too": "NODE_RANK",
    },
    "srun": {
        # SLURM_NTASKS is also set in a batch script, in which one process runs. Waiting for the others there is a
        # common cause of hangs. SLURM_STEP_NUM_TASKS exists only in a step.
        "rank": "SLURM_PROCID",
        "world_size": "SLURM_STEP_NUM_TASKS",
        "local_rank": "SLURM_LOCALID",
        "node_rank": "SLURM_NODEID",
        "n_nodes": "SLURM_STEP_NUM_NODES",
        "tasks_per_node": "SLURM_STEP_TASKS_PER_NODE",
        "hosts": "SLURM_STEP_NODELIST",
        "job": "SLURM_JOB_ID",
        "step": "SLURM_STEP_ID",
    },
    "flux": {
        "rank": "FLUX_TASK_RANK",
        "world_size": "FLUX_JOB_SIZE",
        "local_rank": "FLUX_TASK_LOCAL_ID",
        "n_nodes": "FLUX_JOB_NNODES",
    },
    "pals": {
        "rank": "PALS_RANKID",
        "world_size": "PMI_SIZE",
        "local_rank": "PALS_LOCAL_RANKID",
        "local_world_size": "PALS_LOCAL_SIZE",
        "node_rank": "PALS_NODEID",
    },
    "openmpi": {
        "rank": "OMPI_COMM_WORLD_RANK",
        "world_size": "OMPI_COMM_WORLD_SIZE",
        "local_rank": "OMPI_COMM_WORLD_LOCAL_RANK",
        "local_world_size": "OMPI_COMM_WORLD_LOCAL_SIZE",
        "node_rank": "OMPI_COMM_WORLD_NODE_RANK",
    },
    "hydra": {
        "rank": "PMI_RANK",
        "world_size": "PMI_SIZE",
        "local_rank": "MPI_LOCALRANKID",
        "local_world_size": "MPI_LOCALNRANKS",
    },
}
# Open MPI's "node rank" counts the ranks of all its jobs on this node. It is a local number, not the node's.
_NOT_A_NODE_NUMBER = frozenset({"openmpi"})
_PORT_BASE, _PORT_SPAN = 15_000, 15_000  # below the ephemeral range of Linux (32768) and above the usual daemons


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlace:
    """Rank and neighbours of one process. `None` for values that the launcher does not set."""

    launcher: str
    rank: int
    world_size: int
    local_rank: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None

    @property
    def one_node(self) -> bool:
        """True if every rank is known to run on this node."""
        return self.world_size == 1 or self.local_world_size == self.world_size


def find_place(environ: Mapping[str, str], *, launcher: str | None = None) -> RankPlace:
    """Return the place of this process. `launcher` (a name of the table, or "alone") overrides the detection.

    Raises `UsageError` if a launcher's variables are incomplete, or if two launchers contradict each other. A start
    would then give N runs of one rank, or a wait that never ends.
    """
    if launcher == "alone":
        return _with_master(RankPlace(launcher="alone", rank=0, world_size=1, local_rank=0), environ)
    if launcher is not None:
        if launcher not in _VIEWS:
            raise unknown_name("launcher", launcher, [*_VIEWS, "alone"], where="windlass.init")
        view = _read(launcher, environ)
        if view is None:
            row = _VIEWS[launcher]
            raise UsageError(
                f"windlass.init: launcher={launcher!r}, but {row['rank']} and {row['world_size']} are not both set",
                hint="start the script with that launcher, or leave the argument out",
            )
        return _with_master(view, environ)
    views = [view for name in _VIEWS if (view := _read(name, environ)) is not None]
    _refuse_partial(environ, views)
    writer = "windlass" if codes.MARK in environ else "torchrun" if "TORCHELASTIC_RUN_ID" in environ else None
    place = _reconcile(views, trusted=writer is not None)
    if writer is not None and place.launcher == "torch":
        place = replace(place, launcher=writer)
    return _with_master(place, environ)


def _read(name: str, environ: Mapping[str, str]) -> RankPlace | None:
    """Return one launcher's view, or None if its rank or its world size is missing."""
    row = _VIEWS[name]
    rank, world = _number(environ, row["rank"]), _number(environ, row["world_size"])
    if rank is None or world is None:
        return None
    if world < 1 or not 0 <= rank < world:
        raise UsageError(
            f"{row['rank']}={rank} and {row['world_size']}={world} contradict each other",
            hint=f"the rank must be 0..{max(world - 1, 0)}; check the job script for an old `export`",
        )
    local_rank = _number(environ, row.get("local_rank"))
    node_rank = _number(environ, row.get("node_rank"))
    if node_rank is None:
        node_rank = _number(environ, row.get("node_rank_too"))
    local_world = _number(environ, row.get("local_world_size"))
    counts = environ.get(row.get("tasks_per_node", ""), "")
    if local_world is None and counts and node_rank is not None:
        per_node = parse_counts(counts)
        local_world = per_node[node_rank] if node_rank < len(per_node) else None
    if local_world is None and _number(environ, row.get("n_nodes")) == 1:
        local_world = world
    if local_rank is not None and local_world is not None and local_rank >= local_world:
        raise UsageError(
            f"{row['local_rank']}={local_rank}, but only {local_world} ranks run on this node",
            hint="check the job script for an old `export`",
        )
    return RankPlace(
        launcher=name,
        rank=rank,
        world_size=world,
        local_rank=local_rank,
        local_world_size=local_world,
        node_rank=None if name in _NOT_A_NODE_NUMBER else node_rank,
        master_addr=_first_host(environ, row),
        master_port=_port_of_job(environ, row),
    )


def _reconcile(views: list[RankPlace], *, trusted: bool) -> RankPlace:
    """Return one place from all complete views.

    A launcher inside another one has more ranks than the outer one has tasks (hydra's proxies under srun, torchrun once
    per node). So the larger world is the inner, true one. The torch variables win if their writer is known.
    """
    if not views:
        return RankPlace(launcher="alone", rank=0, world_size=1, local_rank=0, local_world_size=1, node_rank=0)
    torch = next((v for v in views if v.launcher == "torch"), None)
    if torch is not None and trusted:
        return _fill(torch, views)
    inner = max(views, key=lambda v: v.world_size)  # max() keeps the first of equals: the preferred view
    if torch is not None and torch.world_size < inner.world_size:
        raise UsageError(
            f"WORLD_SIZE={torch.world_size}, but {inner.launcher} started {inner.world_size} tasks",
            hint="unset RANK and WORLD_SIZE in the job script, or call windlass.init(launcher='torch') to use them",
        )
    if torch is not None:
        return _fill(torch, views)
    for view in views:
        if view.world_size == inner.world_size and view.rank != inner.rank:
            raise UsageError(
                f"{inner.launcher} says rank {inner.rank}, {view.launcher} says rank {view.rank} of {view.world_size}",
                hint=f"choose the right one: windlass.init(launcher={inner.launcher!r})",
            )
    return _fill(inner, views)


def _fill(place: RankPlace, views: list[RankPlace]) -> RankPlace:
    """Add values that the chosen view lacks, from views of the same process."""
    for view in views:
        if view.world_size == place.world_size and view.rank == place.rank:
            place = replace(
                place,
                local_rank=view.local_rank if place.local_rank is None else place.local_rank,
                local_world_size=(view.local_world_size if place.local_world_size is None else place.local_world_size),
                node_rank=view.node_rank if place.node_rank is None else place.node_rank,
            )
        if view.world_size == place.world_size:
            place = replace(
                place,
                master_addr=place.master_addr or view.master_addr,
                master_port=place.master_port or view.master_port,
            )
    if place.local_rank is None and place.one_node:
        place = replace(place, local_rank=place.rank)
    return place


def _refuse_partial(environ: Mapping[str, str], views: list[RankPlace]) -> None:
    """Refuse RANK without WORLD_SIZE or the reverse, which is always an error.

    Leftover variables of other launchers may be incomplete.
    """
    present = [name for name in ("RANK", "WORLD_SIZE") if environ.get(name, "") != ""]
    if len(present) == 1:
        missing = "WORLD_SIZE" if present == ["RANK"] else "RANK"
        raise UsageError(
            f"{present[0]} is set to {environ[present[0]]!r} but {missing} is not",
            hint=f"set both, or unset {present[0]} to use the launcher's variables",
        )
    if not views and "PALS_RANKID" in environ:
        raise UsageError(
            "mpiexec of PALS started this rank, but PMI_SIZE is not set, so the number of ranks is unknown",
            hint="start it with windlass, or export WORLD_SIZE, RANK and LOCAL_RANK in a wrapper",
        )


def _with_master(place: RankPlace, environ: Mapping[str, str]) -> RankPlace:
    """Set the rendezvous. MASTER_ADDR and MASTER_PORT win over derived values. A single node needs no host name."""
    addr = environ.get("MASTER_ADDR") or place.master_addr
    if addr is None and place.one_node:
        addr = "127.0.0.1"
    port = _number(environ, "MASTER_PORT")
    if port is not None and not 0 < port < 65536:
        raise UsageError(f"MASTER_PORT={port} is not a port", hint="use a number from 1024 to 65535")
    return replace(place, master_addr=addr, master_port=port if port is not None else place.master_port)


def _first_host(environ: Mapping[str, str], row: Mapping[str, str]) -> str | None:
    text = environ.get(row.get("hosts", ""), "")
    hosts = expand_hostlist(text) if text else ()
    return hosts[0] if hosts else None


def _port_of_job(environ: Mapping[str, str], row: Mapping[str, str]) -> int | None:
    """Return the same port on every rank without communication.

    It is derived from job and step, so that two steps of a job differ.
    """
    job = _number(environ, row.get("job"))
    if job is None:
        return None
    return _PORT_BASE + (job * 7 + (_number(environ, row.get("step")) or 0)) % _PORT_SPAN


def _number(environ: Mapping[str, str], name: str | None) -> int | None:
    text = environ.get(name, "") if name else ""
    if text == "":
        return None
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{name}={text!r} is not a number", hint=f"unset {name} or set it to a number") from None
