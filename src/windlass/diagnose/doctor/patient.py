"""What is examined, and how thoroughly. Values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from windlass.model.plan import Plan
from windlass.model.request import Request
from windlass.plan.inputs import PlanningContext
from windlass.run.folder import RunFolder

Level = Literal["quick", "default", "full"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Patient:
    """What is examined: a plan in its context, and where its files may lie."""

    request: Request
    """As the user made it: the command may be empty."""
    plan: Plan
    """For the nodes that are looked at: those of the job, or this one alone."""
    job_plan: Plan
    """Of the request, as `windlass plan` shows it."""
    context: PlanningContext
    folder: RunFolder
    environ: Mapping[str, str]
    hosts: tuple[str, ...]
    login: bool = False
    """On a login node, or outside of any job: no rank starts, and nobody expects devices."""
