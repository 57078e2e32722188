"""What a start settles before any rank runs: hosts, address and port; and what it says about itself."""

from __future__ import annotations

import os
import socket

from windlass.model.plan import Plan
from windlass.notation.hostlist import expand_hostlist
from windlass.plan.render.rank_script import JobFacts
from windlass.plan.show import headline
from windlass.run.context import Surroundings
from windlass.run.folder import RunFolder
from windlass.run.output import View
from windlass.run.rendezvous import is_free, master_address, master_port


def hosts_of(plan: Plan) -> tuple[str, ...]:
    return expand_hostlist(plan.hosts) if plan.hosts else (socket.gethostname().split(".", 1)[0],)


def announce(plan: Plan, folder: RunFolder, view: View) -> None:
    for remark in plan.remarks:
        if remark.level == "warning":
            view.note(f"windlass: warning: {remark.text}" + (f" ({remark.hint})" if remark.hint else ""))
    view.note(f"windlass: {headline(plan)}; run folder {folder.path}")


def settle(
    plan: Plan,
    folder: RunFolder,
    hosts: tuple[str, ...],
    around: Surroundings,
    environ: dict[str, str],
    start_id: str,
) -> JobFacts:
    """Address and port, checked before any rank starts: on this node, or as the first node told us. Each start has a
    port of its own: the last one's may still be held."""
    free = is_free if around.on_node else lambda port: port not in around.taken_ports
    return JobFacts(
        run_dir=str(folder.path),
        run_id=folder.run_id,
        uid=os.getuid(),
        master_addr=master_address(plan, hosts, environ),
        master_port=master_port(plan, plan.job_id, start_id, free),
        job_id=plan.job_id or folder.run_id,
    )
