"""A report as one HTML page that needs nothing else: verdict, timeline, heat maps, stragglers, failures. Pure."""

from __future__ import annotations

from html import escape

from windlass.base.notation.counts import duration_text
from windlass.base.pages.svg import Chart, Series, figures, heat_map, line_chart, whole_page
from windlass.diagnose.report.gather import RunReport
from windlass.diagnose.report.measured import HeatMap, Span
from windlass.diagnose.report.text import command_text, figures_of, size_text, slowest, state_text
from windlass.model.finding import findings_html

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


def _attempts(report: RunReport) -> list[str]:
    if len(report.attempts) < 2 and not any(attempt.cause for attempt in report.attempts):
        return []
    rows = "".join(
        f"<tr><td>{a.number}</td><td>{escape(a.outcome)}</td><td>{escape(duration_text(a.seconds))}</td>"
        f"<td>{escape(a.cause)}</td><td>{escape(a.then)}</td><td>{'' if a.to_step is None else a.to_step}</td></tr>"
        for a in report.attempts
    )
    head = "".join(f"<th>{name}</th>" for name in ("start", "ended", "after", "because", "then", "saved up to step"))
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
    """Short enough for an axis: `4:05`, `3:07:00`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{share:.0%}"
