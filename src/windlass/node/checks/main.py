"""All checks of one node, side by side, and a message with what they found.

A check that hangs (a dead file system, a driver that does not answer) is a finding, and delays nobody: each has a
thread of its own, and the process leaves without those that are still waiting.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from windlass.node.checks.devices import check_devices
from windlass.node.checks.finding import Finding, fail, warn
from windlass.node.checks.interfaces import check_named, check_nics, has_rdma, states
from windlass.node.checks.leftovers import check_leftovers, processes_of
from windlass.node.checks.limits import judge_limits, read_limits
from windlass.node.checks.meeting import check_meeting
from windlass.node.checks.space import check_home, check_home_mount, check_local_space, check_tmpdir
from windlass.node.sys.messages import node_writer, place_of

Spec = dict[str, Any]
"""What the login side tells: see `windlass.diagnose.doctor.nodes.node_spec`."""
Check = Callable[[], Sequence[Finding]]


def node_checks(spec: Spec, node: int) -> list[tuple[str, Check]]:
    """The checks of a node, with the name under which one that hangs is reported."""
    interfaces = states()
    meeting = None if spec.get("alone") else spec.get("meeting")
    checks: list[tuple[str, Check]] = [
        ("devices", lambda: check_devices(spec.get("devices") or {})),
        ("network-interfaces", lambda: [check_nics(spec["nics"], interfaces)]),
        ("interface-variables", lambda: [check_named(spec["interfaces"], interfaces, spec["nodes"] == 1)]),
        ("local-space", lambda: [check_local_space(spec["folders"])]),
        ("tmpdir", lambda: [check_tmpdir(dict(os.environ))]),
        ("ulimits", lambda: [judge_limits(read_limits(), has_rdma())]),
        ("leftover-processes", lambda: [check_leftovers(processes_of(os.getuid()), spec["job"])]),
    ]
    if node == 0:
        checks.append(("home", lambda: [check_home(dict(os.environ), os.getuid())]))
    else:
        checks.append(("home", lambda: [check_home_mount(dict(os.environ))]))
    if meeting:
        there, port, word = meeting["address"], meeting["port"], meeting["word"]
        checks.append(("rendezvous", lambda: check_meeting(node, spec["nodes"], there, port, word, meeting["seconds"])))
    return checks


def run_checks(checks: Sequence[tuple[str, Check]], seconds: float) -> list[Finding]:
    """All of them at once; one that raises or does not end in time is a finding itself."""
    found: dict[str, list[Finding]] = {}

    def run(name: str, check: Check) -> None:
        try:
            found[name] = list(check())
        except Exception as error:  # a check that breaks must not hide the others
            found[name] = [warn(name, "could not be checked: %s: %s" % (type(error).__name__, error), "")]

    threads = [threading.Thread(target=run, args=item, daemon=True) for item in checks]
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    for name, _ in checks:
        if name not in found:
            seen = "no answer within %g s" % seconds
            found[name] = [fail(name, seen, "something hangs on this node: use another, and tell the site's support")]
    return [item for name, _ in checks for item in found[name]]


def main(settings: Spec) -> int:
    out = node_writer(settings)
    node = place_of(settings["place"]) + settings["first"]
    out.send(findings=run_checks(node_checks(settings, node), settings["seconds"]), done=True)
    os._exit(0)  # not by way of threads that still wait for a dead file system
