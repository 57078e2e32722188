"""Build the command that each rank runs from the user's arguments. Pure: the caller passes the interpreter."""

from __future__ import annotations

import re
from pathlib import PurePath

from windlass.errors import UsageError
from windlass.model.request import Request

_NESTED = {
    "torchrun": "torchrun",
    "torchrun_jsc": "torchrun_jsc",
    "accelerate": "accelerate launch",
    "deepspeed": "the deepspeed launcher",
    "horovodrun": "horovodrun",
    "mpiexec": "mpiexec",
    "mpirun": "mpirun",
    "srun": "srun",
}
_NESTED_MODULES = {
    "torch.distributed.run": "torch.distributed.run",
    "torch.distributed.launch": "torch.distributed.launch",
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.runner": "the deepspeed launcher",
}


_TORCHRUN = frozenset({"torchrun", "torchrun_jsc", "torch.distributed.run", "torch.distributed.launch"})
_NODES_OPTION = re.compile(r"--nnodes?(?:=|\Z)")
_ONE_NODE = re.compile(r"--nnodes?=1(?::1)?\Z")


def rank_command(request: Request, python: str) -> tuple[str, ...]:
    """The argv of a rank: a script or module with the interpreter in front, or the command unchanged."""
    if request.kind == "script":
        return (python, *request.command)
    if request.kind == "module":
        return (python, "-m", *request.command)
    return request.command


def nested_launcher(command: tuple[str, ...]) -> str | None:
    """The launcher that this command would start inside every rank, or None."""
    words = list(command)
    while words and (PurePath(words[0]).name in {"env", "nohup", "exec"} or "=" in words[0].partition("/")[0]):
        words.pop(0)
    if not words:
        return None
    first = PurePath(words[0]).name
    if first in _NESTED:
        return None if first == "accelerate" and "launch" not in words[1:2] else _NESTED[first]
    if first.startswith("python") and "-m" in words[:-1]:
        return _NESTED_MODULES.get(words[words.index("-m") + 1])
    return None


def refuse_nested_launcher(command: tuple[str, ...], nodes: int, ranks_per_node: int) -> str | None:
    """Refuse a launcher inside several ranks of a node. For one rank per node, return a remark instead.

    Each of the R ranks would start R workers, all on the same port. This is the most common way to hang a job. On
    several nodes, a torchrun without node arguments creates a separate world on each node, and each of them reports
    success.
    """
    name = nested_launcher(command)
    if name is None:
        return None
    if ranks_per_node > 1 or name in {"srun", "mpiexec", "mpirun"}:
        raise UsageError(
            f"the command starts {name} inside every rank ({ranks_per_node} per node)",
            hint="leave it out: windlass starts one process per device and sets RANK, LOCAL_RANK, WORLD_SIZE, "
            f"MASTER_ADDR and MASTER_PORT. To keep it, use {_torchrun_words(name, '--ranks-per-node 1')}",
        )
    if nodes > 1 and name in _TORCHRUN and not _knows_other_nodes(command):
        raise UsageError(
            f"{name} gets no arguments for the {nodes} nodes: each node would train alone",
            hint=f"leave it out, because windlass starts the ranks, or write {_torchrun_words(name, '')}",
        )
    return f"{name} runs inside windlass, one per node: its workers get no binding from windlass"


def _torchrun_words(name: str, flag: str) -> str:
    """The arguments with which torchrun forms one world. Other launchers need only the flag."""
    if name not in _TORCHRUN:
        return flag
    words = "torchrun --nnodes={nodes} --node-rank={node_rank} --nproc-per-node=N"
    return f"{flag} {words} --master-addr={{master_addr}} --master-port={{master_port}} SCRIPT".strip()


def _knows_other_nodes(command: tuple[str, ...]) -> bool:
    """Whether torchrun's arguments name more than one node."""
    if "--standalone" in command or any(_ONE_NODE.match(word) for word in command):
        return False
    at = next((index for index, word in enumerate(command) if _NODES_OPTION.match(word)), None)
    return at is not None and not (
        command[at] in {"--nnodes", "--nnode"} and command[at + 1 : at + 2] in {("1",), ("1:1",)}
    )
