"""Every tenth environment in `make test`, all of them and the page in `make test-all`."""

from __future__ import annotations

from pathlib import Path

import pytest

from env_corpus.make import EnvCase
from env_corpus.table import CASES, PAGE, answer, page_text


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.mark.parametrize("case", CASES[4::10], ids=lambda case: case.what)
def test_a_tenth_of_the_environments_is_told_right(case: EnvCase, tmp_path: Path, compiled: Path) -> None:
    assert answer(case, tmp_path / "case", compiled) == case.expected


@pytest.mark.slow
def test_the_page_has_the_results_of_a_new_run_with_at_most_two_wrong() -> None:
    text = page_text()
    healthy = sum(not case.expected for case in CASES)
    right = int(text.split("**", 1)[1].split()[0])
    assert len(CASES) >= 60 and right >= len(CASES) - 2
    assert f"0 of {healthy} healthy environments with an alarm" in text
    assert PAGE.read_text() == text, "renew it: scripts/env_corpus_table.py"
