"""What is worst in a job, and what to do about it: rules over its rows, the most serious finding first. Pure.

What stands out in a figure is settled in `thresholds`, for the report too; what only a running job shows is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from windlass.base.notation.cpulist import format_cpulist
from windlass.base.notation.hostlist import fold_hostlist
from windlass.diagnose.watch import thresholds
from windlass.diagnose.watch.job import Job, RankRow
from windlass.model.finding import SERIOUS, Finding, worst_first

STALL_STEPS, STALL_S = 5.0, 120.0
LOST_INTERVALS, LOST_S = 4.0, 30.0
CPU_FULL = 0.97
_MAX_NAMED = 8


def find(job: Job) -> tuple[Finding, ...]:
    """All findings, the most serious first; one that says so where nothing stands out."""
    found = worst_first(finding for rule in _RULES for finding in rule(job))
    return found if any(finding.severity in SERIOUS for finding in found) else (_all_well(job), *found)


def _all_well(job: Job) -> Finding:
    steps = [rank.step_ms for rank in job.ranks if rank.step_ms is not None]
    if job.ended:
        return Finding(severity="ok", kind="ended", evidence="the run has ended" + (_paces(job) if steps else ""))
    if steps:
        return Finding(severity="ok", kind="steady", evidence=f"nothing stands out{_paces(job)}")
    if not any(node.at for node in job.nodes):
        return Finding(severity="note", kind="starting", evidence="no sample has come yet: the agents are starting")
    return Finding(severity="note", kind="starting", evidence="no step has been seen yet: the ranks are starting")


def _paces(job: Job) -> str:
    steps = [rank.step_ms for rank in job.ranks if rank.step_ms is not None]
    return f": steps of {ms_text(median(steps))}"


def _active(job: Job) -> list[RankRow]:
    return [rank for rank in job.ranks if rank.activity in {"steps", "ended"} and rank.step_ms is not None]


def _stalled(job: Job) -> list[Finding]:
    if job.ended:
        return []
    late: list[RankRow] = []
    for rank in job.ranks:
        if rank.activity != "steps" or rank.step_ms is None:
            continue
        age = job.at - (rank.last_at or job.at)
        if age > max(STALL_S, STALL_STEPS * (rank.step_ms or 0) / 1000):
            late.append(rank)
    if not late:
        return []
    age = max(job.at - (rank.last_at or job.at) for rank in late)
    behind = min(rank.steps for rank in late)
    first = [rank for rank in late if rank.steps == behind]
    who = _who(first) if len(first) < len(late) else _who(late)
    return [
        Finding(
            severity="error",
            kind="stalled",
            subject=who,
            evidence=f"stopped first, after step {behind:,}; no step for {age:.0f} s",
            advice=f"where: windlass exec --rank {first[0].rank} -- sh -c 'py-spy dump --pid $WINDLASS_RANK_PID'; "
            "`run --hang-after` asks all ranks",
            facts={"ranks": [rank.rank for rank in first]},
        )
    ]


def _lost(job: Job) -> list[Finding]:
    if job.ended:
        return []
    limit = max(LOST_S, LOST_INTERVALS * job.interval_s)
    hosts = tuple(node.host for node in job.nodes if node.at and job.at - node.at > limit)
    if not hosts:
        return []
    return [
        Finding(
            severity="error",
            kind="lost",
            subject=_hosts(hosts),
            evidence=f"sent no sample for more than {limit:.0f} s",
            advice="is the node gone, or its agent? `windlass exec --node HOST -- uptime` asks it",
            facts={"hosts": hosts},
        )
    ]


def _memory(job: Job) -> list[Finding]:
    full = [node for node in job.nodes if thresholds.is_full(node.memory_bytes, node.memory_limit_bytes)]
    found: list[Finding] = []
    if full and not job.ended:
        worst = max(full, key=lambda node: (node.memory_bytes or 0) / (node.memory_limit_bytes or 1))
        share = (worst.memory_bytes or 0) / (worst.memory_limit_bytes or 1)
        found.append(
            Finding(
                severity=thresholds.FULL_NODE,
                kind="memory",
                subject=_hosts([node.host for node in full]),
                evidence=f"{share:.0%} of the memory limit is in use",
                advice="the kernel kills a rank at 100%: fewer loader workers, a smaller prefetch, or more memory",
                facts={"hosts": [node.host for node in full]},
            )
        )
    retried = [rank for rank in job.ranks if rank.alloc_retries]
    if retried:
        found.append(
            Finding(
                severity=thresholds.ALLOC_RETRIES,
                kind="device-memory",
                subject=_who(retried),
                evidence="device memory is full: torch had to free its cache and ask again",
                advice="each time stops the device: a smaller batch, or "
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
                facts={"ranks": [rank.rank for rank in retried]},
            )
        )
    return found


def _input(job: Job) -> list[Finding]:
    shares = [(rank, rank.all_wait_share if job.ended else rank.wait_share) for rank in _active(job)]
    known = [(rank, share) for rank, share in shares if share is not None]
    if not known:
        return []
    middle = median(share for _, share in known)
    severity = thresholds.input_severity(middle)
    if severity is not None:
        return [
            Finding(
                severity=severity,
                kind="input",
                evidence=f"ranks wait {middle:.0%} of each step for data",
                advice="more DataLoader workers (as far as cores go), or the data on the nodes: windlass stage",
                facts={"ranks": [rank.rank for rank, share in known if thresholds.input_severity(share)]},
            )
        ]
    alone = [rank for rank, share in known if thresholds.input_severity(share) == "error"]
    if not alone:
        return []
    share = max(rank.wait_share or 0.0 for rank in alone)
    return [
        Finding(
            severity="error",
            kind="input-straggler",
            subject=_who(alone),
            evidence=f"waits {share:.0%} of a step for data, and all others with it",
            advice=f"its node's file system or CPUs: windlass exec --rank {alone[0].rank} -- top -b -n 1",
            facts={"ranks": [rank.rank for rank in alone]},
        )
    ]


def _stragglers(job: Job) -> list[Finding]:
    ranks = _active(job)
    if len(ranks) < 2:
        return []
    middle = median(rank.step_ms or 0.0 for rank in ranks)
    slow = [rank for rank in ranks if thresholds.is_straggler(rank.step_ms or 0.0, middle)]
    if not slow or len(slow) * 2 >= len(ranks):
        return _least_waiting(ranks)
    worst = max(slow, key=lambda rank: rank.step_ms or 0.0)
    return [
        Finding(
            severity="error",
            kind="straggler",
            subject=_who(slow),
            evidence=f"takes {ms_text(worst.step_ms)} a step, the median rank {ms_text(middle)}",
            advice="look at clocks, temperature and neighbours of its node; `run --spares` can do without it",
            facts={"ranks": [rank.rank for rank in slow]},
        )
    ]


def _least_waiting(ranks: Sequence[RankRow]) -> list[Finding]:
    """In step with each other, all ranks take equally long: the slow one is the one that waits for nobody."""
    known = [(rank, rank.comm_share) for rank in ranks if rank.comm_share is not None]
    if len(known) < len(ranks) or len(known) < 3:
        return []
    middle = median(share for _, share in known)
    least, share = min(known, key=lambda pair: pair[1])
    if (
        middle < thresholds.COMM_WARN
        or share > middle / 4
        or sum(s < middle / 2 for _, s in known) > max(1, len(known) // 8)
    ):
        return []
    return [
        Finding(
            severity="error",
            kind="straggler",
            subject=_who([least]),
            evidence=f"waits {share:.0%} of a step for others, which wait {middle:.0%} for it",
            advice="look at clocks, temperature and neighbours of its node; `run --spares` can do without it",
            facts={"ranks": [least.rank]},
        )
    ]


def _network(job: Job) -> list[Finding]:
    shares = [rank.comm_share for rank in _active(job) if rank.comm_share is not None]
    severity = thresholds.network_severity(median(shares)) if shares else None
    if severity is None or _stragglers(job):
        return []
    return [
        Finding(
            severity=severity,
            kind="network",
            evidence=f"{median(shares):.0%} of a step is communication that no computing hides",
            advice="is the fabric's plugin in use (run --comm-log)? larger batches or buckets, fewer synchronisations",
        )
    ]


def _devices(job: Job) -> list[Finding]:
    found: list[Finding] = []
    hot = [device for device in job.devices if device.throttled]
    if hot:
        hosts = tuple(dict.fromkeys(job.nodes[device.node].host for device in hot))
        found.append(
            Finding(
                severity=thresholds.THROTTLED,
                kind="throttled",
                subject=_hosts(hosts),
                evidence=f"slowed down for heat or power: {len(hot)} of {len(job.devices)} devices",
                advice="tell the site; `run --spares` can do without the node",
                facts={"hosts": hosts},
            )
        )
    known = [(device, device.busy) for device in job.devices if device.busy is not None]
    idle = [device for device, busy in known if thresholds.is_idle(busy)]
    if idle and _active(job) and not job.ended:
        hosts = tuple(dict.fromkeys(job.nodes[device.node].host for device in idle))
        found.append(
            Finding(
                severity=thresholds.IDLE,
                kind="idle",
                subject=_hosts(hosts),
                evidence=f"{len(idle)} of {len(known)} devices are idle",
                advice="does every rank use a device of its own? `windlass logs --where` shows who has which",
                facts={"hosts": hosts},
            )
        )
    return found


def _unseen(job: Job) -> list[Finding]:
    unseen = [rank for rank in job.ranks if rank.activity == "command"]
    if not unseen:
        return []
    return [
        Finding(
            severity="note",
            kind="unseen",
            subject=_who(unseen),
            evidence="steps are not seen: no Python there, or one with -I, -E or -S",
            advice="call windlass.step() in the training loop",
            facts={"ranks": [rank.rank for rank in unseen]},
        )
    ]


def _cpus(job: Job) -> list[Finding]:
    full = [node.host for node in job.nodes if (node.cpu or 0.0) > CPU_FULL]
    if not full or job.ended:
        return []
    return [
        Finding(
            severity="note",
            kind="cpu",
            subject=_hosts(full),
            evidence="all CPUs are busy",
            advice="fewer threads or loader workers per rank, if steps are slower than they should be",
            facts={"hosts": full},
        )
    ]


def _notes(job: Job) -> list[Finding]:
    return [Finding(severity="note", kind="note", subject=note.nodes, evidence=note.text) for note in job.notes]


_RULES: tuple[Callable[[Job], list[Finding]], ...] = (
    _lost,
    _stalled,
    _memory,
    _input,
    _stragglers,
    _network,
    _devices,
    _unseen,
    _cpus,
    _notes,
)


def _who(ranks: Sequence[RankRow]) -> str:
    numbers = [rank.rank for rank in ranks]
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    text = format_cpulist(numbers)
    return f"ranks {text}" if len(text) <= 40 else f"{len(numbers)} ranks ({format_cpulist(numbers[:4])}, …)"


def _hosts(hosts: Sequence[str]) -> str:
    text = fold_hostlist(tuple(hosts))
    return text if len(text) <= 40 else f"{len(hosts)} nodes ({', '.join(hosts[:2])}, …)"


def ms_text(ms: float | None) -> str:
    """A duration as people read it."""
    if ms is None:
        return "-"
    if ms >= 10_000:
        return f"{ms / 1000:.1f} s"
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.1f} ms"
