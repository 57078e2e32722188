"""End a run from outside: the windlass that drives it asks the ranks to save and leave, or its job is cancelled."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping

from windlass.backends.schedulers import get_scheduler
from windlass.base.procs.command import run_command
from windlass.base.settings import read_settings
from windlass.errors import MachineError, UsageError
from windlass.run.folder import RunFolder, read_plan
from windlass.run.scheduler_commands import scheduler_environ
from windlass.run.supervise.attempts import read_owner
from windlass.run.supervise.runs import state_of
from windlass.run.trust import require_trust

_STOP_S = 60.0
_CANCEL_S = 30.0


def stop_run(folder: RunFolder, environ: Mapping[str, str]) -> str | None:
    """Stop a run: it has ended on return, or its job is cancelled, whose id is returned then. Raises `UsageError` where
    it does not run, `MachineError` where it does not end in time, `NotTrustedError` for a folder that is not ours."""
    require_trust(folder.path, read_settings(environ).state_dir)
    owner = read_owner(folder)
    if owner is not None and owner.pid != os.getpid() and owner.alive():
        os.kill(owner.pid, signal.SIGTERM)
        end = time.monotonic() + _STOP_S
        while owner.alive():
            if time.monotonic() > end:
                raise MachineError(f"process {owner.pid} still runs after {_STOP_S:g} s", hint="say it again to insist")
            time.sleep(0.05)
        return None
    state = state_of(folder, environ)
    if state.state not in {"running", "waiting"} or state.job_id is None:
        raise UsageError(f"{folder.path} does not run: {state.state}", hint="`windlass runs list` shows which do")
    scheduler = get_scheduler(read_plan(folder.path).scheduler)
    found = scheduler_environ(scheduler, environ)
    run_command(scheduler.cancel_argv(state.job_id), timeout_s=_CANCEL_S, env=found)
    return state.job_id
