"""The loop over cases: every case runs, all failures are shown, and a case does not see what another left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from looping import each


@each("letter", ["a", "b"])
@each(("number", "text"), [(1, "one"), (2, "two")])
def test_cases_have_folders_output_and_patches_of_their_own(
    letter: str,
    number: int,
    text: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert list(tmp_path.iterdir()) == [] and "LOOPED" not in os.environ
    (tmp_path / "file").write_text(letter)
    monkeypatch.setenv("LOOPED", text)
    print(number)
    assert capsys.readouterr().out == f"{number}\n"


def test_every_failing_case_is_shown() -> None:
    seen = []

    @each("number", [1, 2, 3], ids=["one", "two", "three"])
    def small(number: int) -> None:
        seen.append(number)
        assert number == 2, f"not {number}"

    with pytest.raises(AssertionError) as told:
        small()
    assert seen == [1, 2, 3]
    assert "2 of 3 cases" in str(told.value)
    assert all(text in str(told.value) for text in ("--- one", "not 1", "--- three", "not 3"))
    assert "--- two" not in str(told.value)
