"""Run a plan once: resolve the rendezvous, start the ranks, stay until they have ended, tell how."""

from __future__ import annotations

from collections.abc import Callable

from windlass.model.record import RunRecord
from windlass.plan.render.job_facts import JobFacts
from windlass.run.execute import Sidecar, execute, prepare
from windlass.run.failure.verdict import verdict_lines
from windlass.run.rendezvous import plan_hosts, resolve_rendezvous
from windlass.run.run import Run
from windlass.run.signals import listening
from windlass.run.verdict import good_end, judge_once

SidecarMaker = Callable[[Run, JobFacts, tuple[str, ...]], Sidecar | None]
"""Makes what runs beside the ranks on these hosts, from a layer above; None where the plan needs nothing."""


def run_once(run: Run, make_sidecar: SidecarMaker = lambda *_: None) -> RunRecord:
    """Start a run, show its ranks, note how it ended. Returns its record, which is saved in the folder."""
    plan, folder = run.plan, run.folder
    try:
        if run.secrets:
            folder.save_plan(plan, run.secrets)
        hosts = plan_hosts(plan)
        facts = resolve_rendezvous(run, hosts, folder.run_id)
        run.announce()
        prepare(run, facts, hosts)
    except BaseException:
        folder.forget_secrets()  # nothing has started that could need them
        raise
    sidecar = make_sidecar(run, facts, hosts)
    with listening():  # until the record is written: a second request to stop must not cost it
        end = execute(run, facts, hosts, sidecar)
        judged = judge_once(run, end, facts.deadline_s)
    record = judged.record
    if judged.verdict is not None:
        for line in verdict_lines(judged.verdict, record, folder.path, shown=run.view.shows):
            run.view.note(line)
    elif not run.quiet:
        for line in good_end(plan, record, folder):
            run.view.note(line)
    return record
