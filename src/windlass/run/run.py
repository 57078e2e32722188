"""The run as a value: a plan in its folder, and everything that it takes to start it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from windlass.base.settings import Settings, read_settings
from windlass.model.plan import Plan
from windlass.plan.inputs import PlanningContext, Secrets
from windlass.plan.show import headline
from windlass.run.folder import RunFolder
from windlass.run.output import OutputView


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A run that can be started. Its plan is saved in its folder."""

    plan: Plan
    secrets: Secrets
    """What the plan hides; empty where the folder's file holds it already."""
    folder: RunFolder
    context: PlanningContext
    view: OutputView
    environ: Mapping[str, str]
    quiet: bool = False
    """Nothing about the run itself is noted on the view unless something fails."""

    @property
    def settings(self) -> Settings:
        return read_settings(self.environ)

    def announce(self) -> None:
        """Note the plan's warnings and its headline on the view."""
        if self.quiet:
            return
        for remark in self.plan.remarks:
            if remark.severity == "warning":
                self.view.note(f"windlass: warning: {remark.line()}")
        self.view.note(f"windlass: {headline(self.plan)}; run folder {self.folder.path}")
