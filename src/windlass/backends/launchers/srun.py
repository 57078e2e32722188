"""Slurm's srun. Its daemons bind, write one labelled log per node, end all ranks when one fails and name that one."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator

from windlass.backends.launchers.base import (
    RUN_MARK,
    Launcher,
    LaunchSpec,
    NodeStep,
    NodeStepSpec,
    RankVariables,
    binding_argument,
    parse_label,
    signal_number,
)
from windlass.base.notation.counts import counted, cpu_mask
from windlass.base.notation.hostlist import fold_hostlist, gpu_option, log_path
from windlass.model.origin import Argument, with_site
from windlass.model.record import RankFailure
from windlass.model.site import LauncherSpec

_TASKS = re.compile(
    r"\Asrun: error: (?P<host>[^\s:]+): tasks? [\[ ]?(?P<task>\d{1,9})[\d,\-\[\] ]*: (?P<how>.{1,100}?)\s*\Z"
)
_EXIT = re.compile(r"\AExited with exit code (\d{1,9})\Z")
_NODE = re.compile(r"\Asrun: error: (?:Node failure on|Task launch for \S+ failed on node) (?P<host>[^\s:]+)")
_ABORTED = re.compile(
    r"\Asrun: (?:error: )?(?P<said>(?:Job step aborted|Unable to create step|Application launch|Only allocated).*)"
)
_CANCELLED = re.compile(r"\*\*\* STEP (?P<step>\S+) ON \S+ CANCELLED AT \S+(?P<why> DUE TO [A-Z ]+)? \*\*\*")
_DAEMON = re.compile(r"\Aslurmstepd(?:-\S+)?: ")
_OUT_OF_MEMORY = "Out Of Memory"


class Srun(Launcher):
    name = "srun"
    executable = "srun"
    variables = RankVariables(
        rank=("SLURM_PROCID",),
        local_rank=("SLURM_LOCALID",),
        node_rank=("SLURM_NODEID",),
        world_size=("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
    )
    output = "files"
    binds_lists = True
    takes_binding_words = True
    names_failed_rank = True
    again = ("--overlap",)
    cut_bytes = 1024

    def arguments(self, spec: LaunchSpec, site: LauncherSpec) -> tuple[Argument, ...]:
        """See the base class. Each option is given explicitly and exactly once.

        An option that is not given is inherited from the job's variables or the site's configuration. Of an option that
        is given twice, Slurm silently ignores one."""
        defaults = (
            Argument(words=(site.executable or self.executable,), because="the site's launcher"),
            *_shape(spec),
            *_binding(spec),
            *_devices(spec),
            *_behaviour(spec, site),
            *self._output(spec),
        )
        return with_site(defaults, site.arguments)

    def node_step(self, spec: NodeStepSpec) -> NodeStep:
        """One task per node that overlaps the ranks' step. srun copies its standard input to every task."""
        return NodeStep(
            arguments=tuple(_node_step(spec, spec.executable or self.executable)),
            place=self.variables.node_rank,
            follows_stdin=True,
        )

    def _output(self, spec: LaunchSpec) -> Iterator[Argument]:
        yield Argument(words=("--label",), because="every line begins with its rank")
        if spec.output_dir is not None:
            yield Argument(
                words=(f"--output={spec.output_dir}/node-%4n.log",),
                because="each node's daemon writes its ranks' output, stderr too: one file per node, none through srun",
            )

    def path_word(self, path: str) -> str:
        return log_path(path)

    def parse_line(self, line: str) -> tuple[int | None, str]:
        """The label is valid only for a rank's line, because the daemon's messages have the first rank's label too."""
        rank, text = parse_label(line)
        return (None, text) if _DAEMON.match(text) else (rank, text)

    def parse_failure(self, messages: Iterable[str], exit_code: int) -> RankFailure | None:
        """The first task in srun's error messages, because srun reports the failure before it ends the others.

        If the step was stopped from outside or never started, the rank is None and the message is srun's."""
        found: RankFailure | None = None
        for message in messages:
            if found is None:
                found = _failure(message.strip())
                if found is not None and not _ABORTED.match(message.strip()):
                    return found
            elif cancelled := _CANCELLED.search(message):  # the reason for the abort
                why = (cancelled["why"] or "").lower()
                return RankFailure(rank=None, said=f"step {cancelled['step']} was cancelled{why}")
        return found


def _shape(spec: LaunchSpec) -> Iterator[Argument]:
    yield Argument(words=(f"--nodes={spec.nodes}",), because=counted(spec.nodes, "node"))
    yield Argument(
        words=(f"--ntasks={spec.ranks}",),
        because=spec.in_words,
    )
    yield Argument(words=(f"--ntasks-per-node={spec.ranks_per_node}",), because="the same number of ranks on each node")
    yield Argument(
        words=("--distribution=block:block",), because="ranks in blocks: node 0 has the first, neighbours share a node"
    )
    if spec.cpus_per_rank is not None and spec.cores_per_node is None:
        yield Argument(
            words=(f"--cpus-per-task={spec.cpus_per_rank}",),
            because="since 22.05 srun does not inherit it from the job, and gives each task one CPU",
        )
    if spec.overcommit:
        yield Argument(words=("--overcommit",), because="more ranks than CPUs on a node: some share one")
    if spec.next_to_others:
        yield Argument(words=("--overlap",), because="the components of the job run at the same time")
        yield Argument(words=("--mem=0",), because="takes no share of the memory from the other components")
    elif spec.overlap:
        yield Argument(words=("--overlap",), because="windlass itself runs in a step, which never releases its CPUs")
    if spec.host_list is not None:
        yield Argument(words=(f"--nodelist={spec.host_list}",), because="a part of the allocation")


def _binding(spec: LaunchSpec) -> Iterator[Argument]:
    if spec.cpu_bind_variable:
        yield binding_argument(spec.cpu_bind_variable)
    elif spec.cpu_lists:
        digits = max(len(cpu_mask(cpus)) for cpus in spec.cpu_lists) - len("0x")
        masks = ",".join(cpu_mask(cpus, digits=digits) for cpus in spec.cpu_lists)
        yield Argument(words=(f"--cpu-bind=mask_cpu={masks}",), because="one mask per local rank, from the binding map")
    elif spec.unbound:
        yield Argument(words=("--cpu-bind=none",), because="srun binds nothing")
    elif spec.cpus_per_rank is not None:
        yield Argument(words=("--cpu-bind=cores",), because="whole cores for each rank, in order")


def _devices(spec: LaunchSpec) -> Iterator[Argument]:
    if spec.gpu_request == "none" or not spec.gpus_per_node:
        return
    if spec.devices == "one" and spec.device_by_launcher:
        yield Argument(words=("--gpus-per-task=1",), because="one device for each rank")
        yield Argument(words=("--gpu-bind=closest",), because="Slurm gives each rank the device next to its cores")
        return
    per_node = spec.gpus_of_node or spec.gpus_per_node  # an overlapping step would get the first devices of the node
    word = gpu_option(
        spec.gpu_request,
        gpus_per_node=per_node,
        gpu_type=spec.gpu_type,
        nodes=spec.nodes,
        ranks_per_node=spec.ranks_per_node,
    )
    yield Argument(words=(word,), because=f"{per_node} devices per node, requested in the site's form")
    yield Argument(
        words=("--gpu-bind=none",),
        because="every rank sees its node's devices: hiding the others breaks peer-to-peer copies",
    )


def _behaviour(spec: LaunchSpec, site: LauncherSpec) -> Iterator[Argument]:
    yield Argument(
        words=("--kill-on-bad-exit=1",), because="when one rank fails, all end at once and none waits for it"
    )
    yield Argument(words=("--wait=0",), because="a rank that finishes first must not end ranks that still write")
    yield Argument(words=("--export=ALL",), because="pass the environment, even if the job was submitted without it")
    mpi = spec.mpi or site.mpi
    if mpi:
        yield Argument(words=(f"--mpi={mpi}",), because="how the MPI library finds its peers")
    if spec.time_limit is not None:
        yield Argument(words=(f"--time={spec.time_limit}",), because="time limit of this step")
    yield Argument(
        words=(f"--job-name={spec.step_name}.{RUN_MARK}",),
        because="so that windlass can find and end exactly this step",
    )


def _node_step(spec: NodeStepSpec, executable: str) -> Iterator[Argument]:
    def words(word: str, because: str) -> Argument:
        return Argument(words=(word,), because=because)

    yield words(executable, "the site's launcher")
    yield words(f"--nodes={spec.nodes}", counted(spec.nodes, "node"))
    yield words(f"--ntasks={spec.nodes}", "one task on each node")
    yield words("--ntasks-per-node=1", "one task on each node")
    yield words("--distribution=block:block", "tasks are numbered as the nodes are")
    if spec.hosts:
        yield words(f"--nodelist={fold_hostlist(spec.hosts)}", "exactly these nodes")
    yield words("--overlap", "runs next to the ranks on the same CPUs")
    yield words("--mem=0", "takes no share of the memory from the ranks")
    yield words("--cpu-bind=none", "srun binds nothing")
    if not spec.devices:  # by default a step sees the devices of the job, and shares them
        yield words("--gres=none", "needs no device")
    yield words("--kill-on-bad-exit=0", "a failure on one node must not end the step on the others")
    yield words("--wait=0", "a task that ends first must not end the others")
    yield words("--export=ALL", "pass the environment, even if the job was submitted without it")
    yield words(f"--job-name={spec.name}", "so that windlass can find and end exactly this step")


def _failure(line: str) -> RankFailure | None:
    """Parse an error message of srun. Returns None for any other line."""
    node = _NODE.match(line)
    if node:
        return RankFailure(rank=None, host=node.group("host"), said=line.partition("error: ")[2])
    aborted = _ABORTED.match(line)
    if aborted:
        return RankFailure(rank=None, said=aborted.group("said").removeprefix("error: "))
    match = _TASKS.match(line)
    if not match:
        return None
    rank = int(match.group("task"))
    how = match.group("how")
    code = _EXIT.match(how)
    if code:
        return RankFailure(rank=rank, host=match.group("host"), code=int(code.group(1)), said=how)
    number = int(signal.SIGKILL) if how == _OUT_OF_MEMORY else signal_number(how)
    return RankFailure(rank=rank, host=match.group("host"), signal=number, said=how)
