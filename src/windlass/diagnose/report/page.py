"""A report as one self-contained HTML page: verdict, timeline, heat maps, stragglers, failures. Pure.

This module also writes the report as text for a terminal, and as a table for a proposal.
"""

from __future__ import annotations

from html import escape

from windlass.base.notation.counts import counted, duration_text
from windlass.base.notation.shell import quote_words
from windlass.base.pages.svg import Chart, Series, figures, heat_map, line_chart, whole_page
from windlass.diagnose.report.gather import AttemptLine, RankSummary, RunReport
from windlass.diagnose.report.measured import HeatMap, Span
from windlass.model.finding import findings_html

_SHOWN = 8


def report_text(report: RunReport, findings: list[str]) -> str:
    """The findings first, as the caller formatted them, then the figures that support them."""
    lines = [f"{report.name} on {report.site}: {size_text(report)}; {state_text(report)}", "", *findings, ""]
    lines += [f"{name + ':':<16}{value}" for name, value in figures_of(report)]
    if len(report.attempts) > 1 or any(attempt.cause for attempt in report.attempts):
        lines += ["", "starts:"]
        for attempt in report.attempts:
            took = f", {attempt.seconds:.0f} s" if attempt.seconds is not None else ""
            lines.append(f"  {attempt.number}: {attempt.outcome}{took}{'; ' + attempt.cause if attempt.cause else ''}")
            lines += [f"     recovery: {text}" for text in recovery_text(attempt)]
    slow = slowest(report)
    if slow:
        lines += ["", f"{'rank':>6} {'step ms':>9} {'waits for data':>15} {'communicates':>13}  node"]
        lines += [_rank_line(rank) for rank in slow]
    lines += [f"note: {note}" for note in report.notes]
    return "\n".join(lines)


def size_text(report: RunReport) -> str:
    components = sum(one.kind == "component" for one in report.findings)
    if components:
        return f"{counted(report.nodes, 'node')}, {counted(components, 'component')}"
    return f"{counted(report.nodes, 'node')} x {counted(report.ranks_per_node, 'rank')}"


def state_text(report: RunReport) -> str:
    why = f" ({report.why})" if report.why and not report.why.startswith("after") else ""
    return f"{report.state}{why}" + (f" after {duration_text(report.seconds)}" if report.seconds is not None else "")


def figures_of(report: RunReport) -> list[tuple[str, str]]:
    """Names and values of the known figures."""
    rows = [
        ("started", report.started),
        ("first step", f"after {duration_text(report.startup_s)}" if report.startup_s is not None else ""),
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
    """One row with the figures that a proposal needs. A dash means unknown."""
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
    """Ranks with the longest time without waiting. Empty if all ranks are similar."""
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


_RANKS = 20


def report_page(report: RunReport) -> str:
    """The whole page."""
    parts = [
        f'<p class="lead">{escape(size_text(report))} on {escape(report.site)}; {escape(state_text(report))}<br>'
        f"<code>{escape(command_text(report))}</code></p>",
        findings_html(report.findings),
        "<h2>Figures</h2>",
        _table([(name, value) for name, value in figures_of(report)]),
        *_timeline(report.measured.spans),
        *_heat(report.measured.heat),
        *_ranks(report),
        *_attempts(report),
        *_notes(report),
        _details(report),
    ]
    return whole_page(f"{report.name}: report of a run", parts)


def _timeline(spans: tuple[Span, ...]) -> list[str]:
    known = [span for span in spans if span.step_ms is not None]
    if not known:
        return []
    zero = known[0].begin
    ticks = tuple((span.begin - zero, _clock(span.begin - zero)) for span in known)
    step = Series(
        name="median rank",
        points=tuple((span.begin - zero, span.step_ms or 0.0) for span in known),
        band=tuple((span.begin - zero, span.low_ms or 0.0, span.high_ms or 0.0) for span in known),
    )
    drawn = [("Step time; the band reaches from the fastest to the slowest rank", _chart("step", "ms", (step,), ticks))]
    shares = tuple(
        Series(name=name, points=points)
        for name, points in (
            ("waits for data", tuple((s.begin - zero, 100 * s.wait_share) for s in known if s.wait_share is not None)),
            ("communicates", tuple((s.begin - zero, 100 * s.comm_share) for s in known if s.comm_share is not None)),
        )
        if points
    )
    if shares:
        drawn.append(("Parts of a step, mean over the ranks", _chart("parts of a step", "% of a step", shares, ticks)))
    return ["<h2>Over time</h2>", *figures(drawn)]


def _chart(title: str, unit: str, series: tuple[Series, ...], ticks: tuple[tuple[float, str], ...]) -> str:
    return line_chart(
        Chart(title=title, x_name="minutes since the first step", y_name=unit, series=series, ticks=ticks)
    )


def _heat(maps: tuple[HeatMap, ...]) -> list[str]:
    if not maps:
        return []
    drawn = []
    for heat in maps:
        zero = heat.times[0]
        ticks = [_clock(at - zero) for at in heat.times]
        top = 100.0 if heat.unit == "%" else max((c for row in heat.cells for c in row if c is not None), default=1.0)
        drawn.append(
            (
                f"{heat.what}, 0 to {top:.0f} {heat.unit}",
                heat_map(heat.what, heat.rows, ticks, heat.cells, top, heat.unit),
            )
        )
    return ["<h2>Devices and nodes</h2>", *figures(drawn)]


def _ranks(report: RunReport) -> list[str]:
    slow = slowest(report, _RANKS)
    if len(slow) < 2:
        return []
    rows = "".join(
        f"<tr><td>{rank.rank}</td><td>{escape(rank.host)}</td><td>{_number(rank.own_ms)}</td><td>{_number(rank.step_ms)}</td>"
        f"<td>{_percent(rank.wait_share)}</td><td>{_percent(rank.comm_share)}</td><td>{_number(rank.cpu)}</td></tr>"
        for rank in slow
    )
    head = "".join(
        f"<th>{name}</th>"
        for name in ("rank", "node", "own ms", "step ms", "waits for data", "communicates", "busy cores")
    )
    title = f"The {len(slow)} ranks with the longest own time, of {report.world_size}"
    return [f"<h2>Ranks</h2><p class=soft>{title}</p><table><tr>{head}</tr>{rows}</table>"]


_COLUMNS = ("start", "ended", "after", "because", "then", "saved up to step", "recovery")


def recovery_text(attempt: AttemptLine) -> tuple[str, ...]:
    """What the recovery after this start cost, or nothing."""
    if not attempt.recovery:
        return ()
    parts = ", ".join(f"{part} {seconds:.2f} s" for part, seconds in attempt.recovery.items())
    return (f"{sum(attempt.recovery.values()):.2f} s ({parts})",)


def _attempts(report: RunReport) -> list[str]:
    if len(report.attempts) < 2 and not any(attempt.cause for attempt in report.attempts):
        return []
    rows = "".join(
        f"<tr><td>{a.number}</td><td>{escape(a.outcome)}</td><td>{escape(duration_text(a.seconds))}</td>"
        f"<td>{escape(a.cause)}</td><td>{escape(a.then)}</td><td>{'' if a.to_step is None else a.to_step}</td>"
        f"<td>{''.join(recovery_text(a))}</td></tr>"
        for a in report.attempts
    )
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    return [f"<h2>Starts and failures</h2><table><tr>{head}</tr>{rows}</table>"]


def _notes(report: RunReport) -> list[str]:
    return [f'<p class="soft">{escape(note)}</p>' for note in report.notes]


def _details(report: RunReport) -> str:
    rows = [
        ("run folder", report.path),
        ("job", report.job_id or ""),
        ("partition", report.partition or ""),
        ("scheduler, launcher", f"{report.scheduler}, {report.launcher}"),
        ("container", report.container or ""),
        ("hosts", report.hosts),
    ]
    return f"<details><summary>what ran where</summary>{_table([row for row in rows if row[1]])}</details>"


def _table(rows: list[tuple[str, str]]) -> str:
    body = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<table>{body}</table>"


def _clock(seconds: float) -> str:
    """A short form for an axis: `4:05`, `3:07:00`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{share:.0%}"
