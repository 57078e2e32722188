"""Rules about the steps of a job and the time between them: pure functions from samples to a finding.

`rules` defines the evidence that each rule needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median

import msgspec

from windlass.base.notation.counts import counted
from windlass.diagnose.watch import thresholds
from windlass.diagnose.watch.figures import (
    host_of,
    hosts_text,
    is_uneven,
    ms_text,
    own_ms,
    pace,
    ranks_text,
    slow_rows,
    stepping,
    wait_share,
)
from windlass.diagnose.watch.job import Job, RankRow
from windlass.model.finding import Finding


def not_a_number(job: Job) -> Finding | None:
    broken = [rank for rank in job.ranks if rank.nan_step is not None]
    if not broken:
        return None
    return Finding(
        kind="nan",
        severity="error",
        subject=ranks_text([rank.rank for rank in broken]),
        evidence=f"parameters are not numbers (NaN), seen at step {min(rank.nan_step or 0 for rank in broken):,}",
        advice="stop the run: every further step is wasted. Resume from an earlier snapshot, with a lower learning "
        "rate, "
        "gradient clipping or bfloat16 instead of float16; `torch.autograd.set_detect_anomaly(True)` finds the "
        "operation",
        facts={"ranks": [rank.rank for rank in broken]},
    )


def input_bound(job: Job) -> Finding | None:
    known = _waits(job)
    usual = median(known.values())
    severity = _input_severity(usual)
    if severity is None:
        return None
    return Finding(
        kind="input-bound",
        severity=severity,
        evidence=f"ranks wait for data {usual:.0%} of the time (median of {counted(len(known), 'rank')})",
        advice="use more DataLoader workers, up to the cores of a rank; stage the data into node memory "
        "(`windlass stage`), or read it once for all nodes (`--cache DIR --cache-set placement=partition`, and "
        "`{view}DIR` as the script's folder)",
        facts={"ranks": [rank for rank, share in known.items() if _input_severity(share)]},
    )


def input_straggler(job: Job) -> Finding | None:
    known = _waits(job)
    alone = [rank for rank, share in known.items() if _input_severity(share) == "error"]
    if len(known) < 2 or not alone or _input_severity(median(known.values())) is not None:
        return None
    return Finding(
        kind="input-straggler",
        severity="error",
        subject=ranks_text(alone),
        evidence=f"waits {max(known[rank] for rank in alone):.0%} of a step for data, and all others with it",
        advice=f"check the file system and CPUs of its node: windlass exec --rank {alone[0]} -- top -b -n 1",
        facts={"ranks": alone},
    )


def _waits(job: Job) -> dict[int, float]:
    pairs = ((rank.rank, wait_share(job, rank)) for rank in stepping(job))
    return {rank: share for rank, share in pairs if share is not None}


def _input_severity(share: float) -> thresholds.Serious | None:
    return thresholds.severity(share, thresholds.WAIT_WARN, thresholds.WAIT_BAD)


def gil_held(job: Job) -> Finding | None:
    held = _gil_ranks(job)
    if not held:
        return None
    most = max(rank.gil_us or 0.0 for rank in job.ranks)
    return Finding(
        kind="gil-held",
        severity="warning",
        subject=ranks_text(sorted(held)),
        evidence="another thread of the process holds Python's global lock (GIL): the training thread gets it back "
        "only after "
        f"{most / 1000:.0f} ms",
        advice="move the work of that thread into a process (multiprocessing, DataLoader workers) or into code that "
        f"releases the lock; `windlass exec --rank {min(held)} -- sh -c 'py-spy dump --pid $WINDLASS_RANK_PID'` shows "
        "which thread it is",
        facts={"ranks": sorted(held)},
    )


def _gil_ranks(job: Job) -> set[int]:
    return {rank.rank for rank in job.ranks if (rank.gil_us or 0.0) >= thresholds.GIL_US}


def straggler(job: Job) -> Finding | None:
    known_cause = {*job.about.profiled, *_gil_ranks(job)}
    slow = [rank for rank in slow_rows(job) if rank.rank not in known_cause]
    if not slow:
        return None
    of_host = Counter(host_of(job, rank) for rank in stepping(job))
    hosts = Counter(host_of(job, rank) for rank in slow)
    node = all(host and count == of_host[host] and count > 1 for host, count in hosts.items())
    subject = hosts_text(list(hosts)) if node else ranks_text([rank.rank for rank in slow])
    if not node and len(hosts) == 1 and (host := next(iter(hosts))):
        subject += f" on {host}"
    return Finding(
        kind="slow-node" if node else "straggler",
        severity="error",
        subject=subject,
        evidence=f"slower than the other ranks, which wait for it ({_slow_text(job, slow)})",
        advice="run `windlass doctor --full` on these nodes; check clocks, temperature and other jobs; "
        "`run --spares` replaces them",
        facts={"ranks": [rank.rank for rank in slow], "hosts": sorted(hosts)},
    )


def profiled(job: Job) -> Finding | None:
    slow = [rank for rank in slow_rows(job) if rank.rank in job.about.profiled]
    if not slow:
        return None
    return Finding(
        kind="profiled",
        severity="note",
        subject=ranks_text([rank.rank for rank in slow]),
        evidence=f"the profiler slows it down, and the others wait for it ({_slow_text(job, slow)})",
        advice="read its profile; measure the speed of the job in a run without --profile",
    )


def _slow_text(job: Job, slow: Sequence[RankRow]) -> str:
    most, usual = max(own_ms(rank) for rank in slow), median(own_ms(rank) for rank in stepping(job))
    often = max(rank.slow_share or 0.0 for rank in slow)
    times = f"in {often * job.compared:.0f} of {counted(job.compared, 'sample')}"
    return f"{ms_text(most)} own time in a step, the median rank {ms_text(usual)}; {times}"


def noise(job: Job) -> Finding | None:
    if slow_rows(job) or not is_uneven(job):
        return None
    others = sum(1 for rank in job.ranks if rank.slow_share)
    return Finding(
        kind="noise",
        severity="warning",
        evidence=f"the slow rank changes, so no single node is the cause ({counted(others, 'rank')} in "
        f"{counted(job.uneven, 'sample')})",
        advice="possible causes: uneven data (bucket samples by length), Python's garbage collector (collect every N "
        "steps instead), a busy file system",
    )


def network_bound(job: Job) -> Finding | None:
    """Uses the rank that waits least, because the others may wait for that rank and not for the network."""
    share = min(rank.comm_share for rank in job.ranks if rank.comm_share is not None)
    severity = thresholds.severity(share, thresholds.COMM_WARN, thresholds.COMM_BAD)
    if severity is None:
        return None
    return Finding(
        kind="network-bound",
        severity=severity,
        evidence=f"communication that does not overlap with computation takes {share:.0%} of a step on every rank "
        "(measured by "
        "DistributedDataParallel)",
        advice="check the network with `windlass bench collectives`, and the fabric's plugin with `run --comm-log`; "
        "then try a larger batch per rank, larger DDP buckets, or `windlass tune`",
    )


def tcp_fallback(job: Job) -> Finding | None:
    remark = next((one for one in job.about.remarks if one.kind == "tcp-fallback"), None)
    return None if remark is None else msgspec.structs.replace(remark, severity="error")


def _between_steps(kind: str, phase: int, warn: float, what: str, advice: str) -> Callable[[Job], Finding | None]:
    """Make a rule about one phase of `RankRow.phases_s`: the median rank's share of the time after its start."""

    def judge(job: Job) -> Finding | None:
        phases = [rank.phases_s for rank in stepping(job) if rank.phases_s is not None]
        share = median(seconds[phase] / max(1e-9, sum(seconds[1:])) for seconds in phases)
        if share < warn:
            return None
        steps = f"the median step takes {ms_text(pace(job).step_ms)}"
        return Finding(
            kind=kind, severity="warning", evidence=f"{share:.0%} of the time passes in {what}; {steps}", advice=advice
        )

    return judge


slow_save = _between_steps(
    "slow-save",
    4,
    thresholds.SAVE_WARN,
    "saves",
    "save less often or in the background (`windlass.Snapshot`), to a faster file system",
)
slow_evaluation = _between_steps(
    "slow-evaluation",
    3,
    thresholds.PAUSE_WARN,
    "evaluation",
    "evaluate less often or on fewer batches; all ranks can share the batches of an evaluation (DistributedSampler)",
)
pauses = _between_steps(
    "pauses",
    5,
    thresholds.PAUSE_WARN,
    "pauses between steps",
    "saves, evaluation or logging delay the ranks: do them less often, or in the background (`windlass.Snapshot`)",
)


def slow_start(job: Job) -> Finding | None:
    startup, whole = pace(job).startup_s or 0.0, job.at - job.started
    least = thresholds.STARTUP_S if job.ended else thresholds.STARTUP_LIVE_S
    if startup < least or startup < thresholds.STARTUP_SHARE * whole:
        return None
    return Finding(
        kind="slow-start",
        severity="warning",
        evidence=f"{startup:.0f} s of {whole:.0f} s passed before the first step",
        advice="`--cache ENVIRONMENT` reads it once for all nodes; `windlass doctor` measures the time of an import",
    )
