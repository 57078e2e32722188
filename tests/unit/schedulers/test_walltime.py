"""Time limits: what people write, and the form of each scheduler."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looping import each
from windlass.backends.schedulers.walltime import clock_text, day_clock_text, parse_walltime, unit_text
from windlass.errors import UsageError


@each(
    ("text", "seconds"),
    [
        ("30", 1800), ("30:00", 1800), ("1:30:00", 5400), ("2h", 7200), ("90m", 5400), ("1h30m", 5400), ("45s", 45),
        ("1.5h", 5400), ("1-12", 129600), ("1-12:00:00", 129600), ("1-0:30", 88200), ("1d", 86400), (" 10 ", 600),
        ("48:00:00", 172800),
    ],
)  # fmt: skip
def test_every_written_form_is_read(text: str, seconds: int) -> None:
    assert parse_walltime(text) == seconds


@each("text", ["", "0", "0:00:00", "abc", "1:2:3:4", "-5", "1:99:00", "10:61", "1-25:00:00", "5x", "1h 2", "∞"])
def test_anything_else_is_an_error_that_shows_how_to_write_it(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_walltime(text)
    assert "1:30:00" in (caught.value.hint or "")


@given(st.integers(min_value=1, max_value=10_000_000))
def test_what_slurm_pbs_and_flux_get_means_the_same(seconds: int) -> None:
    hours, minutes, rest = clock_text(seconds).split(":")
    assert int(hours) * 3600 + int(minutes) * 60 + int(rest) == seconds
    assert parse_walltime(day_clock_text(seconds)) == seconds
    assert parse_walltime(unit_text(seconds)) == seconds


def test_days_are_written_where_slurm_wants_them() -> None:
    assert day_clock_text(129600) == "1-12:00:00"
    assert clock_text(129600) == "36:00:00"
    assert unit_text(129600) == "2160m"
