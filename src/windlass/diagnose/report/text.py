"""A report as text for a terminal, and as the table that people paste into proposals. Pure."""

from __future__ import annotations

from windlass.base.notation.counts import counted, duration_text
from windlass.base.notation.shell import quote_words
from windlass.diagnose.report.gather import RankSummary, RunReport

_SHOWN = 8


def report_text(report: RunReport, findings: list[str]) -> str:
    """The findings first, as the caller rendered them, then the figures behind them."""
    lines = [f"{report.name} on {report.site}: {size_text(report)}; {state_text(report)}", "", *findings, ""]
    lines += [f"{name + ':':<16}{value}" for name, value in figures_of(report)]
    if len(report.attempts) > 1 or any(attempt.cause for attempt in report.attempts):
        lines += ["", "starts:"]
        for attempt in report.attempts:
            took = f", {attempt.seconds:.0f} s" if attempt.seconds is not None else ""
            lines.append(f"  {attempt.number}: {attempt.outcome}{took}{'; ' + attempt.cause if attempt.cause else ''}")
    slow = slowest(report)
    if slow:
        lines += ["", f"{'rank':>6} {'step ms':>9} {'waits for data':>15} {'communicates':>13}  node"]
        lines += [_rank_line(rank) for rank in slow]
    lines += [f"note: {note}" for note in report.notes]
    return "\n".join(lines)


def size_text(report: RunReport) -> str:
    return f"{counted(report.nodes, 'node')} x {counted(report.ranks_per_node, 'rank')}"


def state_text(report: RunReport) -> str:
    why = f" ({report.why})" if report.why and not report.why.startswith("after") else ""
    return f"{report.state}{why}" + (f" after {duration_text(report.seconds)}" if report.seconds is not None else "")


def figures_of(report: RunReport) -> list[tuple[str, str]]:
    """Names and values of what is known."""
    rows = [
        ("started", report.started),
        ("first step", f"seen after {duration_text(report.startup_s)}" if report.startup_s is not None else ""),
        ("steps", f"{report.steps:,}" if report.steps else ""),
        ("step", _step(report)),
        ("waits for data", _share(report.wait_share)),
        ("communicates", _share(report.comm_share)),
        ("devices busy", _share(report.measured.device_busy)),
        ("node hours", f"{report.node_hours:.2f}" if report.node_hours is not None else ""),
        ("device hours", f"{report.device_hours:.2f}" if report.device_hours is not None else ""),
        ("energy", energy_text(report)),
        ("efficiency", _efficiency(report)),
        ("saved", f"step {report.saved_step}" if report.saved_step is not None else ""),
        ("restarts", str(len(report.attempts) - 1) if len(report.attempts) > 1 else ""),
        ("hosts", report.hosts),
        ("profiles", ", ".join(report.profiles)),
    ]
    return [(name, value) for name, value in rows if value]


def jobreport_text(report: RunReport) -> str:
    """One row of what a proposal asks for; a dash where it is not known."""
    power = report.measured.device_power_w
    columns = [
        ("Job", report.job_id or report.name),
        ("System", report.site + (f"/{report.partition}" if report.partition else "")),
        ("Nodes", str(report.nodes)),
        ("Ranks", str(report.world_size)),
        ("Devices", str(report.devices) if report.devices else "-"),
        ("Elapsed", duration_text(report.seconds) if report.seconds is not None else "-"),
        ("Node-h", f"{report.node_hours:.2f}" if report.node_hours is not None else "-"),
        ("Device busy", _share(report.measured.device_busy) or "-"),
        ("Device W", f"{power:.0f}" if power is not None else "-"),
        ("Energy kWh", f"{report.energy_kwh:.3f} ({report.energy_of})" if report.energy_kwh is not None else "-"),
        ("Step ms", f"{report.step_ms:.1f}" if report.step_ms is not None else "-"),
        ("Data wait", _share(report.wait_share) or "-"),
        ("Comm.", _share(report.comm_share) or "-"),
        ("Efficiency", f"{report.against.efficiency:.2f}" if report.against else "-"),
        ("State", report.state),
    ]
    widths = [max(len(name), len(value)) for name, value in columns]
    head = " | ".join(f"{name:<{width}}" for (name, _), width in zip(columns, widths, strict=True))
    row = " | ".join(f"{value:<{width}}" for (_, value), width in zip(columns, widths, strict=True))
    rule = "-|-".join("-" * width for width in widths)
    return f"| {head} |\n|-{rule}-|\n| {row} |"


def slowest(report: RunReport, most: int = _SHOWN) -> list[RankSummary]:
    """Ranks with the longest own time; none where all are alike."""
    known = [rank for rank in report.ranks if rank.step_ms is not None]
    return sorted(known, key=lambda rank: -(rank.own_ms or 0.0))[:most] if len(known) > 1 else known


def command_text(report: RunReport) -> str:
    return quote_words(report.command)


def energy_text(report: RunReport) -> str:
    if report.energy_kwh is None:
        return ""
    amount = f"{report.energy_kwh * 1000:.1f} Wh" if report.energy_kwh < 0.1 else f"{report.energy_kwh:.2f} kWh"
    return f"{amount} of the {report.energy_of}"


def _step(report: RunReport) -> str:
    if report.step_ms is None:
        return ""
    tail = f", 95 % under {report.p95_ms:.1f} ms" if report.p95_ms is not None else ""
    return f"{report.step_ms:.1f} ms (median){tail}"


def _efficiency(report: RunReport) -> str:
    other = report.against
    if other is None:
        return ""
    return (
        f"{other.efficiency:.2f} against {other.name} on {counted(other.nodes, 'node')} ({other.step_ms:.1f} ms a step)"
    )


def _share(share: float | None) -> str:
    return f"{share:.1%}" if share is not None else ""


def _rank_line(rank: RankSummary) -> str:
    wait, comm = _share(rank.wait_share) or "?", _share(rank.comm_share) or "?"
    return f"{rank.rank:>6} {rank.step_ms:>9.1f} {wait:>15} {comm:>13}  {rank.host}"
