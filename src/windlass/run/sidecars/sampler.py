"""The samplers of a run: their service on every node, and the only place that merges their reports."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import windlass.node.sampler
from windlass.agents.start import Agents, ServiceSpec
from windlass.diagnose.watch.findings import find
from windlass.diagnose.watch.fold import JobFiles, JobFold, about_of, interval_s
from windlass.diagnose.watch.job import Job
from windlass.errors import DeadlineError, MachineError
from windlass.model.plan import Plan
from windlass.node.sys.reading import read_text
from windlass.plan.render.rank_script import HOOK_FOLDER
from windlass.run.execute import Sidecar
from windlass.run.folder import RunFolder
from windlass.run.output import OutputView

SAMPLER = "sampler"
_ENTRY = "windlass.node.sampler.sampler:make"
_NODE = Path(windlass.node.sampler.__path__[0])
_HOOK = {
    "sitecustomize.py": "sitecustomize.py",
    "windlass_recorder.py": "recorder.py",
    "windlass_gloo_exit.py": "gloo_exit.py",
    "windlass_profiler.py": "profiler.py",
    "windlass_on_request.py": "on_request.py",
}
_END_S = 5.0
_TELL_S = 60.0


def sampler_service(nodes: int) -> ServiceSpec:
    """Return the settings of every node's sampler. They include the start-up hook."""
    hook = {name: read_text(_NODE / source, follow=True) for name, source in _HOOK.items()}
    settings: dict[str, object] = {"interval_s": interval_s(nodes), "folder": HOOK_FOLDER, "hook": hook}
    return ServiceSpec(name=SAMPLER, entry=_ENTRY, settings=settings)


class SamplerSidecar:
    """`run.execute.Sidecar`: the samplers while the ranks run, next to an `inner` sidecar of the same agents."""

    def __init__(
        self,
        agents: Agents,
        inner: Sidecar | None,
        plan: Plan,
        folder: RunFolder,
        view: OutputView,
        hosts: tuple[str, ...],
        *,
        quiet: bool = False,
    ) -> None:
        self._agents = agents
        self._inner = inner
        self._view = view
        self._every_s = interval_s(len(hosts))
        self._fold = JobFold(
            plan.name,
            hosts,
            self._every_s,
            len(plan.topology.allowed or plan.topology.cpus),
            started=time.time(),
            about=about_of(plan),
        )
        self._files: JobFiles | None = JobFiles(folder.path, every_s=self._every_s)
        self._hosts = hosts
        self._told = 0
        self._due = 0.0
        self._quiet = quiet
        self._worst = ""
        self._said = 0.0

    def start(self, stopping: Callable[[], bool]) -> bool:
        """Start the samplers. The run continues without them if they cannot start."""
        if self._inner is not None:
            return self._inner.start(stopping)
        try:
            return self._agents.start(stopping)
        except (MachineError, DeadlineError) as error:
            self._view.note(f"windlass: sampling is off, because the agents did not start: {error.message}")
            self._files = None
            return True

    def poll(self) -> None:
        if self._inner is not None:
            self._inner.poll()
        else:
            self._agents.hear()
        self._take()
        now = time.monotonic()
        if now >= self._due:
            self._due = now + self._every_s
            self._write(ended=False)

    def stop(self) -> None:
        if self._inner is not None:
            self._inner.stop()
        else:
            self._agents.stop(_END_S)
        self._take()
        self._write(ended=True)

    def _take(self) -> None:
        fresh, self._agents.streamed = self._agents.streamed, []
        for line in fresh:
            if line.get("service") == SAMPLER and isinstance(line.get("news"), str):
                self._fold.take(line["node"], line["news"])
        if self._inner is None:
            told, self._told = self._agents.lines[self._told :], len(self._agents.lines)
            for line in told:
                if "agent" in line:
                    self._view.note(f"windlass: the agent on {self._hosts[line['node']]} {line['agent']}")

    def _write(self, *, ended: bool) -> None:
        if self._files is None:
            return
        try:
            job = self._fold.job(time.time(), ended=ended)
            self._files.write(job)
        except OSError as error:
            self._view.note(f"windlass: cannot write the samples: {error.strerror}")
            self._files = None
            return
        if not self._view.show_job(job) and not self._quiet:
            self._tell(job)

    def _tell(self, job: Job) -> None:
        """Write a line to a log when a problem begins, and the worst problem at the end, unless it was just written."""
        worst = find(job)[0]
        now = time.monotonic()
        waited = now - self._said > _TELL_S
        begins = worst.severity == "error" and worst.kind != self._worst and waited
        ends = job.ended and worst.kind not in {"starting", "ended"} and any(rank.steps for rank in job.ranks)
        if begins or (ends and (worst.kind != self._worst or waited)):
            self._worst, self._said = worst.kind, now
            self._view.note(f"windlass: {worst.line()}")
