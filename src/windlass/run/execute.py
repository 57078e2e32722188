"""Run a plan: start, watch, and stop on request or when a rank fails. `run.verdict` judges how it ended."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec

from windlass.backends.launchers import get_launcher
from windlass.base.procs.children import adopt_orphans
from windlass.model.plan import Plan
from windlass.model.record import RankFailure
from windlass.node.agent.diagnostics import oom_kills
from windlass.node.sys.guard import guarded
from windlass.plan.render.batch_script import launch_script
from windlass.plan.render.rank_lines import LIVE_FOLDER
from windlass.plan.render.rank_script import rank_script
from windlass.plan.render.variables import JobFacts
from windlass.run.failure.ends import End
from windlass.run.folder import RunFolder
from windlass.run.jit_caches import claim_caches, finish_caches, leftover_caches, may_unpack, remove_caches
from windlass.run.jobs import (
    RUN_DIR_VARIABLE,
    LauncherJob,
    LocalJob,
    StartedJob,
    kill_step,
    write_container_files,
    write_host_file,
    write_ray_files,
)
from windlass.run.meeting import Meeting
from windlass.run.planning import Run
from windlass.run.rendezvous import is_this_host
from windlass.run.signals import Heard, listening

_DRAIN_S = 0.5


def prepare(run: Run, facts: JobFacts, hosts: tuple[str, ...]) -> JobFacts:
    """Write the scripts of a run to its folder. Returns the facts with those that only this process can find out."""
    plan, folder = run.plan, run.folder
    if get_launcher(plan.launcher).output == "files" and (live := run.view.live_ranks(plan.world_size)):
        folder.part(LIVE_FOLDER).mkdir(mode=0o700, exist_ok=True)
        facts = msgspec.structs.replace(facts, live=live)
    facts = msgspec.structs.replace(
        facts,
        kept_caches=may_unpack(plan, folder, run.environ, run.view),
        leftovers=leftover_caches(plan, facts, run.environ),
    )
    folder.write("rank.sh", rank_script(plan, facts), mode=0o700)
    folder.write("launch.sh", launch_script(plan, str(folder.path)), mode=0o700)
    write_host_file(plan, folder, hosts)
    write_container_files(plan, folder)
    if plan.ray is not None:
        write_ray_files(folder)
    if run.plan.container is not None:
        from windlass.run.host_libs import write_injection  # imported here: runs without a container do not need it

        write_injection(run, facts)
    return facts


class Sidecar(Protocol):
    """A process that runs next to the ranks during a run. A higher layer creates it."""

    def start(self, stopping: Callable[[], bool]) -> bool:
        """Start it on all nodes and return True, or return False if `stopping` became true first.

        On error, cleans up and raises.
        """
        ...

    def poll(self) -> None:
        """Called repeatedly while the ranks run."""
        ...

    def stop(self) -> None:
        """Stop it and clean up on all nodes. Never raises."""
        ...


class Watch(Protocol):
    """Checks the ranks while they run. A higher layer creates it."""

    def look(self, job: StartedJob) -> str | None:
        """Return why the ranks must be ended, or None. May send signals to the job."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class RanksEnd:
    """How the ranks of one start ended, as windlass and the launcher saw it. Not yet judged."""

    hosts: tuple[str, ...]
    code: int
    """Exit code of the launcher or of the first failed rank, in the form that a shell reports."""
    failing: bool = False
    """A rank or the launcher failed, or windlass had to end the ranks."""
    launcher: RankFailure | None = None
    """The first failure that the launcher reports."""
    stopped_by: signal.Signals | None = None
    ends: tuple[End, ...] = ()
    """Ends of ranks that windlass itself started."""
    oom: frozenset[str] = frozenset()
    """This host, if the kernel killed a process for memory during the run."""
    started: float
    ended: float
    remarks: tuple[str, ...] = ()

    @property
    def stopped(self) -> bool:
        return self.stopped_by is not None

    @property
    def exit_code(self) -> int:
        return self.code if self.stopped_by is None else 128 + self.stopped_by


class _Looks:
    """The watch of a higher layer, combined with the check whether the ranks have met."""

    def __init__(self, meeting: Meeting | None, watch: Watch | None) -> None:
        self._meeting = meeting
        self._watch = watch

    def look(self, job: StartedJob) -> str | None:
        if self._meeting is not None:
            self._meeting.look(job)
        return self._watch.look(job) if self._watch is not None else None


def execute(
    run: Run,
    facts: JobFacts,
    hosts: tuple[str, ...],
    sidecar: Sidecar | None = None,
    watch: Watch | None = None,
) -> RanksEnd:
    """Start the ranks, wait until the last one has ended, and return how they ended.

    The caches stay on the nodes: the caller removes them after the record is written, or keeps them for the next start.
    """
    started, killed_before = time.time(), oom_kills()
    plan, folder, view, environ = run.plan, run.folder, run.view, run.environ
    guard: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    job: StartedJob
    if plan.scheduler == "none":  # otherwise the scheduler ends the processes of a killed windlass
        guard = guarded(f"{RUN_DIR_VARIABLE}={folder.path}", lambda: clear_up(plan, folder, facts, environ))
    if plan.launcher == "local":
        job = LocalJob(plan, folder, view, _this_host())
    else:
        job = LauncherJob(plan, folder, view)
    on_first = plan.launcher == "local" or is_this_host(hosts[0], environ)
    meeting = Meeting(plan, folder, facts) if on_first else None
    with guard, listening() as heard:  # until cleanup is complete: a second Ctrl-C must not interrupt it halfway
        claim_caches(plan, folder, facts, environ)
        _place_libraries(run, facts)
        stopped_by = _run_ranks(run, job, heard, sidecar, _Looks(meeting, watch))
    failed = job.failing and stopped_by is None
    met = failed or job.code or stopped_by or meeting is None or not meeting.never()
    return RanksEnd(
        hosts=hosts,
        code=job.code if 0 <= job.code < 256 else 128 - job.code if job.code < 0 else 1,
        failing=failed,
        launcher=job.failure() if failed else None,
        stopped_by=stopped_by,
        ends=tuple(job.ends),
        oom=frozenset(hosts[:1] or (_this_host(),)) if on_first and oom_kills() > killed_before else frozenset(),
        started=started,
        ended=time.time(),
        remarks=() if met else (_never_met(plan, facts),),
    )


def _run_ranks(
    run: Run, job: StartedJob, heard: Heard, sidecar: Sidecar | None, looks: _Looks
) -> signal.Signals | None:
    """Start the sidecar and the ranks, and end both. Returns the signal that stopped the run, or None."""
    try:
        with adopt_orphans():
            try:
                if sidecar is not None and not sidecar.start(lambda: bool(heard.stops)):
                    return heard.stopped_by
                kill = partial(kill_step, run.plan, run.folder, run.environ)
                return drive(job, heard, run.environ, kill, sidecar, looks)
            finally:
                job.kill()
                if sidecar is not None:
                    sidecar.stop()
    finally:
        job.close()
        run.folder.forget_secrets()


def _this_host() -> str:
    return socket.gethostname().split(".", 1)[0]


def _place_libraries(run: Run, facts: JobFacts) -> None:
    if run.plan.container is None:
        return
    from windlass.run.host_libs import place_host_libraries

    try:
        place_host_libraries(run)
    except BaseException:
        finish_caches(run.plan, run.folder, facts, run.environ, run.view)
        run.folder.forget_secrets()
        raise


def _never_met(plan: Plan, facts: JobFacts) -> str:
    return (
        f"the {plan.world_size} ranks never met: nothing listened at {facts.master_addr}:{facts.master_port}, and no "
        "rank on the first node opened a connection. If they were to train as one job, each has trained alone (does "
        "the script call init_process_group, windlass.init or what its framework has for several processes?)"
    )


def clear_up(plan: Plan, folder: RunFolder, facts: JobFacts, environ: Mapping[str, str]) -> None:
    """Clean up after a windlass process that was killed with SIGKILL."""
    folder.forget_secrets()
    folder.forget_key()
    remove_caches(plan, facts, environ)


def drive(
    job: StartedJob,
    heard: Heard,
    environ: Mapping[str, str],
    kill_everywhere: Callable[[], None],
    sidecar: Sidecar | None = None,
    watch: Watch | None = None,
) -> signal.Signals | None:
    """Read and show output, and stop the ranks on request.

    Returns when the ranks have ended, or when they were killed and did not end in time. The result is the signal that
    stopped the run, or None.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(heard.wakeup, selectors.EVENT_READ)
        job.start(environ)
        for lines in job.streams:
            selector.register(lines.descriptor, selectors.EVENT_READ, lines)
        return _watch(job, heard, selector, kill_everywhere, sidecar, watch)


def _watch(
    job: StartedJob,
    heard: Heard,
    selector: selectors.BaseSelector,
    kill_everywhere: Callable[[], None],
    sidecar: Sidecar | None,
    watch: Watch | None,
) -> signal.Signals | None:
    asked: float | None = None
    killed: float | None = None
    stopping = False
    while not job.done:
        _pump(job, selector, heard.wakeup, job.tick_s)
        job.poll()
        if sidecar is not None:
            sidecar.poll()
        if watch is not None and not job.done and watch.look(job) is not None and not job.failing:
            job.failing = True
            job.ask_to_stop(signal.SIGTERM)
        now = time.monotonic()
        while heard.for_ranks:
            job.pass_on(heard.for_ranks.pop(0))
        if heard.stops and not stopping and not job.done:
            job.asked = True
            _ask_to_stop(job, heard)
            stopping, asked = True, now
        if stopping and heard.impatient and killed is None:
            asked = now - job.plan.grace_s
        if job.failing and asked is None:
            asked = now
        if asked is not None and killed is None and now - asked >= job.plan.grace_s and not job.done:
            kill_everywhere()
            job.kill()
            killed = now
        if killed is not None and now - killed > 2 * job.plan.grace_s + 10:
            job.view.note("windlass: the launcher was killed but does not end; windlass no longer waits for it")
            break
    end = time.monotonic() + _DRAIN_S
    while len(selector.get_map()) > 1 and time.monotonic() < end:
        _pump(job, selector, heard.wakeup, 0.02)
    while job.tail() and time.monotonic() < end:
        time.sleep(0.01)
    return heard.stopped_by if stopping or heard.time_up else None


def _ask_to_stop(job: StartedJob, heard: Heard) -> None:
    if heard.time_up:
        job.view.note("windlass: the time of this allocation is up: asking the ranks to save and leave")
        job.ask_to_stop(signal.SIGTERM)
    else:
        if not job.view.component:  # the job has said it for all components
            job.view.note(f"windlass: {heard.stops[0].name}, stopping all ranks (again to kill them)")
        job.ask_to_stop(heard.stops[0])


def _pump(job: StartedJob, selector: selectors.BaseSelector, wakeup: int, timeout_s: float) -> None:
    """Wait for output, a signal or the tick, and forward what arrived."""
    for key, _ in selector.select(timeout_s):
        if key.fd == wakeup:
            with contextlib.suppress(BlockingIOError):
                os.read(wakeup, 4096)
            continue
        if not key.data.read():
            selector.unregister(key.fd)
    job.tail()
