"""Errors say what, where and what to do, and name the nearest thing that exists."""

from __future__ import annotations

import pytest

from windlass.errors import (
    CommandError,
    ConfigError,
    DeadlineError,
    MachineError,
    UsageError,
    VersionError,
    WindlassError,
    nearest,
    unknown_name,
)


@pytest.mark.parametrize(
    ("typed", "meant"), [("perlmuter", "perlmutter"), ("Frontier", "frontier"), ("lummi", "lumi"), ("zzz", None)]
)
def test_the_nearest_name_is_found(typed: str, meant: str | None) -> None:
    assert nearest(typed, ["frontier", "lumi", "perlmutter"]) == meant


def test_an_unknown_name_is_an_error_with_the_nearest_one_and_the_whole_list() -> None:
    error = unknown_name("site", "fronteir", ["lumi", "frontier"], where="--site")
    assert error.message == "--site: unknown site 'fronteir'"
    assert error.hint == "did you mean 'frontier'? known: frontier, lumi"


def test_an_unknown_name_far_from_all_lists_what_there_is() -> None:
    assert unknown_name("site", "q", ["lumi", "aurora"]).hint == "known: aurora, lumi"


@pytest.mark.parametrize("kind", [UsageError, ConfigError, MachineError, VersionError])
def test_every_error_is_in_one_tree_and_has_a_code_of_its_own(kind: type[WindlassError]) -> None:
    error = kind("what", hint="do this")
    assert isinstance(error, WindlassError)
    assert str(error) == "what (do this)", "a traceback in the user's script shows nothing else"
    assert str(kind("what")) == "what"
    assert (error.message, error.hint) == ("what", "do this")
    assert error.exit_code in (2, 3)


def test_only_a_passed_deadline_is_worth_trying_again() -> None:
    assert DeadlineError("late", argv=("squeue",), code=None).transient
    assert not CommandError("failed", argv=("squeue",), code=1).transient
