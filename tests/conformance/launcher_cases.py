"""What each launcher's own words look like, for the shared suite: labelled lines and complaints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from windlass.backends.launchers.base import LaunchSpec, label_line

HOSTILE = (
    "",
    " ",
    "a b",
    "'",
    '"',
    "$(touch x)",
    "`id`",
    "*?[a]",
    "new\nline",
    "größe",
    "-n",
    "--",
    "\\",
    "a=b",
    "%n",
    "{rank}",
)
"""Arguments that must arrive byte for byte."""

SPECS = {
    "one rank": LaunchSpec(nodes=1, ranks_per_node=1),
    "bound by lists": LaunchSpec(nodes=1, ranks_per_node=2, cpu_lists=((0, 1), (2, 3)), cpus_per_rank=2),
    "counted": LaunchSpec(nodes=1, ranks_per_node=4, cpus_per_rank=16),
    "unbound": LaunchSpec(nodes=1, ranks_per_node=3, unbound=True),
    "devices for all": LaunchSpec(nodes=1, ranks_per_node=4, gpus_per_node=4, gpu_request="gpus-per-node"),
    "one device each": LaunchSpec(
        nodes=1, ranks_per_node=8, gpus_per_node=8, gpu_request="gres", devices="one", device_by_launcher=True
    ),
    "shared cores": LaunchSpec(nodes=1, ranks_per_node=9, overcommit=True),
    "with files": LaunchSpec(
        nodes=1, ranks_per_node=2, host_file="/run/x y/hosts", output_dir="/run/x y/out", mpi="pmi2"
    ),
    "four nodes": LaunchSpec(nodes=4, ranks_per_node=2),
    "part of an allocation": LaunchSpec(nodes=2, ranks_per_node=2, host_list="nid[0002-0003]"),
    "ten thousand nodes": LaunchSpec(nodes=10_000, ranks_per_node=12, cpu_lists=tuple((n,) for n in range(12))),
}


@dataclass(frozen=True)
class Words:
    """`label` writes a line as the launcher does; `exited` and `killed` are its complaints about rank 2."""

    label: Callable[[int, str], str]
    exited: tuple[str, ...] = ()
    killed: tuple[str, ...] = ()


WORDS = {
    "srun": Words(
        label_line,
        exited=("srun: error: nid0002: task 2: Exited with exit code 3", "srun: error: nid0001: tasks 0-1: Terminated"),
        killed=("srun: error: nid0002: task 2: Killed", "srun: error: nid0001: tasks 0-1: Terminated"),
    ),
    "pals": Words(
        lambda rank, text: f"x1000c0s0b0n0.example {rank}: {text}",
        exited=("x1.example: rank 2 exited with code 3", "x2.example: rank 0 died from signal 15"),
        killed=("x1.example: rank 2 died from signal 9", "x2.example: rank 0 died from signal 15"),
    ),
    "hydra": Words(lambda rank, text: f"[windlass {rank}] {text}"),
    "openmpi": Words(
        lambda rank, text: f"[1,{rank}]<stdout>:{text}",
        exited=("  Process name: [[6187,1],2]", "  Exit code:    3"),
        killed=("mpirun noticed that process rank 2 with PID 0 on node n1 exited on signal 9 (Killed).",),
    ),
    "flux": Words(
        label_line,
        exited=(
            "0.1s: flux-shell[0]: FATAL: task-exit: sh: task rank 2 on host n1 failed (Exit 3) and exit-on-error is",
        ),
        killed=(
            "0.1s: flux-shell[0]: FATAL: task-exit: sh: task rank 2 on host n1 failed (Killed) and exit-on-error is",
        ),
    ),
    "local": Words(label_line),
}
