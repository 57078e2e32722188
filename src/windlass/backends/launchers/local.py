"""The local launcher: windlass starts one process per rank on this machine and reads their pipes.

No command precedes the rank script. The rank script binds. windlass is the parent and sees the exit of every rank.
"""

from __future__ import annotations

from windlass.backends.launchers.base import (
    PLACE_VARIABLE,
    Launcher,
    LaunchSpec,
    NodeStep,
    NodeStepSpec,
    RankVariables,
    parse_label,
)
from windlass.errors import UsageError
from windlass.model.origin import Argument
from windlass.model.site import LauncherSpec


class Local(Launcher):
    name = "local"
    executable = ""
    variables = RankVariables(
        rank=("WINDLASS_RANK",),
        local_rank=("WINDLASS_LOCAL_RANK",),
        node_rank=("WINDLASS_NODE_RANK",),
        world_size=("WINDLASS_WORLD_SIZE",),
    )
    output = "pipes"
    binds_lists = False
    names_failed_rank = True
    multi_node = False

    def arguments(self, spec: LaunchSpec, site: LauncherSpec) -> tuple[Argument, ...]:
        """No arguments before the program. More than one node raises a `UsageError`."""
        if spec.nodes != 1:
            raise UsageError(
                f"the local launcher starts ranks on this machine only, not on {spec.nodes} nodes",
                hint="run inside an allocation of the scheduler, or choose --launcher hydra with --hosts",
            )
        return ()

    def node_step(self, spec: NodeStepSpec) -> NodeStep:
        """windlass starts the only task itself."""
        return NodeStep(place=(PLACE_VARIABLE,), environment=((PLACE_VARIABLE, "0"),), follows_stdin=True)

    def parse_line(self, line: str) -> tuple[int | None, str]:
        """Parse lines with the labels that windlass writes into the node's log."""
        return parse_label(line)
