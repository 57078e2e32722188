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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from windlass.base.notation.hostlist import fold_hostlist
from windlass.errors import UsageError, WindlassError
from windlass.model.jsontext import from_json, to_json
from windlass.model.plan import Plan
from windlass.model.record import RECORD_VERSION, RankFailure, RunRecord
from windlass.model.request import Component
from windlass.node.sys.reading import read_bytes
from windlass.plan.components import filled, part_contexts, place, service_rule
from windlass.plan.inputs import Secrets
from windlass.run.failure.decide import Decision
from windlass.run.failure.ends import any_failed
from windlass.run.failure.root_cause import Cause
from windlass.run.failure.verdict import VERDICT_FILE, Times, Verdict, attempt_folders, read_verdict
from windlass.run.folder import RunFolder, component_folder, restart
from windlass.run.planning import Run
from windlass.run.rendezvous import LOOPBACK, host_addresses, is_free, is_this_host, master_port, plan_hosts
from windlass.run.signals import Heard, fork_run, listening
from windlass.run.supervise.ready import ReadyTest
from windlass.run.verdict import is_late

STATE_FILE = "components.json"
_TICK_S = 0.05
_SETTLE_S = 1.0
"""The failure of one component may be the consequence of another's that is not visible yet."""
_KILL_AFTER_S = 20.0

PartStatus = Literal["waiting", "starting", "ready", "done", "failed", "stopped"]


class PartState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One component in `components.json`."""

    name: str
    state: PartStatus
    why: str = ""
    hosts: tuple[str, ...] = ()
    address: str = ""
    port: int = 0
    started: float | None = None
    ready: float | None = None
    ended: float | None = None


def read_states(folder: Path) -> tuple[PartState, ...]:
    """Return the components of a job's run folder as windlass saw them last. Empty for any other run folder."""
    try:
        return from_json(read_bytes(folder / STATE_FILE), tuple[PartState, ...])
    except (OSError, msgspec.DecodeError):
        return ()


@dataclass(kw_only=True, slots=True)
class _Part:
    """One component of a job that is running."""

    component: Component
    run: Run
    test: ReadyTest | None
    state: PartState
    pid: int | None = None
    asked: float | None = None
    """When it was asked to end."""
    killed: bool = False
    next_test: float = 0.0
    record: RunRecord | None = None

    @property
    def name(self) -> str:
        return self.component.name

    @property
    def ended(self) -> bool:
        return self.state.state in {"done", "failed", "stopped"}

    def become(self, state: PartStatus, **changes: object) -> None:
        self.state = msgspec.structs.replace(self.state, state=state, **changes)


def run_components(run: Run, start: Callable[[Run], RunRecord]) -> RunRecord:
    """Run all components of a job file until the job is done. Returns the record of the job.

    `start` drives the run of one component.
    """
    job = _Job(run=run, parts=_make_parts(run), start=start, began=time.time())
    run.announce()
    with listening() as heard:
        job.save()
        while not job.over():
            job.step(heard)
            _wait(heard)
        job.save()
        return job.judge(heard)


def _wait(heard: Heard) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(heard.wakeup, selectors.EVENT_READ)
        if selector.select(_TICK_S):
            with contextlib.suppress(BlockingIOError):
                os.read(heard.wakeup, 4096)


def _make_parts(run: Run) -> list[_Part]:
    """Return the components with their folders, addresses and ports. Completed ones of an earlier start stay done."""
    request = run.plan.request
    contexts = [context for _, context in part_contexts(place(request, run.context), run.plan, run.context)]
    pairs = list(zip(request.components, run.plan.parts, strict=True))
    hosts = {one.name: plan_hosts(plan) for one, plan in pairs}
    together = len({host for names in hosts.values() for host in names}) == 1
    values: dict[str, str] = {}
    for one, plan in pairs:
        own = hosts[one.name]
        addresses = (LOOPBACK,) if together else host_addresses(plan, own, run.environ)
        if not together and len(own) == 1:
            addresses = host_addresses(msgspec.structs.replace(plan, nodes=2), own * 2, run.environ)[:1]
        here = is_this_host(own[0], run.environ) or plan.launcher == "local"
        port = _service_port(one, plan, run.folder.run_id, here=here)
        values |= {
            f"{one.name}.addr": addresses[0],
            f"{one.name}.port": str(port),
            f"{one.name}.hosts": ",".join(addresses),
        }
    parts = []
    for (one, made), context in zip(pairs, contexts, strict=True):
        folder = RunFolder(component_folder(run.folder.path, one.name))
        plan = filled(made, values)
        view = run.view.of_component(one.name, plan.world_size)
        own_run = Run(
            plan=plan, secrets=Secrets(), folder=folder, context=context, view=view, environ=run.environ, quiet=True
        )
        address, port = values[f"{one.name}.addr"], int(values[f"{one.name}.port"])
        test = None
        if one.ready is not None and not one.ready.finished:
            test = ReadyTest(ready=one.ready, plan=plan, out=folder.part("out"), address=address, port=port, offsets={})
        state = PartState(name=one.name, state="waiting", hosts=hosts[one.name], address=address, port=port)
        record = folder.result()
        if record is not None and record.outcome == "ok" and one.end != "service":
            state = msgspec.structs.replace(state, state="done", why="finished in an earlier start")
        elif record is not None or any(folder.part("out").iterdir()):
            restart(folder)
        if state.state == "waiting":
            folder.save_plan(plan, Secrets())
        parts.append(_Part(component=one, run=own_run, test=test, state=state, record=record))
    return parts


def _service_port(one: Component, plan: Plan, run_id: str, *, here: bool) -> int:
    rule = msgspec.structs.replace(plan, rendezvous=service_rule(one, plan))
    try:
        return master_port(rule, plan.job_id, run_id, is_free if here else lambda _: True)
    except WindlassError as error:
        hint = "leave port out: windlass chooses a free one" if one.port else error.hint
        raise UsageError(f"{one.where('port')}: {error.message}", hint=hint) from None


@dataclass(kw_only=True, slots=True)
class _Job:
    """The components of one job, and why it ends."""

    run: Run
    parts: list[_Part]
    start: Callable[[Run], RunRecord]
    began: float
    ending: float | None = None
    """Since when no component is started any more and the running ones are asked to end."""
    first: _Part | None = None
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

    def _named(self, names: Iterable[str]) -> list[_Part]:
        return [part for part in self.parts if part.name in set(names)]

    def _start_and_test(self) -> None:
        for part in self.parts:
            needs = self._named(part.component.needs)
            if part.state.state == "waiting" and all(need.state.state in {"ready", "done"} for need in needs):
                self._start(part)
            if part.state.state == "starting" and part.test is not None:
                self._test(part, part.test)

    def _start(self, part: _Part) -> None:
        now = time.time()
        part.pid = fork_run(lambda: _drive(part.run, self.start))
        ready = part.component.ready
        if ready is None:
            part.become("ready", started=now, ready=now)
        else:
            part.become("starting", started=now)

    def _test(self, part: _Part, test: ReadyTest) -> None:
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

    def _judge_part(self, part: _Part, code: int) -> None:
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
            needs = self._named(part.component.needs)
            lost = [one.name for one in needs if one.state.state == "failed" and one.component.end == "ignore"]
            if part.state.state == "waiting" and lost:
                part.become("failed", why=f"could not start: it needs {lost[0]}", ended=time.time())
        failed = self._failed()
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

    def _settling(self, part: _Part, now: float) -> bool:
        """Return whether this component may be about to fail by itself, which would explain the first failure."""
        if self.first is None or self.ending is None or part.name not in self._needs_of(self.first):
            return False
        sick = any_failed(part.run.folder.path)
        return now - self.ending < (self.run.plan.grace_s + _SETTLE_S if sick else _SETTLE_S)

    def _needs_of(self, part: _Part) -> set[str]:
        """Return everything that this component needs, directly or not."""
        found: set[str] = set()
        todo = list(part.component.needs)
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo += [need for other in self._named([name]) for need in other.component.needs]
        return found

    def _failed(self) -> list[_Part]:
        return [part for part in self.parts if part.state.state == "failed" and part.component.end != "ignore"]

    def _running(self) -> list[_Part]:
        return [part for part in self.parts if part.pid is not None]

    def _signal(self, part: _Part, sig: signal.Signals) -> None:
        if part.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(part.pid, sig)

    # The end

    def judge(self, heard: Heard) -> RunRecord:
        """Save and return the record of the job, with the component that failed first as its cause."""
        failed = self._failed()
        stopped = heard.stopped_by
        if stopped is not None and self.first is None:
            allocation = self.run.context.allocation
            if heard.time_up or is_late(allocation.end_time_s if allocation else None):
                self._save_verdict(Cause(kind="walltime", reason="the allocation's time is up"))
            return self._save(outcome="stopped", exit_code=128 + stopped)
        if not failed:
            took = time.time() - self.began
            self._note(f"all components finished after {took:.1f} s; run folder {self.run.folder.path}")
            return self._save(outcome="ok", exit_code=0)
        root = self._root(self.first or failed[0], failed)
        where = root.record.failure if root.record is not None else None
        for part in failed:
            text = f"{part.name} failed: {part.state.why}"
            if part is not root and root.name in self._needs_of(part):
                text = f"{part.name} failed because {root.name} failed first: {root.state.why}"
            if part is not self.first or part is not root:
                self.run.view.note(f"windlass: {text}")
        path = component_folder(self.run.folder.path, root.name)
        self.run.view.note(f"windlass: output of {root.name}: windlass logs {path}")
        code = root.record.exit_code if root.record is not None and root.record.outcome != "stopped" else 1
        failure = RankFailure(
            rank=where.rank if where else None,
            host=where.host if where else None,
            code=where.code if where else None,
            signal=where.signal if where else None,
            said=f"{root.name} failed: {root.state.why}",
        )
        known = read_verdict(root.run.folder.path)
        cause = known.cause if known else Cause(kind="transient", reason="")
        text = f"{root.name}: {root.state.why}"
        self._save_verdict(msgspec.structs.replace(cause, reason=text, rank=None, host=None))
        return self._save(outcome="killed" if code > 128 else "failed", exit_code=code or 1, failure=failure)

    def _root(self, part: _Part, failed: Sequence[_Part]) -> _Part:
        """Return the failed component that explains the failure of this one: one that it needs, and failed earlier."""
        needs = self._needs_of(part)
        earlier = [
            other for other in failed if other.name in needs and _failed_at(other) <= _failed_at(part) + _SETTLE_S
        ]
        return min(earlier, key=_failed_at, default=part)

    def _save_verdict(self, cause: Cause) -> None:
        verdict = Verdict(
            attempt=len(attempt_folders(self.run.folder.path)),
            cause=cause,
            decision=Decision(action="stop", why="the job has ended"),
            hosts=fold_hostlist(tuple(dict.fromkeys(host for part in self.parts for host in part.state.hosts))),
            times=Times(started=self.began, ended=time.time()),
        )
        with contextlib.suppress(WindlassError):
            self.run.folder.write_bytes(VERDICT_FILE, to_json(verdict))

    def _save(self, **how: object) -> RunRecord:
        plan = self.run.plan
        began = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(self.began))
        record = RunRecord(
            version=RECORD_VERSION,
            windlass=plan.windlass,
            name=plan.name,
            site=plan.site,
            nodes=plan.nodes,
            ranks_per_node=plan.ranks_per_node,
            hosts=plan.hosts or ",".join(plan_hosts(plan)),
            job_id=plan.job_id,
            started=began,
            seconds=round(time.time() - self.began, 3),
            **how,  # type: ignore[arg-type]
        )
        try:
            self.run.folder.save_result(record)
        except WindlassError as error:
            self.run.view.note(f"windlass: {error.message}")
            if record.exit_code == 0:
                return msgspec.structs.replace(record, outcome="failed", exit_code=error.exit_code)
        return record


def _failed_at(part: _Part) -> float:
    verdict = read_verdict(part.run.folder.path)
    noticed = part.state.ended or time.time()
    return verdict.times.failed or noticed if verdict is not None else noticed


def _drive(run: Run, start: Callable[[Run], RunRecord]) -> int:
    """The main function of a component's process. Returns its exit code."""
    try:
        return start(run).exit_code
    except WindlassError as error:
        run.view.note(f"windlass: error: {error.message}" + (f"\n  hint: {error.hint}" if error.hint else ""))
        plan = run.plan
        record = RunRecord(
            version=RECORD_VERSION,
            windlass=plan.windlass,
            name=plan.name,
            site=plan.site,
            nodes=plan.nodes,
            ranks_per_node=plan.ranks_per_node,
            hosts=plan.hosts or "",
            outcome="not-started",
            exit_code=error.exit_code,
            started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            seconds=0.0,
            failure=RankFailure(rank=None, said=error.message),
        )
        with contextlib.suppress(WindlassError):
            run.folder.save_result(record)
        return error.exit_code
