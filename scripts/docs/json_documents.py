"""The document that each command prints with `--json`: its type and its version. docs/reference/json.md is made of it.

A version grows when a key goes away or changes its meaning. A new key does not change it. A document that has a key
`version` holds its own version there.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypedDict

from windlass.bench.compare import Comparison
from windlass.bench.record import BenchRecord
from windlass.bench.reference import References
from windlass.bench.tune.search import SearchResult
from windlass.build.envs.check import EnvCheck
from windlass.build.envs.create import Created
from windlass.build.envs.pack import Packed
from windlass.build.envs.plan import EnvPlan
from windlass.build.images.build import Built
from windlass.build.images.check import ImageCheck
from windlass.build.images.inject import Injection
from windlass.build.images.lock import BaseLock
from windlass.build.images.recipe import Recipe
from windlass.diagnose.doctor.health import Health
from windlass.diagnose.doctor.log_findings import LogReport
from windlass.diagnose.report.gather import RunReport
from windlass.diagnose.watch.job import Job
from windlass.model.finding import Finding
from windlass.model.origin import Argument
from windlass.model.plan import Plan
from windlass.model.record import RunRecord
from windlass.model.site import Site
from windlass.plan.explain import Occurrence
from windlass.run.bad_nodes import BadNode
from windlass.run.failure.ends import Saved
from windlass.run.failure.verdict import Verdict
from windlass.run.sidecars.traces import TraceSummary
from windlass.run.supervise.runs import RunState
from windlass.sites.adopted import Measurements
from windlass.sites.detect import Detection


class AllocationCommand(TypedDict):
    argv: tuple[str, ...]
    arguments: tuple[Argument, ...]


class BugReportFile(TypedDict):
    path: str
    run: str | None
    files: dict[str, int]
    left_out: dict[str, str]


class CacheStarted(TypedDict):
    run_dir: str
    view: str
    nodes: int
    seconds: float


class CacheStatus(TypedDict):
    nodes: list[dict[str, Any]]
    total: dict[str, Any]


class CacheStopped(TypedDict):
    run_dir: str


class Initialised(TypedDict):
    path: str | None
    keys: dict[str, str]
    adopted: str | None


class LogLine(TypedDict):
    rank: int
    text: str


class RankSeat(TypedDict):
    rank: int
    host: str
    cpus: str
    device: str
    pid: int


class SelfTested(TypedDict):
    bundle: str
    findings: list[Finding]


class SiteRow(TypedDict):
    name: str
    title: str
    operator: str
    scheduler: str
    launcher: str
    hardware: str | None
    network: str | None


class ShownAttempt(TypedDict):
    attempt: int
    folder: str
    verdict: Verdict | None
    record: RunRecord | None


class ShownRun(TypedDict):
    state: RunState
    attempts: list[ShownAttempt]
    snapshots: list[Saved]


class StagedFiles(TypedDict):
    to: str
    nodes: int
    seconds: float
    places: tuple[str, ...]
    run_dir: str
    staged: tuple[dict[str, Any], ...]
    mounted: bool


class SubmittedJob(TypedDict):
    job_id: str
    run_dir: str
    script: str


class TracedRead(TypedDict):
    path: str
    offset: int
    length: int


class DroppedTrace(TypedDict):
    dropped: str


class Watched(TypedDict):
    worst: Finding
    findings: tuple[Finding, ...]
    job: Job


class Document(NamedTuple):
    """What one command prints with `--json`."""

    type: Any
    version: int = 1


_BENCH = Document(BenchRecord)
DOCUMENTS: dict[str, Document] = {
    "alloc": Document(AllocationCommand),
    "bench collectives": _BENCH,
    "bench compare": Document(Comparison),
    "bench ddp": _BENCH,
    "bench io": _BENCH,
    "bench llm": _BENCH,
    "bench matmul": _BENCH,
    "bench reference": Document(list[Finding] | References, 2),
    "bench report": Document(BenchRecord | list[BenchRecord]),
    "bench scale": _BENCH,
    "bugreport": Document(BugReportFile),
    "cache start": Document(CacheStarted),
    "cache status": Document(CacheStatus),
    "cache stop": Document(CacheStopped),
    "cache trace drop": Document(DroppedTrace),
    "cache trace list": Document(list[TraceSummary]),
    "cache trace record": Document(TraceSummary),
    "cache trace show": Document(list[TracedRead]),
    "diff": Document(list[str]),
    "doctor": Document(Health, 2),
    "env check": Document(EnvCheck, 2),
    "env create": Document(Created),
    "env pack": Document(Packed),
    "env plan": Document(EnvPlan, 2),
    "explain": Document(list[Occurrence]),
    "explain-log": Document(LogReport, 2),
    "image build": Document(Built),
    "image check": Document(ImageCheck, 2),
    "image inject": Document(Injection, 2),
    "image lock": Document(list[BaseLock]),
    "image plan": Document(Recipe),
    "init": Document(Initialised),
    "logs": Document(list[LogLine]),
    "logs --where": Document(list[RankSeat]),
    "nodes forgive": Document(list[BadNode]),
    "nodes list": Document(list[BadNode]),
    "plan": Document(Plan, 3),
    "report": Document(RunReport, 3),
    "runs clean": Document(list[RunState]),
    "runs list": Document(list[RunState]),
    "runs show": Document(ShownRun),
    "selftest": Document(SelfTested, 2),
    "sites adopt": Document(Measurements),
    "sites check": Document(list[Finding], 2),
    "sites detect": Document(Detection),
    "sites list": Document(list[SiteRow]),
    "sites show": Document(Site),
    "stage": Document(StagedFiles),
    "stage --dry-run": Document(Plan, 3),
    "submit": Document(SubmittedJob),
    "tune": Document(SearchResult),
    "watch": Document(Watched, 2),
}
