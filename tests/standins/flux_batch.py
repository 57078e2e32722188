"""Runs one batch job of the Flux stand-in: an instance of its own, with its script as the initial program.

Started by `flux batch` in a session of its own; ends with the job, at the latest after `tasks.LONGEST_RUN_S`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import flux_sched
import flux_state as flux
from flux_launch import choose_hosts, instance_environment
from tasks import LONGEST_RUN_S, Task, enter, kill_group

_GRACE_S = float(os.environ.get("STANDIN_GRACE", "2"))


def main(number: int, output: str, requires: str, arguments: list[str]) -> None:
    (flux.folder() / "pids" / f"batch-{number}").write_text(str(os.getpid()))
    record = flux.read(number)
    assert record is not None
    job = record["job"]
    candidates = choose_hosts(requires or None) or []
    if len(candidates) < job["nnodes"]:
        note = f"unsatisfiable request: need {job['nnodes']} exclusive node(s), only {len(candidates)} eligible"
        flux.ended(number, 1, {"type": "alloc", "note": note})
        return
    hosts = flux_sched.allocate(number, candidates, job["nnodes"], None)
    if hosts is None:
        flux.ended(number, 1, {"type": "cancel", "note": ""})
        return
    script = flux.folder() / "scripts" / str(number)
    env = (
        dict(os.environ)
        | instance_environment(f"{flux.f58(number)}-local-0")
        | {
            "FLUX_ENCLOSING_ID": flux.f58(number),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(str(n) for n in range(flux.gpus())) or "-1",
            "STANDIN_INSTANCE_NODES": " ".join(hosts),
        }
    )
    flux.running(number, hosts)
    with Path(output).open("wb") as log:
        child = subprocess.Popen(
            [str(script), *arguments],
            env=env,
            cwd=job["cwd"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=enter(Task(0, 0, 0, hosts[0], env)),  # noqa: PLW1509 (no thread runs)
        )
        exception = wait(number, child, job["duration"])
    code = child.returncode
    flux.ended(number, 128 - code if code < 0 else code, exception)


def wait(number: int, child: subprocess.Popen[bytes], limit: float) -> dict[str, str] | None:
    start = time.monotonic()
    exception: dict[str, str] | None = None
    kill_at = 0.0
    while child.poll() is None:
        now = time.monotonic()
        cancelled = (flux.folder() / "cancelled" / str(number)).exists()
        # A test that cannot wait for the limit writes the file.
        over = (bool(limit) and now > start + limit) or (flux.folder() / "expired" / str(number)).exists()
        if not kill_at and (cancelled or over or now > start + LONGEST_RUN_S):
            exception = (
                {"type": "cancel", "note": ""}
                if cancelled
                else {"type": "timeout", "note": "resource allocation expired"}
            )
            # The script itself hears SIGALRM at a time limit, else SIGTERM, and SIGHUP from its broker; its steps are
            # ended by the instance, not by a signal to `flux run`.
            (flux.folder() / "ending" / str(number)).write_text("cancel" if cancelled else "timeout")
            for sig in (signal.SIGTERM if cancelled else signal.SIGALRM, signal.SIGHUP):
                child.send_signal(sig)
            kill_at = now + _GRACE_S
        elif kill_at and now > kill_at:
            kill_group(child.pid, signal.SIGKILL)
        time.sleep(0.05)
    kill_group(child.pid, signal.SIGKILL)
    return exception


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
