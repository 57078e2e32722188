"""The components of a running job: their runs, addresses, ports and states."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from windlass.errors import UsageError, WindlassError
from windlass.model.jsontext import from_json
from windlass.model.plan import Plan
from windlass.model.record import RunRecord
from windlass.model.request import Component
from windlass.node.sys.reading import read_bytes
from windlass.plan.components import filled, part_contexts, place, service_rule
from windlass.plan.inputs import Secrets
from windlass.run.failure.verdict import read_verdict
from windlass.run.folder import RunFolder, component_folder, restart
from windlass.run.planning import Run
from windlass.run.rendezvous import LOOPBACK, host_addresses, is_free, is_this_host, master_port, plan_hosts
from windlass.run.supervise.ready import ReadyTest

STATE_FILE = "components.json"

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


def read_states(folder: Path, *, ended: bool = False) -> tuple[PartState, ...]:
    """Return the components of a job's run folder as windlass saw them last. Empty for any other run folder.

    If the run has `ended`, a component that was still running then is stopped.
    """
    try:
        states = from_json(read_bytes(folder / STATE_FILE), tuple[PartState, ...])
    except (OSError, msgspec.DecodeError):
        return ()
    return tuple(
        msgspec.structs.replace(one, state="stopped") if ended and one.state in {"starting", "ready"} else one
        for one in states
    )


@dataclass(kw_only=True, slots=True)
class Part:
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

    @property
    def failed_at(self) -> float:
        """When its first rank failed, or when windlass noticed its end."""
        verdict = read_verdict(self.run.folder.path)
        noticed = self.state.ended or time.time()
        return verdict.times.failed or noticed if verdict is not None else noticed


def named(parts: Sequence[Part], names: Iterable[str]) -> list[Part]:
    """Return the components with these names."""
    return [part for part in parts if part.name in set(names)]


def failed_parts(parts: Sequence[Part]) -> list[Part]:
    """Return the components whose failure counts."""
    return [part for part in parts if part.state.state == "failed" and part.component.end != "ignore"]


def needs_of(parts: Sequence[Part], part: Part) -> set[str]:
    """Return the names of everything that this component needs, directly or not."""
    found: set[str] = set()
    todo = list(part.component.needs)
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += [need for other in named(parts, [name]) for need in other.component.needs]
    return found


def make_parts(run: Run) -> list[Part]:
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
        parts.append(Part(component=one, run=own_run, test=test, state=state, record=record))
    return parts


def _service_port(one: Component, plan: Plan, run_id: str, *, here: bool) -> int:
    rule = msgspec.structs.replace(plan, rendezvous=service_rule(one, plan))
    try:
        return master_port(rule, plan.job_id, run_id, is_free if here else lambda _: True)
    except WindlassError as error:
        hint = "leave port out: windlass chooses a free one" if one.port else error.hint
        raise UsageError(f"{one.where('port')}: {error.message}", hint=hint) from None
