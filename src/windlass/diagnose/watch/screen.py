"""The screen of `windlass watch`: the findings, then figures of the whole job, then the slowest ranks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from windlass.base.notation.counts import counted, local_time, size_text
from windlass.base.notation.style import for_terminal
from windlass.diagnose.watch.figures import ms_text, step_ms, wait_share
from windlass.diagnose.watch.job import Job, RankRow
from windlass.model.finding import INDENT, SERIOUS, Finding, Severity, finding_lines
from windlass.node.sys.text import listed

_COLOURS: dict[Severity, str] = {"error": "1;37;41", "warning": "30;43", "note": "36", "ok": "30;42"}
_MIN_WIDTH = 40
_MAX_ROWS = 64
_NAME = 16
_CELL = 10


def screen_text(
    job: Job, findings: Sequence[Finding], *, width: int = 80, height: int | None = None, colour: bool = False
) -> str:
    """Lines of at most `width` columns, and at most `height` lines if `height` is given."""
    width = max(_MIN_WIDTH, width)
    lines = [_head(job, findings, width), *_banner(findings, width), ""]
    lines += [line[:width] for line in _table(job, width)]
    room = _MAX_ROWS if height is None else height - len(lines)
    lines += [line[:width] for line in _ranks(job, room - len(_idle(job)) - 3)]
    lines += [line[:width] for line in _idle(job)]
    rest = findings[2 if _has_second(findings) else 1 :]
    if rest:
        lines += ["", *(_cut(finding_lines([one])[0], width) for one in rest)]
    if height is not None:
        lines = lines[: max(3, height)]
    shown = [for_terminal(line.rstrip()) for line in lines]  # names and texts of the run may contain terminal codes
    if findings and colour:
        word = findings[0].severity
        shown[1] = shown[1].replace(word, f"\x1b[{_COLOURS[word]}m{word}\x1b[0m", 1)
    return "\n".join(shown) + "\n"


def _head(job: Job, findings: Sequence[Finding], width: int) -> str:
    steps = [rank.steps for rank in job.ranks if rank.steps]
    components = len({one.subject for one in findings if one.kind == "component"})
    inside = counted(components, "component") if components else counted(len(job.ranks), "rank")
    parts = [job.name, counted(len(job.nodes), "node"), inside]
    if steps:
        parts.append(f"step {max(steps):,}")
    if job.ended:
        parts.append("ended")
    clock = local_time(job.at, "%H:%M:%S")
    left = _cut("  ".join(parts), width - len(clock) - 1)
    return left + clock.rjust(width - len(left))


def _banner(findings: Sequence[Finding], width: int) -> list[str]:
    """The most serious finding, what to do, and the next findings."""
    if not findings:
        return []
    first, *advice = finding_lines(findings[:1])
    lines = [_cut(first, width)]
    lines += [f"{INDENT}{part}" for line in advice for part in _wrapped(line.strip(), width - len(INDENT), 2)]
    return lines + ([_cut(finding_lines(findings[1:2])[0], width)] if _has_second(findings) else [])


def _has_second(findings: Sequence[Finding]) -> bool:
    return len(findings) > 1 and findings[1].severity in SERIOUS


def _table(job: Job, width: int) -> list[str]:
    """Quantiles over ranks, devices and nodes, and the item with the extreme value."""
    hosts = [node.host for node in job.nodes]

    def rank_name(at: int) -> str:
        return f"rank {job.ranks[at].rank} {hosts[job.ranks[at].node]}"

    def device_name(at: int) -> str:
        return f"{hosts[job.devices[at].node]}:{job.devices[at].index}"

    def node_name(at: int) -> str:
        return hosts[at]

    ranks, devices, nodes = job.ranks, job.devices, job.nodes
    rows = [
        _row("step ms", [step_ms(job, r) for r in ranks], rank_name),
        _row("data wait %", [_percent(wait_share(job, r)) for r in ranks], rank_name),
        _row("collectives %", [_percent(r.comm_share) for r in ranks], rank_name),
        _row("busy %", [_percent(d.busy) for d in devices], device_name, worst=min),
        _row("power W", [d.power_w for d in devices], device_name, worst=min),
        _row("device memory %", [_ratio(d.memory_bytes, d.memory_total_bytes) for d in devices], device_name),
        _row("node memory %", [_ratio(n.memory_bytes, n.memory_limit_bytes) for n in nodes], node_name),
        _row("node CPU %", [_percent(n.cpu) for n in nodes], node_name),
        _row("node power W", [n.power_w for n in nodes], node_name),
    ]
    head = "".ljust(_NAME) + "".join(name.rjust(_CELL) for name in ("low", "median", "high", "worst"))
    return [head, *(row for row in rows if row), *_totals(job)]


_ALWAYS = frozenset({"step ms", "data wait %", "collectives %"})
"""Rows that show "unknown" if no value is known."""


def _row(
    name: str,
    values: Sequence[float | None],
    who: Callable[[int], str],
    *,
    worst: Callable[[list[float]], float] = max,
) -> str:
    known = sorted(value for value in values if value is not None)
    if not known:
        return name.ljust(_NAME) + "unknown".rjust(_CELL) if values and name in _ALWAYS else ""
    at = [known[min(len(known) - 1, int(q * len(known)))] for q in (0.05, 0.5, 0.95)]
    extreme = worst(known)
    cut = "" if len(known) == len(values) else f" ({len(known)} of {len(values)})"
    cells = "".join(_number(value).rjust(_CELL) for value in (*at, extreme))
    return f"{name.ljust(_NAME)}{cells}  {who(values.index(extreme))}{cut}"


def _totals(job: Job) -> list[str]:
    """Network and disk traffic of the whole job."""
    sums = {
        "network": [(n.rx_bytes_s or 0.0) + (n.tx_bytes_s or 0.0) for n in job.nodes if n.rx_bytes_s is not None],
        "shared files": [
            (n.shared_read_bytes_s or 0.0) + (n.shared_write_bytes_s or 0.0)
            for n in job.nodes
            if n.shared_read_bytes_s is not None
        ],
        "local disks": [
            (n.disk_read_bytes_s or 0.0) + (n.disk_write_bytes_s or 0.0)
            for n in job.nodes
            if n.disk_read_bytes_s is not None
        ],
    }
    parts = [f"{name} {size_text(int(sum(values)))}/s" for name, values in sums.items() if values]
    return ["traffic".ljust(_NAME) + "  " + ", ".join(parts)] if parts else []


def _ranks(job: Job, room: int) -> list[str]:
    """All ranks if they fit, otherwise the slowest."""
    ranks = list(job.ranks)
    if not ranks or room < 3:
        return []
    title = "ranks"
    if len(ranks) > room:
        ranks.sort(
            key=lambda rank: (
                (rank.last_at or 0.0, -(rank.step_ms or 0.0)) if rank.step_ms is None else (1e18, -rank.step_ms)
            )
        )
        ranks, title = ranks[: min(room, 12)], "slowest ranks"
    head = f"{title:<14} {'node':<16} {'step':>9} {'wait':>5} {'comm':>5} {'cores':>6} {'memory':>9}  last"
    return ["", head, *(_rank_line(rank, job) for rank in ranks)]


def _rank_line(rank: RankRow, job: Job) -> str:
    last = {"python": "no step", "command": "unseen", "ended": "ended"}.get(rank.activity)
    if last is None:
        last = f"{max(0.0, job.at - (rank.last_at or job.at)):.0f} s ago"
    return (
        f"{rank.rank:<14} {job.nodes[rank.node].host[:16]:<16} {ms_text(step_ms(job, rank)):>9} "
        f"{_share(wait_share(job, rank)):>5} "
        f"{_share(rank.comm_share):>5} {'-' if rank.cpu is None else f'{rank.cpu:.1f}':>6} "
        f"{'-' if rank.memory_bytes is None else size_text(rank.memory_bytes):>9}  {last}"
    )


def _idle(job: Job) -> list[str]:
    """Idle devices."""
    idle = [device for device in job.devices if device.busy is not None and device.busy < 0.1]
    if not idle:
        return []
    names = [f"{job.nodes[device.node].host}:{device.index}" for device in idle]
    return ["", f"idle devices    {listed(names, 4)}"]


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else 100 * part / whole


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def _wrapped(text: str, width: int, most: int) -> list[str]:
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = "   " + word
        else:
            line = f"{line} {word}" if line else word
    lines.append(line)
    return [_cut(line, width) for line in lines[:most]]
