"""Looking at a node of the allocation from outside of it (`salloc` on a login node): its topology and a free port.

`python -m windlass.run.remote` runs there as a small step and prints short lines of JSON; `probe_node` starts it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import msgspec

from windlass.backends.launchers import get_launcher
from windlass.backends.launchers.base import NodeStepSpec
from windlass.base.procs.own import own_argv
from windlass.errors import CommandError, MachineError
from windlass.model.site import LauncherSpec
from windlass.model.topology import Topology
from windlass.node.sys.parts import join_parts, part_lines
from windlass.node.sys.reading import read_text
from windlass.run.node_answers import json_lines
from windlass.run.node_step import run_node_step
from windlass.sites.topology.probe import probe_topology

_LOOK_TIMEOUT_S = 60.0


class NodeProbe(msgspec.Struct, frozen=True, kw_only=True):
    """What the node said."""

    topology: Topology
    taken_ports: tuple[int, ...]


def probe_node(host: str, launcher: str, site: LauncherSpec, environ: Mapping[str, str]) -> NodeProbe:
    """Run the look on that node. Raises `MachineError` where it cannot."""
    spec = NodeStepSpec(
        nodes=1,
        hosts=(host,),
        name="windlass-look",
        executable=site.executable or "",
        environment_names=("PATH", "LD_LIBRARY_PATH", "PYTHONPATH"),
    )
    program = own_argv("windlass.run.remote")
    try:
        step = get_launcher(launcher).node_step(spec)
        done = run_node_step(step, program, environ=environ, timeout_s=_LOOK_TIMEOUT_S)
        return msgspec.convert(join_parts(tuple(json_lines(done.stdout))), NodeProbe)
    except (CommandError, ValueError, msgspec.ValidationError) as error:
        raise MachineError(
            f"cannot look at node {host} of this allocation: {error}",
            hint="run windlass inside the job (a batch script, or a shell on the node), or name the site with --site",
        ) from error


def taken_ports() -> tuple[int, ...]:
    """Ports on which somebody listens on this machine."""
    listening = "0A"
    ports: set[int] = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = read_text(f"/proc/net/{name}", 1 << 28).splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if len(fields) > 3 and fields[3] == listening:
                ports.add(int(fields[1].rsplit(":", 1)[1], 16))
    return tuple(sorted(ports))


if __name__ == "__main__":
    seen = NodeProbe(topology=probe_topology(allowed_by="cgroup"), taken_ports=taken_ports())
    sys.stdout.write("\n".join(part_lines(msgspec.to_builtins(seen))) + "\n")
