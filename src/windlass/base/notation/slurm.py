"""Words that Slurm's commands share: sbatch and srun ask for devices, and name their logs, in the same way."""

from __future__ import annotations

from windlass.errors import UsageError


def gpu_option(
    request: str, *, gpus_per_node: int, nodes: int, ranks_per_node: int, gpu_type: str | None = None
) -> str:
    """The option that asks for devices, as the site does (`scheduler.gpu_request`)."""
    kind = f"{gpu_type}:" if gpu_type else ""
    return {
        "gpus-per-node": f"--gpus-per-node={kind}{gpus_per_node}",
        "gres": f"--gres=gpu:{kind}{gpus_per_node}",
        "gpus": f"--gpus={kind}{gpus_per_node * nodes}",
        "gpus-per-task": f"--gpus-per-task={kind}{max(1, gpus_per_node // ranks_per_node)}",
    }[request]


def log_path(path: str) -> str:
    """Slurm reads `%` in a path as a pattern; a backslash switches patterns off, so a path with one is refused."""
    if "\\" in path:
        raise UsageError(
            f"Slurm cannot write logs to {path!r}: a backslash in a path means something else to it",
            hint="choose another folder with --run-dir",
        )
    return path.replace("%", "%%")
