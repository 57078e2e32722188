"""Run torch's profiler over some steps of one rank. The start-up hook controls it, so the script is unchanged.

After a few steps of warm-up it records the requested number of steps. Then it writes a trace for a viewer (Perfetto,
chrome://tracing) and one page of text. The page shows which kernels took the time, how much of it is communication, how
much communication overlaps with computing, and how long the device was idle. It runs in the user's process and uses
only the standard library and the program's own torch. An error costs the profile, never the program.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

VARIABLE = "WINDLASS_PROFILE"
"""`STEPS:FOLDER`, set in the ranks that are profiled."""
WARM_UP = 3
_TOP = 15
_COMM = re.compile(r"nccl|rccl|oneccl|\bccl|gloo:|c10d::|all_?reduce|all_?gather|reduce_?scatter", re.IGNORECASE)


def from_environment(torch: Any) -> StepProfiler | None:
    """Return the profiler that was requested for this rank, or None."""
    environ = os.environ
    steps, _, folder = environ.get(VARIABLE, "").partition(":")
    if not steps.isdigit() or not folder or "RANK" not in environ:
        return None
    return StepProfiler(torch, folder, environ["RANK"], int(steps))


class StepProfiler:
    """Off, then on for `steps` steps, then off permanently."""

    def __init__(self, torch: Any, folder: str, rank: str, steps: int) -> None:
        self._torch, self._folder, self._rank, self._steps = torch, folder, rank, steps
        self._seen = 0
        self._profile: Any = None
        self._begin = 0.0
        self._pid = os.getpid()

    def after_step(self) -> None:
        """Count a completed step."""
        if self._steps <= 0 or os.getpid() != self._pid:
            return
        self._seen += 1
        try:
            if self._seen == WARM_UP:
                self._start()
            elif self._profile is not None and self._seen >= WARM_UP + self._steps:
                self.finish()
        except Exception as error:
            self._steps = 0
            sys.stderr.write("windlass: no profile of rank %s: %s: %s\n" % (self._rank, type(error).__name__, error))

    def finish(self) -> None:
        """Stop and write the profile. Also called at the end of a program that took fewer steps."""
        if self._profile is None:
            return
        profile, self._profile = self._profile, None
        taken, self._steps = min(self._seen - WARM_UP, self._steps), 0
        profile.stop()
        seconds = time.perf_counter() - self._begin
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        base = os.path.join(self._folder, "rank-%s" % self._rank)
        profile.export_chrome_trace(base + ".trace.json")
        summary = summarise(profile.events(), seconds, taken)
        with open(base + ".json", "w", encoding="utf-8") as file:
            json.dump(summary, file, indent=1)
        with open(base + ".txt", "w", encoding="utf-8") as file:
            file.write(page(summary, self._rank))

    def _start(self) -> None:
        torch = self._torch
        self._profile = torch.profiler.profile(activities=sorted(torch.profiler.supported_activities(), key=str))
        self._profile.start()
        self._begin = time.perf_counter()


def summarise(events: Iterable[Any], seconds: float, steps: int) -> dict[str, Any]:
    """Return the figures of a profile: times by name, and the time in which the device (or else the CPU) was busy.

    Work on a device is the time that torch measured there. Work on a CPU is the self time of a name, without the
    functions that it called.
    """
    everything = [event for event in events if event.time_range is not None and not _annotates(event)]
    on_device = [event for event in everything if "CPU" not in str(event.device_type)]
    chosen = on_device or everything
    names: dict[str, list[float]] = {}
    comm: list[Any] = []
    compute: list[Any] = []
    for event in chosen:
        span = (float(event.time_range.start), float(event.time_range.end))
        own = span[1] - span[0] if on_device else float(event.self_cpu_time_total)
        entry = names.setdefault(str(event.name), [0.0, 0.0])
        entry[0] += own
        entry[1] += 1
        (comm if _COMM.search(str(event.name)) else compute).append(span)
    busy_comm, busy_compute = union(comm), union(compute)
    both = length(union([*busy_comm, *busy_compute]))
    hidden = length(busy_comm) + length(busy_compute) - both
    wall = seconds * 1e6
    top = sorted(names.items(), key=lambda item: -item[1][0])[:_TOP]
    return {
        "version": 1,
        "steps": steps,
        "seconds": round(seconds, 6),
        "of": "device" if on_device else "cpu",
        "top": [{"name": name, "ms": round(us / 1000, 3), "calls": int(calls)} for name, (us, calls) in top],
        "total_ms": round(sum(us for us, _ in names.values()) / 1000, 3),
        "communication_share": round(min(1.0, length(busy_comm) / wall), 4) if wall else None,
        "communication_hidden": round(hidden / length(busy_comm), 4) if busy_comm else None,
        "idle_share": round(max(0.0, 1 - both / wall), 4) if wall and on_device else None,
        "longest_gap_ms": round(_longest_gap(union([*busy_comm, *busy_compute])) / 1000, 3) if on_device else None,
    }


def _annotates(event: Any) -> bool:
    """Return whether a span only labels the work of others (`Optimizer.step#SGD.step` on a device's own line)."""
    return "CPU" not in str(event.device_type) and bool(getattr(event, "is_user_annotation", False))


def union(spans: Iterable[Any]) -> list[Any]:
    """Merge spans into disjoint ones, in order."""
    found: list[Any] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def length(spans: Iterable[Any]) -> float:
    return float(sum(end - begin for begin, end in spans))


def _longest_gap(spans: list[Any]) -> float:
    gaps = [spans[n + 1][0] - spans[n][1] for n in range(len(spans) - 1)]
    return float(max(gaps, default=0.0))


def page(summary: dict[str, Any], rank: str) -> str:
    """Return the profile as one page of text."""
    steps, ms = summary["steps"], 1000 * summary["seconds"]
    lines = ["rank %s: %d steps in %.1f ms, %.2f ms a step (profiled)" % (rank, steps, ms, ms / max(1, steps)), ""]
    share, hidden = summary["communication_share"], summary["communication_hidden"]
    behind = "" if hidden is None else ", %s of it hidden behind computing" % _percent(hidden)
    lines.append("communication: %s of the time%s" % (_percent(share), behind))
    if summary["idle_share"] is not None:
        idle = (_percent(summary["idle_share"]), summary["longest_gap_ms"])
        lines.append("device idle:   %s of the time, longest gap %.2f ms" % idle)
    lines += ["", "%10s %7s %7s  %s" % ("ms", "share", "calls", "name (own time, %s)" % summary["of"])]
    total = summary["total_ms"] or 1.0
    for row in summary["top"]:
        lines.append("%10.2f %7s %7d  %s" % (row["ms"], _percent(row["ms"] / total), row["calls"], row["name"][:90]))
    lines += ["", "The trace in the same folder opens in Perfetto (ui.perfetto.dev) or chrome://tracing.", ""]
    return "\n".join(lines)


def _percent(share: float | None) -> str:
    return "?" if share is None else "%.1f%%" % (100 * share)
