"""The ways to start that are compared. Each takes a setup and a size, and returns one sample."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from startup.machine import Clients, Hosted, SharedTraffic, hosted, remove_tree, run_ranks
from startup.shared import Limits
from startup.stages import Costs, mean_costs, read_costs
from windlass.agents.start import ServiceSpec
from windlass.base.notation.counts import counted
from windlass.base.procs.command import run_command, which
from windlass.errors import MachineError
from windlass.model.plan import CacheRoot
from windlass.run.stage.push import stage_service

CASES = ("native", "direct", "sbcast", "squashfs", "stage", "cache", "cache+trace", "second")
_PACK_S = 900.0


class NotMeasuredError(Exception):
    """The case cannot be measured here. The message gives the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One measurement. `ready_s` is the time before the ranks (agents up, files staged).

    For the cache, `seconds` does not include `ready_s`, because the agents are up when the ranks start. For staging,
    `seconds` includes it, because no rank can start without the staged files.
    """

    seconds: float
    shared: SharedTraffic
    ready_s: float = 0.0
    agent_calls: int = 0
    """Calls that the agents of all nodes made before the first rank started. They are part of `shared`."""
    costs: Costs = field(default_factory=dict)
    """The time of the caches by stage."""
    cpu_s: float | None = None
    """CPU time of bringing files to all nodes, if it was measured. It does not include the ranks."""


@dataclass(kw_only=True, slots=True)
class StartSetup:
    """The inputs: the environment, the module, and a work directory on storage of this machine."""

    env: Path
    module: str
    work: Path
    limits: Limits
    environ: Mapping[str, str]
    count: int = 0
    made: dict[str, Path] = field(default_factory=dict)

    @property
    def run(self) -> Path:
        folder = self.work / "run"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def python(self) -> Path:
        return self.env / "bin" / "python"

    @property
    def code(self) -> str:
        return f"import {self.module}"

    def clients(self, nodes: int) -> Clients:
        """Return new clients with empty caches."""
        self.count += 1
        exports = {"env": str(self.env), "run": str(self.run)}
        return Clients(self.work / f"s{self.count}", nodes, exports, self.limits)


def native(setup: StartSetup, nodes: int, ranks: int) -> Sample:
    """Start with everything on this machine's own disk and warm, which is the fastest possible start."""
    seconds = run_ranks([setup.python] * nodes, ranks, setup.code, setup.work)
    return Sample(seconds=seconds, shared=SharedTraffic(calls=0, bytes=0))


def direct(setup: StartSetup, nodes: int, ranks: int) -> Sample:
    """Start with every node reading the shared file system itself."""
    with setup.clients(nodes) as clients:
        pythons = [clients.path(node) / "env" / "bin" / "python" for node in range(nodes)]
        seconds = run_ranks(pythons, ranks, setup.code, setup.work)
        return Sample(seconds=seconds, shared=clients.seen())


def cache(setup: StartSetup, nodes: int, ranks: int, *, trace: bool = False) -> tuple[Sample, Sample]:
    """Start through the cooperative cache, cold, and then again on the same nodes (the sample of `second`)."""
    trace_file = _trace(setup) if trace else None
    with setup.clients(nodes) as clients:
        service = _cache_service(setup, clients, trace_in=trace_file.name if trace_file else "")
        with hosted(clients, nodes, setup.run, setup.work, service) as up:
            at_start = clients.seen().calls
            first = run_ranks(_viewed(setup, up, nodes), ranks, setup.code, setup.work)
            seen = clients.seen()
            costs = read_costs([up.state_dir(node) for node in range(nodes)])
            again = run_ranks(_viewed(setup, up, nodes), ranks, setup.code, setup.work)
            more = clients.seen().since(seen)
    cold = Sample(seconds=first, shared=seen, ready_s=up.ready_s, agent_calls=at_start, costs=costs)
    return cold, Sample(seconds=again, shared=more)


def _viewed(setup: StartSetup, up: Hosted, nodes: int) -> list[Path]:
    return [Path(f"{up.view(node)}{setup.python}") for node in range(nodes)]


def _cache_service(setup: StartSetup, clients: Clients, *, trace_in: str = "", trace_out: str = "") -> ServiceSpec:
    settings: dict[str, Any] = {
        "roots": [[str(setup.env), str(clients.path("{node}") / "env")]],
        "per_node": True,
        "config": {"budget_bytes": 2 << 30},
        "trace_in": str(clients.path("{node}") / "run" / trace_in) if trace_in else "",
        "trace_out": trace_out,
    }
    return ServiceSpec(name="cache", entry="windlass.node.agent.cache:make", settings=settings)


def _trace(setup: StartSetup) -> Path:
    """Return the trace of this import, which one node records once."""
    if "trace" not in setup.made:
        path = setup.run / "import.trace.json"
        with setup.clients(1) as clients:
            service = _cache_service(setup, clients, trace_out=str(path))
            with hosted(clients, 1, setup.run, setup.work, service) as up:
                run_ranks(_viewed(setup, up, 1), 1, setup.code, setup.work)
        if not path.exists():
            raise MachineError("no trace was recorded", hint="did the import fail? see the log of the run")
        setup.made["trace"] = path
    return setup.made["trace"]


def stage(setup: StartSetup, nodes: int, ranks: int) -> Sample:
    """Start from a tar archive on the shared file system, unpacked on every node while it arrives."""
    return _staged(setup, nodes, ranks, _archive(setup), lambda node: f"staged-{node}/env/bin/python")


def squashfs(setup: StartSetup, nodes: int, ranks: int) -> Sample:
    """Start from an image on the shared file system, pushed to every node and mounted there."""
    return _staged(setup, nodes, ranks, _image(setup), lambda node: f"staged-{node}/env/bin/python")


def _staged(setup: StartSetup, nodes: int, ranks: int, source: Path, python: Callable[[int], str]) -> Sample:
    with setup.clients(nodes) as clients:
        target = setup.work / f"s{setup.count}"
        root = CacheRoot(path=str(source), real=str(clients.path("{node}") / "run" / source.name))
        service = stage_service((root,), f"{target}/staged-{{node}}", extract=True, shard=False, per_node=True)
        try:
            with hosted(clients, nodes, setup.run, setup.work, service) as up:
                pythons = [target / python(node) for node in range(nodes)]
                seconds = run_ranks(pythons, ranks, setup.code, setup.work)
                seen = clients.seen()
            cpu_s = sum(figures.get("cpu_s", 0.0) for figures in up.ended.values())
            return Sample(seconds=up.ready_s + seconds, shared=seen, ready_s=up.ready_s, cpu_s=cpu_s)
        finally:
            for node in range(nodes):
                remove_tree(target / f"staged-{node}")


def _archive(setup: StartSetup) -> Path:
    if "archive" not in setup.made:
        path = setup.run / "env.tar"
        words = ("tar", "-c", "-f", str(path), "-C", str(setup.env), ".")
        run_command(words, timeout_s=_PACK_S)
        setup.made["archive"] = path
    return setup.made["archive"]


def _image(setup: StartSetup) -> Path:
    if which("mksquashfs") is None or (which("squashfuse") is None and which("squashfuse_ll") is None):
        raise NotMeasuredError("no mksquashfs and squashfuse here")
    if "image" not in setup.made:
        path = setup.run / "env.squashfs"
        words = ("mksquashfs", str(setup.env), str(path), "-comp", "zstd", "-Xcompression-level", "1", "-quiet")
        run_command((*words, "-no-progress"), timeout_s=_PACK_S)
        setup.made["image"] = path
    return setup.made["image"]


def sbcast(setup: StartSetup, nodes: int, ranks: int) -> Sample:
    """Start from a tar archive that Slurm's sbcast copies in this allocation, unpacked on every node.

    One process gives sbcast the archive, so the shared file system is read once, through the first client.
    """
    have = int(setup.environ.get("SLURM_JOB_NUM_NODES", "0") or 0)
    if have < nodes:
        raise NotMeasuredError(f"the allocation has {have} nodes" if have else "sbcast needs an allocation of Slurm")
    if which("sbcast", setup.environ) is None:
        raise NotMeasuredError("no sbcast here")
    archive = _archive(setup)
    with setup.clients(1) as clients:
        source = clients.path(0) / "run" / archive.name
        target = setup.work / f"s{setup.count}"
        try:
            pythons, ready = _allocated_sbcast(setup, nodes, source, target)
            seconds = run_ranks(pythons, ranks, setup.code, setup.work)
            return Sample(seconds=ready + seconds, shared=clients.seen(), ready_s=ready)
        finally:
            for folder in (target / "copy.tar", *(target / f"n{node}" for node in range(nodes))):
                remove_tree(folder)


def _allocated_sbcast(setup: StartSetup, nodes: int, source: Path, target: Path) -> tuple[list[Path], float]:
    """Return the interpreters on the nodes of this allocation, and the seconds until the archive is unpacked on all."""
    copy = target / "copy.tar"
    unpack = f'mkdir -p "{target}/n$SLURM_NODEID" && tar -x -f "{copy}" -C "{target}/n$SLURM_NODEID"'
    step = ("srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--overlap")
    began = time.monotonic()
    run_command(("sbcast", "--force", str(source), str(copy)), timeout_s=_PACK_S, env=setup.environ)
    run_command((*step, "sh", "-c", unpack), timeout_s=_PACK_S, env=setup.environ)
    ready = time.monotonic() - began
    copy.unlink()
    return [target / f"n{node}" / "bin" / "python" for node in range(nodes)], ready


@dataclass(frozen=True, kw_only=True, slots=True)
class StartResult:
    """The samples of one case at one size: a row of `--json`."""

    case: str
    nodes: int
    ranks: int
    seconds: float | None = None
    shared_calls: int | None = None
    shared_bytes: int | None = None
    low: float | None = None
    high: float | None = None
    ready_seconds: float | None = None
    agent_calls: int | None = None
    shared_cpu_s: float | None = None
    """CPU seconds that the measurement's own file system used for those calls."""
    cpu_seconds: float | None = None
    """CPU seconds of bringing files to all nodes, for the cases that do this and if it was measured."""
    samples: tuple[float, ...] = ()
    costs: Costs = field(default_factory=dict)
    not_measured: str = ""


def make_result(case: str, nodes: int, ranks: int, samples: list[Sample]) -> StartResult:
    """Return medians together with the whole range."""
    seconds = [sample.seconds for sample in samples]
    return StartResult(
        case=case,
        nodes=nodes,
        ranks=nodes * ranks,
        seconds=round(statistics.median(seconds), 3),
        shared_calls=int(statistics.median(sample.shared.calls for sample in samples)),
        shared_bytes=int(statistics.median(sample.shared.bytes for sample in samples)),
        low=round(min(seconds), 3),
        high=round(max(seconds), 3),
        ready_seconds=round(statistics.median(sample.ready_s for sample in samples), 3),
        agent_calls=int(statistics.median(sample.agent_calls for sample in samples)),
        shared_cpu_s=round(statistics.median(sample.shared.cpu_s for sample in samples), 3),
        cpu_seconds=_median_or_none([sample.cpu_s for sample in samples]),
        samples=tuple(round(value, 3) for value in seconds),
        costs=mean_costs([sample.costs for sample in samples]),
    )


def _median_or_none(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 3) if known else None


def measure(
    setup: StartSetup,
    cases: tuple[str, ...],
    sizes: tuple[int, ...],
    ranks: int,
    repeat: int,
    tell: Callable[[str], None],
    *,
    warm_up: int = 0,
) -> list[StartResult]:
    """Measure all cases at all sizes, in rounds.

    The first `warm_up` rounds fill the machine's caches and are discarded.
    """
    samples: dict[tuple[str, int], list[Sample]] = {(case, nodes): [] for nodes in sizes for case in cases}
    # If both cases are measured, the second start comes from the measurement of the cache.
    order = [(case, nodes) for case, nodes in samples if case != "second" or "cache" not in cases]
    if warm_up:
        discarded: dict[tuple[str, int], list[Sample]] = {each: [] for each in samples}
        in_rounds(
            order,
            warm_up,
            lambda text: tell(f"warm-up, {text}"),
            lambda case, nodes: _one(setup, case, nodes, ranks, discarded),
        )
    missing = in_rounds(order, repeat, tell, lambda case, nodes: _one(setup, case, nodes, ranks, samples))
    return [
        make_result(case, nodes, ranks, found)
        if found
        else StartResult(
            case=case, nodes=nodes, ranks=nodes * ranks, not_measured=missing.get((case, nodes), "no sample")
        )
        for (case, nodes), found in samples.items()
    ]


def in_rounds(
    order: Sequence[tuple[str, int]], repeat: int, tell: Callable[[str], None], one: Callable[[str, int], None]
) -> dict[tuple[str, int], str]:
    """Measure all cases and sizes one after the other in every round, so that a busy minute affects all of them alike.

    Returns the reasons why some cannot be measured.
    """
    missing: dict[tuple[str, int], str] = {}
    for turn in range(repeat):
        for case, nodes in order:
            if (case, nodes) in missing:
                continue
            tell(f"round {turn + 1} of {repeat}: {case} on {counted(nodes, 'node')}")
            try:
                one(case, nodes)
            except NotMeasuredError as error:
                missing[case, nodes] = str(error)
    return missing


def _one(setup: StartSetup, case: str, nodes: int, ranks: int, samples: dict[tuple[str, int], list[Sample]]) -> None:
    if case in {"cache", "second", "cache+trace"}:
        first, again = cache(setup, nodes, ranks, trace=case == "cache+trace")
        if case != "second":
            samples[case, nodes].append(first)
        if case != "cache+trace" and ("second", nodes) in samples:
            samples["second", nodes].append(again)
        return
    run = {"native": native, "direct": direct, "sbcast": sbcast, "squashfs": squashfs, "stage": stage}[case]
    samples[case, nodes].append(run(setup, nodes, ranks))


def load_average() -> float:
    return round(os.getloadavg()[0], 2)
