"""A rank of the examination, started as the plan starts any: says what it got, and times a few collectives.

Runs with the user's interpreter, inside the container where there is one. The first rank of a
node also tells what is the same for all of its ranks.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import socket
import sys
import time
from typing import Any

from windlass.node.checks import collectives
from windlass.node.checks.environment import driver_version, place_facts, python_facts, torch_facts
from windlass.node.checks.limits import read_limits
from windlass.node.checks.plugins import plugin_facts
from windlass.node.sys.messages import MessageWriter


def facts(spec: dict[str, Any]) -> dict[str, Any]:
    """What this rank knows about itself without torch."""
    environ = dict(os.environ)
    found: dict[str, Any] = {
        "rank": int(environ.get("RANK", "0")),
        "local_rank": int(environ.get("LOCAL_RANK", "0")),
        "host": socket.gethostname(),
        "cpus": sorted(os.sched_getaffinity(0)),
    }
    if found["local_rank"] == 0:
        torch = torch_facts()
        found["python"] = python_facts()
        found["torch"] = torch
        found["places"] = [place_facts(path) for path in dict.fromkeys((sys.prefix, torch.get("folder", sys.prefix)))]
        found["limits"] = read_limits()
        found["driver"] = driver_version()
        found["network"] = plugin_facts(environ)
    return found


def main(spec: dict[str, Any]) -> int:
    faulthandler.dump_traceback_later(spec["seconds"], exit=True)  # a rank that hangs must not hold up the doctor
    found = facts(spec)
    if spec["level"] != "quick":
        began = time.perf_counter()
        try:
            torch = importlib.import_module("torch")  # the user's own, where there is one
        except Exception as error:  # a broken installation raises anything
            found["import_error"] = "%s: %s" % (type(error).__name__, error)
        else:
            found["import_s"] = round(time.perf_counter() - began, 3)
            found.update(collectives.measure(torch, found["rank"], found["local_rank"], spec))
    sys.stdout.flush()
    MessageWriter(found["rank"]).send(**found)
    faulthandler.cancel_dump_traceback_later()
    os._exit(0)  # leaving by way of a collective library may hang, and has nothing more to say
