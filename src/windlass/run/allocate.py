"""Interactive allocations: the nodes that `submit` would ask for, given to a terminal. The same plan makes both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from windlass.backends.schedulers import get_scheduler
from windlass.base.procs.command import become
from windlass.errors import UsageError
from windlass.model.origin import Argument, argv_of
from windlass.model.plan import Plan
from windlass.model.request import Request
from windlass.run.scheduler_commands import require_interactive_program, scheduler_environ
from windlass.run.submit import plan_job


@dataclass(frozen=True, kw_only=True, slots=True)
class InteractiveAllocation:
    """A plan of one's nodes and the command that asks for them."""

    plan: Plan
    arguments: tuple[Argument, ...]
    """The scheduler's command and its options, each with its reason."""
    command: tuple[str, ...] = ()

    @property
    def argv(self) -> tuple[str, ...]:
        return (*argv_of(self.arguments), *self.command)


def plan_allocation(
    request: Request, environ: Mapping[str, str], command: tuple[str, ...] = ()
) -> InteractiveAllocation:
    """The allocation of a request, which is not asked for yet. `command` runs in the place of a shell."""
    plan = plan_job(request, environ).plan
    scheduler = get_scheduler(plan.scheduler)
    return InteractiveAllocation(
        plan=plan,
        arguments=scheduler.interactive_arguments(plan.directives),
        command=scheduler.interactive_command(command),
    )


def enter_allocation(allocation: InteractiveAllocation, environ: Mapping[str, str]) -> NoReturn:
    """Turn this process into the scheduler's command: the terminal is its own, and its exit code is ours."""
    scheduler = get_scheduler(allocation.plan.scheduler)
    if scheduler.in_allocation(environ) and not scheduler.nests:
        raise UsageError(
            f"this is job {environ.get(scheduler.job_id_variable, '')} already",
            hint="`windlass run` uses its nodes; leave it first to get others",
        )
    require_interactive_program(allocation.plan, environ)
    become(allocation.argv, scheduler_environ(scheduler, environ))
