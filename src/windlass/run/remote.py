"""Probe a node of the allocation from outside of it (`salloc` on a login node): its topology and its used ports."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from windlass.backends.launchers import get_launcher
from windlass.backends.launchers.base import NodeStepSpec
from windlass.errors import MachineError, WindlassError
from windlass.model.site import LauncherSpec
from windlass.model.topology import Topology
from windlass.sites.topology.described import topology_of

_PROBE_S = 60.0


class NodeProbe(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the node."""

    topology: Topology
    taken_ports: tuple[int, ...]


def probe_node(host: str, launcher: str, site: LauncherSpec, environ: Mapping[str, str]) -> NodeProbe:
    """Run the probe on that node, which needs no windlass installation. Raises `MachineError` if it fails."""
    from windlass.agents.step import Question, ask_step  # imported here: most plans probe no other node

    question = Question(entry="windlass.node.probe.main:main", purpose="look", deadline_s=_PROBE_S)
    spec = NodeStepSpec(
        nodes=1,
        hosts=(host,),
        name="windlass-look",
        executable=site.executable or "",
        environment_names=("PATH", "LD_LIBRARY_PATH"),
    )
    try:
        answers = ask_step(get_launcher(launcher).node_step(spec), question, environ=environ)
        found = next((message for message in answers.messages if "hardware" in message), None)
        if found is not None:
            return NodeProbe(topology=topology_of(found["hardware"]), taken_ports=tuple(found["taken_ports"]))
        why = (answers.complaint.strip().splitlines() or ["no message"])[-1]
    except (WindlassError, msgspec.ValidationError) as error:
        why = str(error)
    raise MachineError(
        f"cannot read node {host} of this allocation: {why}",
        hint="run windlass inside the job (a batch script, or a shell on the node), or give the site with --site",
    )
