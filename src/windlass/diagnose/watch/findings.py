"""What is worst in a job, and what to do about it: rules over its rows, the most serious finding first. Pure.

What stands out in a figure is settled in `thresholds`, for the report too; what only a running job shows is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Literal

import msgspec

from windlass.base.notation.cpulist import format_cpulist
from windlass.base.notation.hostlist import fold_hostlist
from windlass.diagnose.watch import thresholds
from windlass.diagnose.watch.job import Job, RankRow

Level = Literal["bad", "warn", "note", "ok"]
_ORDER: dict[Level, int] = {"bad": 0, "warn": 1, "note": 2, "ok": 3}

STALL_STEPS, STALL_S = 5.0, 120.0
LOST_INTERVALS, LOST_S = 4.0, 30.0
CPU_FULL = 0.97
_MAX_NAMED = 8


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that stands out."""

    level: Level
    kind: str
    text: str
    hint: str = ""
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()


def find(job: Job) -> tuple[Finding, ...]:
    """All findings, the most serious first; one that says so where nothing stands out."""
    found = [finding for rule in _RULES for finding in rule(job)]
    found.sort(key=lambda finding: _ORDER[finding.level])
    serious = [finding for finding in found if finding.level in {"bad", "warn"}]
    return tuple(found if serious else [_all_well(job), *found])


def _all_well(job: Job) -> Finding:
    steps = [rank.step_ms for rank in job.ranks if rank.step_ms is not None]
    if job.ended:
        return Finding(level="ok", kind="ended", text="the run has ended" + (_paces(job) if steps else ""))
    if steps:
        return Finding(level="ok", kind="steady", text=f"nothing stands out{_paces(job)}")
    if not any(node.at for node in job.nodes):
        return Finding(level="note", kind="starting", text="no sample has come yet: the agents are starting")
    return Finding(level="note", kind="starting", text="no step has been seen yet: the ranks are starting")


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
            level="bad",
            kind="stalled",
            text=f"no step for {age:.0f} s; {who} stopped first, after step {behind:,}",
            hint=f"where: windlass exec --rank {first[0].rank} -- sh -c 'py-spy dump --pid $WINDLASS_RANK_PID'; "
            "`run --hang-after` asks all ranks",
            ranks=tuple(rank.rank for rank in first),
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
            level="bad",
            kind="lost",
            text=f"{_hosts(hosts)} sent no sample for more than {limit:.0f} s",
            hint="is the node gone, or its agent? `windlass exec --node HOST -- uptime` asks it",
            hosts=hosts,
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
                level=thresholds.FULL_NODE,
                kind="memory",
                text=f"{_hosts([node.host for node in full])}: {share:.0%} of the memory limit is in use",
                hint="the kernel kills a rank at 100%: fewer loader workers, a smaller prefetch, or more memory",
                hosts=tuple(node.host for node in full),
            )
        )
    retried = [rank for rank in job.ranks if rank.alloc_retries]
    if retried:
        found.append(
            Finding(
                level=thresholds.ALLOC_RETRIES,
                kind="device-memory",
                text=f"device memory is full on {_who(retried)}: torch had to free its cache and ask again",
                hint="each time stops the device: a smaller batch, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
                ranks=tuple(rank.rank for rank in retried),
            )
        )
    return found


def _input(job: Job) -> list[Finding]:
    shares = [(rank, rank.all_wait_share if job.ended else rank.wait_share) for rank in _active(job)]
    known = [(rank, share) for rank, share in shares if share is not None]
    if not known:
        return []
    middle = median(share for _, share in known)
    level = thresholds.input_level(middle)
    if level is not None:
        return [
            Finding(
                level=level,
                kind="input",
                text=f"ranks wait {middle:.0%} of each step for data",
                hint="more DataLoader workers (as far as cores go), or the data on the nodes: windlass stage",
                ranks=tuple(rank.rank for rank, share in known if thresholds.input_level(share)),
            )
        ]
    alone = [rank for rank, share in known if thresholds.input_level(share) == "bad"]
    if not alone:
        return []
    share = max(rank.wait_share or 0.0 for rank in alone)
    return [
        Finding(
            level="bad",
            kind="input-straggler",
            text=f"{_who(alone)} waits {share:.0%} of a step for data, and all others with it",
            hint=f"its node's file system or CPUs: windlass exec --rank {alone[0].rank} -- top -b -n 1",
            ranks=tuple(rank.rank for rank in alone),
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
            level="bad",
            kind="straggler",
            text=f"{_who(slow)} takes {ms_text(worst.step_ms)} a step, the median rank {ms_text(middle)}",
            hint="look at clocks, temperature and neighbours of its node; `run --spares` can do without it",
            ranks=tuple(rank.rank for rank in slow),
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
            level="bad",
            kind="straggler",
            text=f"the others wait {middle:.0%} of a step for {_who([least])}, which waits {share:.0%}",
            hint="look at clocks, temperature and neighbours of its node; `run --spares` can do without it",
            ranks=(least.rank,),
        )
    ]


def _network(job: Job) -> list[Finding]:
    shares = [rank.comm_share for rank in _active(job) if rank.comm_share is not None]
    level = thresholds.network_level(median(shares)) if shares else None
    if level is None or _stragglers(job):
        return []
    return [
        Finding(
            level=level,
            kind="network",
            text=f"{median(shares):.0%} of a step is communication that no computing hides",
            hint="is the fabric's plugin in use (run --comm-log)? larger batches or buckets, fewer synchronisations",
        )
    ]


def _devices(job: Job) -> list[Finding]:
    found: list[Finding] = []
    hot = [device for device in job.devices if device.throttled]
    if hot:
        hosts = tuple(dict.fromkeys(job.nodes[device.node].host for device in hot))
        found.append(
            Finding(
                level=thresholds.THROTTLED,
                kind="throttled",
                text=f"slowed down for heat or power: {len(hot)} of {len(job.devices)} devices, on {_hosts(hosts)}",
                hint="tell the site; `run --spares` can do without the node",
                hosts=hosts,
            )
        )
    known = [(device, device.busy) for device in job.devices if device.busy is not None]
    idle = [device for device, busy in known if thresholds.is_idle(busy)]
    if idle and _active(job) and not job.ended:
        hosts = tuple(dict.fromkeys(job.nodes[device.node].host for device in idle))
        found.append(
            Finding(
                level=thresholds.IDLE,
                kind="idle",
                text=f"idle: {len(idle)} of {len(known)} devices, on {_hosts(hosts)}",
                hint="does every rank use a device of its own? `windlass logs --where` shows who has which",
                hosts=hosts,
            )
        )
    return found


def _unseen(job: Job) -> list[Finding]:
    unseen = [rank for rank in job.ranks if rank.activity == "command"]
    if not unseen:
        return []
    return [
        Finding(
            level="note",
            kind="unseen",
            text=f"steps of {_who(unseen)} are not seen: no Python there, or one with -I, -E or -S",
            hint="call windlass.step() in the training loop",
            ranks=tuple(rank.rank for rank in unseen),
        )
    ]


def _cpus(job: Job) -> list[Finding]:
    full = [node.host for node in job.nodes if (node.cpu or 0.0) > CPU_FULL]
    if not full or job.ended:
        return []
    return [
        Finding(
            level="note",
            kind="cpu",
            text=f"all CPUs of {_hosts(full)} are busy",
            hint="fewer threads or loader workers per rank, if steps are slower than they should be",
            hosts=tuple(full),
        )
    ]


def _notes(job: Job) -> list[Finding]:
    return [
        Finding(level="note", kind="note", text=f"{note.text} ({note.nodes})" if note.nodes else note.text)
        for note in job.notes
    ]


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
