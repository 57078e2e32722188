"""Cray PALS mpiexec (Aurora, Polaris and other HPE machines with PBS).

It binds to CPU lists, labels lines with host and rank, ends all ranks when one fails, and names that rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from windlass.backends.launchers.base import (
    Launcher,
    LaunchSpec,
    NodeStep,
    NodeStepSpec,
    RankVariables,
    binding_argument,
    own_message,
)
from windlass.base.notation.counts import format_bindings
from windlass.model.origin import Argument, with_site
from windlass.model.record import RankFailure
from windlass.model.site import LauncherSpec

_LABEL = re.compile(r"\A[^\s:]+ (\d{1,9}):(?: (.*))?\Z", re.DOTALL)
# One line can contain two of these messages, because PALS omits the newline after "and dumped core".
_ENDED = re.compile(
    r"(?:(?<![\w.\-])|(?<=dumped core))(?P<host>[A-Za-z0-9][\w.\-]{0,254}): "
    r"(?:(?P<shepherd>shepherd)|rank (?P<rank>\d{1,9})) "
    r"(?P<said>exited with code (?P<code>\d{1,9})|died from signal (?P<signal>\d{1,9})(?: and dumped core)?)"
)
_SIGTERM = 15


class Pals(Launcher):
    name = "pals"
    executable = "mpiexec"
    variables = RankVariables(
        rank=("PALS_RANKID", "PMIX_RANK", "PMI_RANK"),
        local_rank=("PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"),
        node_rank=("PALS_NODEID",),
        world_size=("PMI_SIZE",),
    )
    output = "stream"
    binds_lists = True
    takes_binding_words = True
    names_failed_rank = True

    def arguments(self, spec: LaunchSpec, site: LauncherSpec) -> tuple[Argument, ...]:
        return with_site(_defaults(spec, site, site.executable or self.executable), site.arguments)

    def node_step(self, spec: NodeStepSpec) -> NodeStep:
        """A signal ends the step, because only some of PALS's tasks read its standard input."""
        in_file = spec.host_file if spec.hosts else None
        return NodeStep(
            arguments=tuple(_node_step(spec, spec.executable or self.executable)),
            host_file=in_file,
            host_file_text="".join(f"{host}\n" for host in spec.hosts) if in_file else "",
            place=(*self.variables.node_rank, *self.variables.rank),
        )

    def host_file_text(self, hosts: Iterable[str], spec: LaunchSpec) -> str | None:
        return "".join(f"{host}\n" for host in hosts)

    def parse_line(self, line: str) -> tuple[int | None, str]:
        """`x4000c0s0b0n0.hsn.example 12: text`."""
        match = _LABEL.match(line)
        return (int(match.group(1)), match.group(2) or "") if match else own_message(line)

    def parse_failure(self, messages: Iterable[str], exit_code: int) -> RankFailure | None:
        """The first rank that did not die from SIGTERM, because PALS ends the others with SIGTERM.

        A shepherd is the daemon above a node's ranks. If it dies, the node counts as failed."""
        first: RankFailure | None = None
        for message in messages:
            if _LABEL.match(message):
                continue
            for match in _ENDED.finditer(message):
                failure = _failure(match)
                if failure.signal != _SIGTERM:
                    return failure
                first = first or failure
        return first


def _defaults(spec: LaunchSpec, site: LauncherSpec, executable: str) -> Iterator[Argument]:
    yield Argument(words=(executable,), because="the site's launcher")
    yield Argument(
        words=("-n", str(spec.ranks)),
        because=spec.in_words,
    )
    yield Argument(words=("--ppn", str(spec.ranks_per_node)), because="ranks in blocks: node 0 has the first")
    if spec.host_file is not None:
        yield Argument(words=("--hostfile", spec.host_file), because="exactly these nodes, in this order")
    if spec.cpu_bind_variable:
        yield binding_argument(spec.cpu_bind_variable)
    elif spec.cpu_lists:
        yield Argument(
            words=(f"--cpu-bind=list:{format_bindings(spec.cpu_lists)}",),
            because="one list of CPUs per local rank, from the binding map",
        )
    elif spec.unbound or spec.cpus_per_rank is None:
        yield Argument(words=("--cpu-bind=none",), because="PALS binds nothing")
    else:
        yield Argument(words=("--cpu-bind=depth",), because="CPUs for each rank in order")
        yield Argument(words=(f"--depth={spec.cpus_per_rank}",), because="CPUs for each rank")
    yield Argument(words=("--envall",), because="pass the environment to every node")
    mpi = spec.mpi or site.mpi
    if mpi:
        yield Argument(words=(f"--pmi={mpi}",), because="how the MPI library finds its peers")
    yield Argument(words=("--label",), because="every line begins with its host and rank")
    yield Argument(words=("--line-buffer",), because="lines of different ranks do not mix")


def _node_step(spec: NodeStepSpec, executable: str) -> Iterator[Argument]:
    yield Argument(words=(executable,), because="the site's launcher")
    yield Argument(words=("-n", str(spec.nodes)), because="one task on each node")
    yield Argument(words=("--ppn", "1"), because="one task on each node")
    if spec.hosts and spec.host_file:
        yield Argument(words=("--hostfile", spec.host_file), because="exactly these nodes, in this order")
    elif spec.hosts:
        yield Argument(words=("--hosts", ",".join(spec.hosts)), because="exactly these nodes, in this order")
    yield Argument(words=("--cpu-bind=none",), because="PALS binds nothing, and takes no core from the ranks")
    yield Argument(
        words=("--no-vni",), because="uses no network identifier, because a node has few and the ranks need them"
    )
    yield Argument(words=("--envall",), because="pass the environment to every node")
    yield Argument(words=("--line-buffer",), because="lines of different nodes do not mix")


def _failure(match: re.Match[str]) -> RankFailure:
    code, signal = match.group("code"), match.group("signal")
    who = "shepherd " if match.group("shepherd") else ""
    return RankFailure(
        rank=int(match.group("rank")) if match.group("rank") else None,
        host=match.group("host"),
        code=int(code) if code else None,
        signal=int(signal) if signal else None,
        said=who + match.group("said"),
    )
