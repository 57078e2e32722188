"""MPICH's hydra mpiexec (4.x and 5.x).

The rank script binds, because hydra's CPU lists name no rank. The rank script stays the parent for two reasons. hydra
does not name the failed rank, and it does not end the others if a rank that never called MPI fails.
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

_LABEL = re.compile(r"\[windlass (?P<rank>\d{1,9})\] ")
_WHERE = re.compile(r"\A=\s+PID \d{1,9} RUNNING AT (\S+)")
_CODE = re.compile(r"\A=\s+EXIT CODE: (\d{1,9})")
_STRING = re.compile(r"TERMINATED WITH THE EXIT STRING: (.{0,100}?)(?: \(signal (\d{1,9})\))?\s*\Z")


class Hydra(Launcher):
    name = "hydra"
    executable = "mpiexec"
    variables = RankVariables(
        rank=("PMI_RANK",), local_rank=("MPI_LOCALRANKID", "PMI_LOCAL_RANK"), world_size=("PMI_SIZE",)
    )
    output = "stream"
    binds_lists = False
    names_failed_rank = False
    ends_others = False
    carrier = signal.SIGALRM  # SIGUSR2 and SIGHUP kill hydra

    def arguments(self, spec: LaunchSpec, site: LauncherSpec) -> tuple[Argument, ...]:
        return with_site(_defaults(spec, site.executable or self.executable), site.arguments)

    def node_step(self, spec: NodeStepSpec) -> NodeStep:
        """A signal or the loss of a node ends the step, because hydra gives its standard input only to rank 0."""
        in_file = spec.host_file if spec.hosts else None
        return NodeStep(
            arguments=tuple(_node_step(spec, spec.executable or self.executable)),
            host_file=in_file,
            host_file_text="".join(f"{host}:1\n" for host in spec.hosts) if in_file else "",
            place=self.variables.rank,
            environment=(("SLURM_OVERLAP", "1"),),  # in Slurm its proxies are a step that would wait for the ranks
        )

    def host_file_text(self, hosts: Iterable[str], spec: LaunchSpec) -> str | None:
        return "".join(f"{host}:{spec.ranks_per_node}\n" for host in hosts)

    def parse_line(self, line: str) -> tuple[int | None, str]:
        """`[windlass 3] text`."""
        return one_line_alone(_LABEL, line)

    def segments(self, line: str) -> tuple[tuple[int | None, str], ...]:
        return labelled_pieces(_LABEL, line)

    def parse_failure(self, messages: Iterable[str], exit_code: int) -> RankFailure | None:
        """Host and signal from hydra's banner, which does not name the rank."""
        host: str | None = None
        code: int | None = None
        for message in messages:
            line = message.strip()
            where, exited, ended = _WHERE.match(line), _CODE.match(line), _STRING.search(line)
            host = where.group(1) if where else host
            code = int(exited.group(1)) if exited else code
            if ended:
                number = int(ended.group(2)) if ended.group(2) else None
                return RankFailure(
                    rank=None, host=host, code=None if number else code, signal=number, said=ended.group(1)
                )
        return RankFailure(rank=None, host=host, code=code) if host or code else None


def _defaults(spec: LaunchSpec, executable: str) -> Iterator[Argument]:
    yield Argument(words=(executable,), because="MPICH's own launcher")
    yield Argument(
        words=("-n", str(spec.ranks)),
        because=spec.in_words,
    )
    yield Argument(words=("-ppn", str(spec.ranks_per_node)), because="ranks in blocks: node 0 has the first")
    if spec.host_file is not None:
        yield Argument(words=("-f", spec.host_file), because="exactly these nodes, in this order")
    elif spec.host_list is not None:
        yield Argument(
            words=("-hosts", ",".join(expand_hostlist(spec.host_list))), because="exactly these nodes, in this order"
        )
    yield Argument(words=("-bind-to", "none"), because="the rank script binds")
    yield Argument(words=("-genvall",), because="pass the environment to every node")
    yield Argument(
        words=("-prepend-pattern", "[windlass %r] "),
        because="every piece of output begins with a label of its rank that no program prints itself",
    )


def _node_step(spec: NodeStepSpec, executable: str) -> Iterator[Argument]:
    yield Argument(words=(executable,), because="MPICH's own launcher")
    yield Argument(words=("-n", str(spec.nodes)), because="one task on each node")
    yield Argument(words=("-ppn", "1"), because="one task on each node")
    if spec.hosts and spec.host_file:
        yield Argument(words=("-f", spec.host_file), because="exactly these nodes, in this order")
    elif spec.hosts:
        yield Argument(words=("-hosts", ",".join(spec.hosts)), because="exactly these nodes, in this order")
    yield Argument(words=("-bind-to", "none"), because="binds nothing, and takes no core from the ranks")
    yield Argument(words=("-genvall",), because="pass the environment to every node")
