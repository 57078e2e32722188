"""Open MPI's mpirun, 4.x and 5.x, with options that both accept.

The rank script binds, because the CPU lists of the two versions differ. mpirun ends all ranks when one fails. It passes
only the variables that its arguments name. On a busy machine it does not always name the rank that a signal ended, so
the rank script stays the parent.

4.1 reads output in pieces of 4 KiB and labels them in a buffer of 8 KiB. It silently cuts off a burst of hundreds of
lines shorter than their labels (about 14 characters). Lines of ordinary length arrive complete.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator

from windlass.backends.launchers.base import (
    Launcher,
    LaunchSpec,
    NodeStep,
    NodeStepSpec,
    RankVariables,
    labelled_pieces,
    one_line_alone,
)
from windlass.base.notation.hostlist import expand_hostlist
from windlass.model.origin import Argument, with_site
from windlass.model.record import RankFailure
from windlass.model.site import LauncherSpec

# 4.x: `[1,0]<stdout>:text`. 5.x names the job by its daemon and adds a space: `[prterun-host-99@1,0]<stdout>: text`.
_LABEL = re.compile(
    r"\[(?:\d{1,9}|(?P<five>[^\]\s]{0,255}@\d{1,9})),(?P<rank>\d{1,9})\]<(?:stdout|stderr|stddiag)>:(?(five) ?)"
)
_PROCESS = re.compile(r"\A\s*Process name: \[.{0,300},(\d{1,9})\]\s*\Z")
_CODE = re.compile(r"\A\s*Exit code:\s+(\d{1,9})\s*\Z")
_SIGNAL = re.compile(
    r"noticed that process rank (?P<rank>\d{1,9}) with PID \d{1,9} on node (?P<host>\S{1,255}) "
    r"exited on\s{1,9}signal (?P<signal>\d{1,9}) \((?P<said>[^)]{0,300})\)"
)
# Messages about variables that are named but not set, and about the carrier signal.
_NOISE = re.compile(r"Warning: could not find environment variable|\Ampirun: Forwarding signal \d+ to job")


class OpenMpi(Launcher):
    name = "openmpi"
    executable = "mpirun"
    variables = RankVariables(
        # OMPI_COMM_WORLD_NODE_RANK counts the processes of all jobs on a node. It is not the node's number.
        rank=("OMPI_COMM_WORLD_RANK", "PMIX_RANK"),
        local_rank=("OMPI_COMM_WORLD_LOCAL_RANK",),
        world_size=("OMPI_COMM_WORLD_SIZE",),
    )
    output = "stream"
    binds_lists = False
    finds_hosts = False  # Debian builds it without PBS
    names_failed_rank = False
    carrier = signal.SIGALRM
    hurries = True  # it kills one second after SIGTERM, and kills all others if one of them then exits with a code

    def arguments(self, spec: LaunchSpec, site: LauncherSpec) -> tuple[Argument, ...]:
        return with_site(_defaults(spec, site.executable or self.executable), site.arguments)

    def node_step(self, spec: NodeStepSpec) -> NodeStep:
        """SIGUSR1 or the loss of a node ends the step, because mpirun gives its standard input only to rank 0.

        mpirun only forwards SIGUSR1. After SIGTERM it kills the tasks within a second. With
        `odls_base_sigkill_timeout` it waits for exactly that time, even if all tasks have ended."""
        in_file = spec.host_file if spec.hosts else None
        return NodeStep(
            arguments=tuple(_node_step(spec, spec.executable or self.executable)),
            host_file=in_file,
            host_file_text="".join(f"{host} slots=1\n" for host in spec.hosts) if in_file else "",
            place=self.variables.rank,
            stop_signal=signal.SIGUSR1,
            environment=(("SLURM_OVERLAP", "1"),),  # in Slurm its daemons are a step that would wait for the ranks
        )

    def host_file_text(self, hosts: Iterable[str], spec: LaunchSpec) -> str | None:
        return "".join(f"{host} slots={spec.ranks_per_node}\n" for host in hosts)

    def parse_line(self, line: str) -> tuple[int | None, str]:
        return one_line_alone(_LABEL, line)

    def segments(self, line: str) -> tuple[tuple[int | None, str], ...]:
        return labelled_pieces(_LABEL, line)

    def is_noise(self, message: str) -> bool:
        return _NOISE.search(message) is not None

    def parse_failure(self, messages: Iterable[str], exit_code: int) -> RankFailure | None:
        """The process after "The first process to do so was", or the one that a signal ended.

        5.x breaks its lines anywhere."""
        own = [text for rank, text in map(self.parse_line, messages) if rank is None]
        noticed = _SIGNAL.search(" ".join(line.strip() for line in own))
        if noticed:
            return RankFailure(
                rank=int(noticed.group("rank")),
                host=noticed.group("host"),
                signal=int(noticed.group("signal")),
                said=noticed.group("said"),
            )
        rank: int | None = None
        for line in own:
            process, code = _PROCESS.match(line), _CODE.match(line)
            rank = int(process.group(1)) if process else rank
            if code and rank is not None:
                return RankFailure(rank=rank, code=int(code.group(1)), said=f"exit code {code.group(1)}")
        return None


def _defaults(spec: LaunchSpec, executable: str) -> Iterator[Argument]:
    yield Argument(words=(executable,), because="Open MPI's launcher")
    yield Argument(
        words=("-n", str(spec.ranks)),
        because=spec.in_words,
    )
    share = ":OVERSUBSCRIBE" if spec.overcommit else ""
    yield Argument(
        words=("--map-by", f"ppr:{spec.ranks_per_node}:node{share}"), because="ranks in blocks: node 0 has the first"
    )
    yield Argument(words=("--bind-to", "none"), because="the rank script binds")
    if spec.host_file is not None:
        yield Argument(words=("--hostfile", spec.host_file), because="exactly these nodes, in this order")
    elif spec.host_list is not None:
        hosts = ",".join(f"{host}:{spec.ranks_per_node}" for host in expand_hostlist(spec.host_list))
        yield Argument(words=("--host", hosts), because="exactly these nodes, in this order")
    for name in spec.environment_names:
        yield Argument(words=("-x", name), because="Open MPI passes only named variables")
    yield Argument(words=("--tag-output",), because="every line begins with its rank")


def _node_step(spec: NodeStepSpec, executable: str) -> Iterator[Argument]:
    yield Argument(words=(executable,), because="Open MPI's launcher")
    yield Argument(words=("-n", str(spec.nodes)), because="one task on each node")
    yield Argument(
        words=("--map-by", "ppr:1:node:OVERSUBSCRIBE"), because="one task on each node, even if all slots are in use"
    )
    yield Argument(words=("--bind-to", "none"), because="binds nothing, and takes no core from the ranks")
    if spec.hosts and spec.host_file:
        yield Argument(words=("--hostfile", spec.host_file), because="exactly these nodes, in this order")
    elif spec.hosts:
        yield Argument(
            words=("--host", ",".join(f"{host}:1" for host in spec.hosts)), because="exactly these nodes, in this order"
        )
    for name in spec.environment_names:
        yield Argument(words=("-x", name), because="Open MPI passes only named variables")
