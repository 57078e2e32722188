"""No scheduler: a workstation, or a node that is used directly. Jobs cannot be submitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from windlass.backends.schedulers.base import JobSpec, JobState, JobStatus, Scheduler
from windlass.errors import UsageError, WindlassError
from windlass.model.origin import Argument
from windlass.model.request import Allocation
from windlass.model.site import SchedulerSpec

_HINT = "use `windlass run` to start it on this machine, or name a scheduler with --scheduler"


class NoScheduler(Scheduler):
    name = "none"
    directive = "# windlass:"
    job_id_variable = ""
    host_lines = "uname -n"
    submit_command = ()

    def in_allocation(self, environ: Mapping[str, str]) -> bool:
        return False

    def parse_allocation(
        self, environ: Mapping[str, str], read_text: Callable[[str], str], output: str | None = None
    ) -> Allocation:
        """Only this machine."""
        return Allocation(scheduler=self.name, job_id="", hosts=("localhost",))

    def directives(self, spec: JobSpec, site: SchedulerSpec) -> tuple[Argument, ...]:
        return ()

    def submit_argv(self, script: str) -> tuple[str, ...]:
        raise UsageError("there is no scheduler here to submit to", hint=_HINT)

    def parse_submit(self, output: str) -> str:
        raise UsageError("there is no scheduler here to submit to", hint=_HINT)

    def explain_refusal(self, code: int, output: str) -> WindlassError:
        return UsageError("there is no scheduler here to submit to", hint=_HINT)

    def status_argv(self, job_id: str) -> tuple[str, ...]:
        raise UsageError("there is no scheduler here to ask about a job", hint="look into the run folder")

    def parse_status(self, output: str, code: int, job_id: str) -> JobStatus:
        return JobStatus(state=JobState.UNKNOWN, reason="no scheduler")

    def cancel_argv(self, job_id: str) -> tuple[str, ...]:
        raise UsageError("there is no scheduler here to cancel a job", hint="end the windlass process itself")
