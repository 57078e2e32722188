"""Run all checks of one node in parallel and send a message with their findings.

A check that hangs (a dead file system, a driver that does not answer) becomes a finding and does not delay the others.
Each check has a separate thread, and the process exits without waiting for hanging threads.

This module also finds processes of this user that an earlier job left on the node. They hold devices, ports and memory.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from windlass.node.checks.finding import Finding, fail, not_applicable, ok, warn
from windlass.node.checks.machine import JOB_VARIABLES, check_busy, check_devices, check_hardware, check_memory
from windlass.node.checks.meeting import check_meeting, check_named, check_nics, has_rdma, states
from windlass.node.checks.space import (
    check_home,
    check_local_space,
    check_locks,
    check_tmpdir,
    judge_limits,
    read_limits,
)
from windlass.node.sys.identity import own_environ
from windlass.node.sys.messages import node_writer, place_of
from windlass.node.sys.text import listed

_RANK = ("RANK", "WORLD_SIZE", "MASTER_ADDR")

Process = tuple[int, str, dict[str, str]]
"""Number, name, environment."""


def processes_of(uid: int, proc: str = "/proc") -> list[Process]:
    """Return the processes of this user whose environment we can read."""
    found = []
    for name in os.listdir(proc):
        if not name.isdigit():
            continue
        try:
            if os.stat("%s/%s" % (proc, name)).st_uid != uid:
                continue
            with open("%s/%s/environ" % (proc, name), "rb") as file:
                pairs = (entry.partition(b"=") for entry in file.read().split(b"\0"))
                environ = {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}
            with open("%s/%s/comm" % (proc, name), encoding="utf-8", errors="replace") as file:
                comm = file.read().strip()
        except OSError:
            continue
        found.append((int(name), comm, environ))
    return found


def check_leftovers(processes: Sequence[Process], job: str) -> Finding:
    """Find ranks of another job, or of no job, on a node that now belongs to `job`."""
    if not job:
        return not_applicable("leftover-processes", "not inside a job: these processes may be intended")
    left: dict[int, str] = {}
    for pid, comm, environ in processes:
        theirs = next((environ[name] for name in JOB_VARIABLES if environ.get(name)), "")
        if all(name in environ for name in _RANK) and theirs != job:
            left[pid] = "%s (process %d%s)" % (comm, pid, ", job %s" % theirs if theirs else "")
    if left:
        remedy = "end them: kill %s" % " ".join(map(str, left))
        return warn("leftover-processes", "ranks of an earlier run: %s" % listed(list(left.values())), remedy[:300])
    return ok("leftover-processes", "none of an earlier run")


Spec = dict[str, Any]
"""The settings from the login side. See `windlass.diagnose.doctor.nodes.node_spec`."""
Check = Callable[[], Sequence[Finding]]


def node_checks(spec: Spec, node: int) -> list[tuple[str, Check]]:
    """Return the checks of a node, each with the name under which a hang is reported."""
    interfaces, environ = states(), dict(own_environ())
    meeting = None if spec.get("alone") else spec.get("meeting")
    checks: list[tuple[str, Check]] = [
        ("devices", lambda: check_devices(spec.get("devices") or {})),
        ("network-interfaces", lambda: [check_nics(spec["nics"], interfaces)]),
        ("interface-variables", lambda: [check_named(spec["interfaces"], interfaces, spec["nodes"] == 1)]),
        ("local-space", lambda: [check_local_space(spec["folders"])]),
        ("tmpdir", lambda: [check_tmpdir(environ)]),
        ("ulimits", lambda: [judge_limits(read_limits(), has_rdma())]),
        ("leftover-processes", lambda: [check_leftovers(processes_of(os.getuid()), spec["job"])]),
        ("busy-node", lambda: [check_busy(spec["job"])]),
        ("hardware", lambda: [check_hardware(spec["nics"])]),
        ("memory", lambda: [check_memory(spec["job"])]),
        ("home", lambda: [check_home(environ, os.getuid(), node == 0)]),
        ("extension-lock", lambda: [check_locks(environ, time.time())]),
    ]
    if meeting:
        there, port, word = meeting["address"], meeting["port"], meeting["word"]
        checks.append(("rendezvous", lambda: check_meeting(node, spec["nodes"], there, port, word, meeting["seconds"])))
    return checks


def run_checks(checks: Sequence[tuple[str, Check]], seconds: float) -> list[Finding]:
    """Run all checks at once. A check that raises or does not end in time becomes a finding."""
    found: dict[str, list[Finding]] = {}

    def run(name: str, check: Check) -> None:
        try:
            found[name] = list(check())
        except Exception as error:  # a failing check must not hide the others
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
            found[name] = [
                fail(name, seen, "a process hangs on this node: use another node, and report it to the site's support")
            ]
    return [item for name, _ in checks for item in found[name]]


def main(settings: Spec) -> int:
    out = node_writer(settings)
    node = place_of(settings["place"]) + settings["first"]
    out.send(findings=run_checks(node_checks(settings, node), settings["seconds"]), done=True)
    os._exit(0)  # do not join threads that still wait for a dead file system
