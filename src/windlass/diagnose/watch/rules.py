"""The rules for a slow run, for `watch` and `report` alike: each a pure function from figures to a finding or None.

A rule states what evidence it needs. Without it the rule reports nothing and is listed as not checked. Rules about
steps look at ranks that took enough steps. What only a running job shows is in `findings`, what only a whole run shows
is in `report.rules`. Thresholds and their reasons are in `thresholds`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import msgspec

from windlass.base.notation.counts import counted
from windlass.base.notation.cpulist import format_cpulist
from windlass.base.notation.hostlist import fold_hostlist
from windlass.diagnose.watch import thresholds
from windlass.model.finding import Finding
from windlass.node.sys.text import listed

ENOUGH_STEPS = 20
"""Below this the first steps, which compile and fill caches, decide every mean."""
_SHOWN = 8


class RankFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One rank that took steps. None: not measured."""

    rank: int
    host: str = ""
    steps: int = 0
    step_ms: float | None = None
    """Median of a step."""
    mean_ms: float | None = None
    p95_ms: float | None = None
    wait_share: float | None = None
    comm_share: float | None = None
    alloc_retries: int = 0


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules look at: the last samples of a running job, or all of a run that has ended."""

    ranks: tuple[RankFigures, ...] = ()
    hosts: tuple[str, ...] = ()
    ranks_per_node: int = 0
    cores_per_node: int = 0
    """0: not known."""
    slow: tuple[int, ...] = ()
    """Ranks that are slower than the others by themselves."""
    slow_because: str = ""
    uneven: bool = False
    """Some ranks wait for others, whichever these are: then what they measure as communication is waiting."""
    devices: int = 0
    idle: tuple[str, ...] = ()
    """Devices, as host and number, that did nothing while ranks took steps."""
    throttled: tuple[str, ...] = ()
    full: tuple[str, ...] = ()
    """Nodes whose memory is near its limit."""

    @property
    def oversubscribed(self) -> bool:
        return 0 < self.cores_per_node < self.ranks_per_node

    @property
    def steps(self) -> int:
        return max((rank.steps for rank in self.ranks), default=0)


class Rule(NamedTuple):
    """`lacks`: why the rule cannot be checked; empty where it can."""

    kind: str
    lacks: Callable[[Figures], str]
    judge: Callable[[Figures], Finding | None]


class Checked(NamedTuple):
    findings: tuple[Finding, ...]
    not_checked: tuple[str, ...]
    """`straggler: all ranks share one node`, one for each rule without its evidence."""


def check(figures: Figures) -> Checked:
    """Apply every rule that has its evidence."""
    lacking = {rule.kind: why for rule in RULES if (why := rule.lacks(figures))}
    found = [rule.judge(figures) for rule in RULES if rule.kind not in lacking]
    return Checked(
        tuple(finding for finding in found if finding is not None),
        tuple(f"{kind}: {why}" for kind, why in lacking.items()),
    )


def slow_ranks(own_ms: Mapping[int, float]) -> tuple[int, ...]:
    """Ranks whose own part of a step, without what they wait for others, is clearly longer than the median's. None
    where it is so for more than half of them."""
    if len(own_ms) < 2:
        return ()
    middle = median(own_ms.values())  # of two ranks one has to take twice as long as the other
    slow = tuple(rank for rank, ms in own_ms.items() if thresholds.is_straggler(ms, middle))
    return slow if 2 * len(slow) <= len(own_ms) else ()


# What a rule needs


def _no_steps(figures: Figures) -> str:
    if not figures.ranks:
        return "no step was seen"
    return "" if figures.steps >= ENOUGH_STEPS else f"fewer than {ENOUGH_STEPS} steps were seen"


def _no_comparison(figures: Figures) -> str:
    if len(figures.hosts) < 2:
        return "all ranks share one node"
    if figures.oversubscribed:
        return "a node has more ranks than cores"
    return _no_steps(figures)


def _no_wait(figures: Figures) -> str:
    measured = any(rank.wait_share is not None for rank in figures.ranks)
    return _no_steps(figures) or ("" if measured else "waiting for data was not measured")


def _no_network(figures: Figures) -> str:
    measured = any(rank.comm_share is not None for rank in figures.ranks)
    if figures.uneven:
        return "ranks wait for slower ones"
    return _no_comparison(figures) or ("" if measured else "communication was not measured")


def _no_devices(figures: Figures) -> str:
    return "" if figures.devices else "no device was sampled"


def _no_cores(figures: Figures) -> str:
    return "" if figures.cores_per_node else "the cores of a node are not known"


def _nothing(_: Figures) -> str:
    return ""


# The rules


def _oversubscribed(figures: Figures) -> Finding | None:
    if not figures.oversubscribed:
        return None
    return Finding(
        kind="oversubscribed",
        severity="warning",
        evidence=f"{figures.ranks_per_node} ranks share {counted(figures.cores_per_node, 'core')} of a node, so they "
        "take turns; speeds of single ranks mean nothing",
        advice="fewer ranks per node (-r), or nodes with more cores",
    )


def _input_bound(figures: Figures) -> Finding | None:
    known = [(rank.rank, rank.wait_share) for rank in figures.ranks if rank.wait_share is not None]
    middle = median(share for _, share in known)
    severity = thresholds.input_severity(middle)
    if severity is None:
        return None
    return Finding(
        kind="input-bound",
        severity=severity,
        evidence=f"ranks wait for data {middle:.0%} of the time (median of {counted(len(known), 'rank')})",
        advice="more DataLoader workers, as far as the cores of a rank go; data in the memory of the nodes "
        "(`windlass stage`), or read once for all of them (`--cache DIR --cache-placement partition`, and "
        "`{view}DIR` as the script's folder)",
        facts={"ranks": [rank for rank, share in known if thresholds.input_severity(share)]},
    )


def _input_straggler(figures: Figures) -> Finding | None:
    known = [(rank.rank, rank.wait_share) for rank in figures.ranks if rank.wait_share is not None]
    if len(known) < 2 or thresholds.input_severity(median(share for _, share in known)) is not None:
        return None
    alone = [(rank, share) for rank, share in known if thresholds.input_severity(share) == "error"]
    if not alone:
        return None
    return Finding(
        kind="input-straggler",
        severity="error",
        subject=ranks_text([rank for rank, _ in alone]),
        evidence=f"waits {max(share for _, share in alone):.0%} of a step for data, and all others with it",
        advice=f"its node's file system or CPUs: windlass exec --rank {alone[0][0]} -- top -b -n 1",
        facts={"ranks": [rank for rank, _ in alone]},
    )


def _straggler(figures: Figures) -> Finding | None:
    if not figures.slow:
        return None
    of_host = Counter(rank.host for rank in figures.ranks)
    hosts = Counter(rank.host for rank in figures.ranks if rank.rank in figures.slow)
    whole = [host for host, count in hosts.items() if host and count == of_host[host] and count > 1]
    advice = "`windlass doctor --full` on these nodes; clocks, temperature and neighbours; `run --spares` does without"
    node = len(whole) == len(hosts)
    subject = hosts_text(whole) if node else ranks_text(figures.slow)
    if not node and len(hosts) == 1 and (host := next(iter(hosts))):
        subject += f" on {host}"
    return Finding(
        kind="slow-node" if node else "straggler",
        severity="error",
        subject=subject,
        evidence=f"slower than the others by itself, and they wait for it ({figures.slow_because})",
        advice=advice,
        facts={"ranks": list(figures.slow), "hosts": sorted(hosts)},
    )


def _network_bound(figures: Figures) -> Finding | None:
    share = median(rank.comm_share for rank in figures.ranks if rank.comm_share is not None)
    severity = thresholds.network_severity(share)
    if severity is None:
        return None
    return Finding(
        kind="network-bound",
        severity=severity,
        evidence=f"communication that nothing hides takes {share:.0%} of a step (measured by DistributedDataParallel)",
        advice="`windlass bench collectives` tells whether the network is as it should be, `run --comm-log` whether "
        "the fabric's plugin is in use; a larger batch per rank, larger DDP buckets, `windlass tune`",
    )


def _pauses(figures: Figures) -> Finding | None:
    """Steps are timed from end to end, so that a save counts to the step after it: the mean then exceeds the median by
    far, and so do the slowest steps. A first step that compiles is one of many and does not."""
    shares = [
        (1 - rank.step_ms / rank.mean_ms, rank)
        for rank in figures.ranks
        if rank.step_ms and rank.mean_ms and rank.p95_ms and rank.p95_ms >= thresholds.PAUSE_STEPS * rank.step_ms
    ]
    if 2 * len(shares) <= len(figures.ranks):
        return None
    share, rank = sorted(shares, key=lambda pair: pair[0])[len(shares) // 2]
    if share < thresholds.PAUSE_WARN:
        return None
    return Finding(
        kind="pauses",
        severity="warning",
        evidence=f"{share:.0%} of the time passes between steps: the median step takes {ms_text(rank.step_ms)}, "
        f"the mean {ms_text(rank.mean_ms)}",
        advice="saves, evaluation or logging hold the ranks up: save less often or in the background "
        "(`windlass.Snapshot`), to a faster file system",
    )


def _memory(figures: Figures) -> Finding | None:
    if not figures.full:
        return None
    return Finding(
        kind="memory-pressure",
        severity=thresholds.FULL_NODE,
        subject=hosts_text(figures.full),
        evidence=f"more than {thresholds.MEMORY_SHARE:.0%} of the memory limit is in use",
        advice="the kernel kills a rank at 100%: fewer DataLoader workers, a smaller prefetch, or more memory",
        facts={"hosts": list(figures.full)},
    )


def _device_memory(figures: Figures) -> Finding | None:
    retried = [rank for rank in figures.ranks if rank.alloc_retries]
    if not retried:
        return None
    most = max(rank.alloc_retries for rank in retried)
    return Finding(
        kind="device-memory",
        severity=thresholds.ALLOC_RETRIES,
        subject=ranks_text([rank.rank for rank in retried]),
        evidence=f"device memory is full: torch had to free its cache and ask again (up to {counted(most, 'time')})",
        advice="a smaller batch, activation checkpointing, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        facts={"ranks": [rank.rank for rank in retried]},
    )


def _idle(figures: Figures) -> Finding | None:
    if not figures.idle:
        return None
    count = f"{len(figures.idle)} of {counted(figures.devices, 'device')}"
    return Finding(
        kind="idle-devices",
        severity=thresholds.IDLE,
        subject=listed(figures.idle, _SHOWN),
        evidence=f"{count} did nothing while ranks took steps (busy less than {thresholds.IDLE_BUSY:.0%} of the time)",
        advice="does the script use LOCAL_RANK for its device? `windlass logs --where` shows what each rank got",
    )


def _throttled(figures: Figures) -> Finding | None:
    if not figures.throttled:
        return None
    count = f"{len(figures.throttled)} of {counted(figures.devices, 'device')}"
    return Finding(
        kind="throttled-devices",
        severity=thresholds.THROTTLED,
        subject=listed(figures.throttled, _SHOWN),
        evidence=f"{count} lowered the clock for heat or power",
        advice="`windlass doctor` on that node; tell the site; `run --spares` can do without the node",
    )


RULES = (
    Rule("oversubscribed", _no_cores, _oversubscribed),
    Rule("memory-pressure", _nothing, _memory),
    Rule("input-bound", _no_wait, _input_bound),
    Rule("input-straggler", _no_wait, _input_straggler),
    Rule("straggler", _no_comparison, _straggler),
    Rule("network-bound", _no_network, _network_bound),
    Rule("idle-devices", _no_devices, _idle),
    Rule("throttled-devices", _no_devices, _throttled),
    Rule("pauses", _no_steps, _pauses),
    Rule("device-memory", _nothing, _device_memory),
)


# Words


def ranks_text(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    text = format_cpulist(ranks)
    return f"ranks {text}" if len(text) <= 40 else f"{len(ranks)} ranks ({format_cpulist(ranks[:4])}, …)"


def hosts_text(hosts: Sequence[str]) -> str:
    text = fold_hostlist(tuple(hosts))
    return text if len(text) <= 40 else f"{len(hosts)} nodes ({', '.join(hosts[:2])}, …)"


def ms_text(ms: float | None) -> str:
    """A duration as people read it."""
    if ms is None:
        return "-"
    if ms >= 10_000:
        return f"{ms / 1000:.1f} s"
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.1f} ms"
