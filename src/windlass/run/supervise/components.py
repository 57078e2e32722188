"""Drive the components of a job file: start them in order of need, test readiness, end them in reverse order.

Each component is a run in a folder below `components`, driven by a child process with the same code as a run of its
own. So its output, restarts, verdict and record are those of a run.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from windlass.errors import WindlassError
from windlass.model.jsontext import to_json
from windlass.model.record import RankFailure, RunRecord
from windlass.run.execute import RanksEnd
from windlass.run.failure.ends import any_failed
from windlass.run.failure.verdict import read_verdict
from windlass.run.planning import Run
from windlass.run.rendezvous import plan_hosts
from windlass.run.signals import Heard, fork_run, listening
from windlass.run.supervise.job_end import SETTLE_S, judge_job
from windlass.run.supervise.parts import STATE_FILE, Part, PartState, failed_parts, make_parts, named, needs_of
from windlass.run.supervise.ready import ReadyTest
from windlass.run.verdict import save_record

_TICK_S = 0.05
_KILL_AFTER_S = 20.0


def run_components(run: Run, start: Callable[[Run], RunRecord]) -> RunRecord:
    """Run all components of a job file until the job is done. Returns the record of the job.

    `start` drives the run of one component.
    """
    job = _Job(run=run, parts=make_parts(run), start=start, began=time.time())
    run.announce()
    with listening() as heard:
        job.save()
        while not job.over():
            job.step(heard)
            _wait(heard)
        job.save()
        return judge_job(run, job.parts, job.first, job.began, heard.stopped_by)


def _wait(heard: Heard) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(heard.wakeup, selectors.EVENT_READ)
        if selector.select(_TICK_S):
            with contextlib.suppress(BlockingIOError):
                os.read(heard.wakeup, 4096)


@dataclass(kw_only=True, slots=True)
class _Job:
    """The components of one job, and why it ends."""

    run: Run
    parts: list[Part]
    start: Callable[[Run], RunRecord]
    began: float
    ending: float | None = None
    """Since when no component is started any more and the running ones are asked to end."""
    first: Part | None = None
    """The first component whose failure ends the job."""
    insisted: bool = False
    saved: list[PartState] = field(default_factory=list)

    def over(self) -> bool:
        running = any(part.pid is not None for part in self.parts)
        return not running and (self.ending is not None or all(part.ended for part in self.parts))

    def step(self, heard: Heard) -> None:
        """Start, test, reap and end components, as far as that is possible now."""
        self._reap()
        if heard.stops and self.ending is None:
            self.run.view.note(f"windlass: {heard.stops[0].name}, ending the components (again to kill them)")
            self.ending = time.time()
        if self.ending is None:
            self._start_and_test()
            self._look_for_the_end()
        if self.ending is not None:
            self._end_in_order(heard)
        self.save()

    def save(self) -> None:
        """Write the state file if a state has changed. A full disk does not end the job."""
        now = [part.state for part in self.parts]
        if now != self.saved:
            with contextlib.suppress(WindlassError):
                self.run.folder.write_bytes(STATE_FILE, to_json(now))
            self.saved = now

    def _start_and_test(self) -> None:
        for part in self.parts:
            needs = named(self.parts, part.component.needs)
            if part.state.state == "waiting" and all(need.state.state in {"ready", "done"} for need in needs):
                self._start(part)
            if part.state.state == "starting" and part.test is not None:
                self._test(part, part.test)

    def _start(self, part: Part) -> None:
        now = time.time()
        part.pid = fork_run(lambda: _drive(part.run, self.start))
        ready = part.component.ready
        if ready is None:
            part.become("ready", started=now)
        else:
            part.become("starting", started=now)

    def _test(self, part: Part, test: ReadyTest) -> None:
        now = time.time()
        if now < part.next_test:
            return
        if test.passes():
            part.become("ready", ready=time.time())
            took = time.time() - (part.state.started or now)
            self._note(f"{part.name} is ready after {took:.1f} s")
        elif now - (part.state.started or now) > test.ready.within_s:
            part.become("failed", why=f"was not ready within {test.ready.within_s:g} s: {test.text()}", ended=now)
        part.next_test = time.time() + _TICK_S

    def _note(self, text: str) -> None:
        if not self.run.quiet:
            self.run.view.note(f"windlass: {text}")

    def _reap(self) -> None:
        for part in self.parts:
            if part.pid is None:
                continue
            pid, status = os.waitpid(part.pid, os.WNOHANG)
            if pid:
                part.pid = None
                self._judge_part(part, os.waitstatus_to_exitcode(status))

    def _judge_part(self, part: Part, code: int) -> None:
        """Set the final state of a component from its record."""
        now = time.time()
        with contextlib.suppress(WindlassError):
            part.record = part.run.folder.result()
        if part.state.state == "failed":  # it was not ready in time
            return
        if part.record is not None and part.record.outcome == "ok":
            if part.component.end == "service" and part.asked is None:
                part.become("failed", why="ended although it is a service", ended=now)
            else:
                part.become("done", ended=now)
                if part.component.ready is not None and part.component.ready.finished:
                    part.become("done", ready=now, ended=now)
        elif part.asked is not None and (part.record is None or part.record.outcome == "stopped"):
            part.become("stopped", ended=now)
        else:
            verdict = read_verdict(part.run.folder.path)
            why = verdict.cause.line() if verdict is not None else f"its windlass process ended with code {code}"
            if verdict is None and part.record is not None and part.record.failure is not None:
                why = part.record.failure.said
            part.become("failed", why=why, ended=now)

    def _look_for_the_end(self) -> None:
        """Decide whether the job ends now: a failure, the end of a component that decides, or all work done."""
        for part in self.parts:
            needs = named(self.parts, part.component.needs)
            lost = [one.name for one in needs if one.state.state == "failed" and one.component.end == "ignore"]
            if part.state.state == "waiting" and lost:
                part.become("failed", why=f"could not start: it needs {lost[0]}", ended=time.time())
        failed = failed_parts(self.parts)
        if failed:
            self.first = failed[0]
            self.run.view.note(f"windlass: {failed[0].name} failed: {failed[0].state.why}; ending the other components")
        decided = any(part.component.end == "job" and part.state.state == "done" for part in self.parts)
        counted = [part for part in self.parts if part.component.end in {"wait", "job"}]
        if failed or decided or all(part.ended for part in counted):
            self.ending = time.time()

    def _end_in_order(self, heard: Heard) -> None:
        """Ask each component to end as soon as no running component needs it."""
        now = time.time()
        if heard.impatient and not self.insisted:
            self.insisted = True
            for part in self._running():
                self._signal(part, signal.SIGTERM)
                part.asked = now
                self._signal(part, signal.SIGTERM)
        sig = heard.stops[0] if heard.stops else signal.SIGTERM
        for part in self._running():
            needed = any(part.name in other.component.needs for other in self._running())
            if part.asked is None and not needed and not self._settling(part, now):
                part.asked = now
                self._signal(part, sig)
            elif part.asked is not None and now - part.asked > self.run.plan.grace_s * 3 + _KILL_AFTER_S:
                self._signal(part, signal.SIGKILL)

    def _settling(self, part: Part, now: float) -> bool:
        """Return whether this component may be about to fail by itself, which would explain the first failure."""
        if self.first is None or self.ending is None or part.name not in needs_of(self.parts, self.first):
            return False
        sick = any_failed(part.run.folder.path)
        return now - self.ending < (self.run.plan.grace_s + SETTLE_S if sick else SETTLE_S)

    def _running(self) -> list[Part]:
        return [part for part in self.parts if part.pid is not None]

    def _signal(self, part: Part, sig: signal.Signals) -> None:
        if part.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(part.pid, sig)


def _drive(run: Run, start: Callable[[Run], RunRecord]) -> int:
    """The main function of a component's process. Returns its exit code."""
    began = time.time()
    try:
        return start(run).exit_code
    except WindlassError as error:
        run.view.note(f"windlass: error: {error.message}" + (f"\n  hint: {error.hint}" if error.hint else ""))
        end = RanksEnd(hosts=plan_hosts(run.plan), code=error.exit_code, started=began, ended=time.time())
        save_record(run, end, failure=RankFailure(rank=None, said=error.message))
        return error.exit_code
