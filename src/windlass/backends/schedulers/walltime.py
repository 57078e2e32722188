"""Parse time limits from users, and format them for each scheduler. Pure."""

from __future__ import annotations

import re

from windlass.errors import UsageError

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_WITH_UNITS = re.compile(r"(?:\d+(?:\.\d+)?[dhms])+\Z")
_PART = re.compile(r"(\d+(?:\.\d+)?)([dhms])")
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?\Z")
_HINT = "write minutes (30), H:MM:SS (1:30:00), D-HH:MM:SS (1-12:00:00) or units (2h, 90m, 1h30m)"

_MAX_LENGTH = 40


def parse_walltime(text: str) -> int:
    """Return seconds. Raises a `UsageError` for any other form and for zero time.

    `30` is minutes, `30:00` minutes and seconds, `1:30:00` hours first, `1-12` and `1-12:00:00` days first, as in
    Slurm. `2h`, `90m` and `1h30m` have units."""
    cleaned = text.strip().lower()
    if len(cleaned) > _MAX_LENGTH:
        raise UsageError(f"not a time limit: {text[:20]!r}…", hint=_HINT)
    if _WITH_UNITS.match(cleaned):
        seconds = round(sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(cleaned)))
    else:
        seconds = _clock_seconds(cleaned, text)
    if seconds <= 0:
        raise UsageError(f"time limit {text!r} is shorter than a second", hint=_HINT)
    return seconds


def _clock_seconds(cleaned: str, text: str) -> int:
    match = _CLOCK.match(cleaned)
    if not match:
        raise UsageError(f"not a time limit: {text!r}", hint=_HINT)
    days, first, second, third = (int(part) if part is not None else None for part in match.groups())
    if days is not None:
        hours, minutes, seconds = first or 0, second or 0, third or 0
    elif third is not None:
        hours, minutes, seconds = first or 0, second or 0, third
    else:
        hours, minutes, seconds = 0, first or 0, second or 0
    parts = [part for part in (second, third) if part is not None]
    if any(part > 59 for part in parts) or (days is not None and hours > 23):
        raise UsageError(f"not a time limit: {text!r} has more than 59 minutes or seconds, or 23 hours", hint=_HINT)
    return (days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds


def clock_text(seconds: int) -> str:
    """`HH:MM:SS` for PBS, with any number of hours."""
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def day_clock_text(seconds: int) -> str:
    """`HH:MM:SS` or `D-HH:MM:SS` for Slurm."""
    days, rest = divmod(seconds, 86400)
    return f"{days}-{clock_text(rest)}" if days else clock_text(rest)


def unit_text(seconds: int) -> str:
    """`90m` or `75s` for Flux, which does not accept clock forms."""
    return f"{seconds // 60}m" if seconds % 60 == 0 else f"{seconds}s"
