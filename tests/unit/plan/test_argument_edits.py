"""Editing a command line that has defaults."""

from __future__ import annotations

import pytest

from looping import each
from windlass.errors import UsageError
from windlass.model.origin import Argument
from windlass.plan.arguments import edit_arguments

SRUN = tuple(
    Argument(words=words, because="a default")
    for words in (("srun",), ("--nodes=2",), ("-c", "7"), ("-l", "place=scatter"), ("-l", "filesystems=home"))
)


def _edit(*edits: str) -> list[tuple[str, ...]]:
    return [argument.words for argument in edit_arguments(SRUN, edits, flag="--arg")]


def test_without_edits_nothing_changes() -> None:
    assert edit_arguments(SRUN, (), flag="--arg") == SRUN


@each(
    ("edit", "at", "words"),
    [
        ("--nodes=3", 1, ("--nodes=3",)),
        ("-c 9", 2, ("-c", "9")),
        ("-l place=pack", 3, ("-l", "place=pack")),
        ("-l filesystems=home:flare", 4, ("-l", "filesystems=home:flare")),
        ("-l select=4", 5, ("-l", "select=4")),
        ("--comment=two words", 5, ("--comment=two words",)),
        ("--exclusive", 5, ("--exclusive",)),
        ("it's one word", 5, ("it's one word",)),
        ("--label 'x y'", 5, ("--label", "'x y'")),
    ],
)
def test_an_option_replaces_its_own_kind_and_else_goes_to_the_end(edit: str, at: int, words: tuple[str, ...]) -> None:
    edited = _edit(edit)
    assert edited[at] == words
    assert len(edited) == max(len(SRUN), at + 1)


def test_the_first_directive_can_be_replaced_but_not_the_program() -> None:
    directives = SRUN[1:]
    assert edit_arguments(directives, ("--nodes=9",), flag="--directive")[0].words == ("--nodes=9",)
    assert len(edit_arguments(directives, ("--nodes=9",), flag="--directive")) == len(directives)
    with pytest.raises(UsageError, match="~srun"):
        _edit("~srun")


def test_a_default_is_removed_by_its_name() -> None:
    assert ("-c", "7") not in _edit("~-c")
    assert _edit("~-l place") == [words for words in _edit() if words != ("-l", "place=scatter")]
    assert all(words[0] != "-l" for words in _edit("~-l"))


def test_removing_what_is_not_there_names_the_nearest_and_all() -> None:
    with pytest.raises(UsageError) as caught:
        _edit("~--node")
    assert "did you mean ~--nodes?" in str(caught.value.hint)
    assert "srun" not in str(caught.value.hint)


@each("edit", [" ", "\t"])
def test_nothing_is_no_argument(edit: str) -> None:
    with pytest.raises(UsageError, match="empty"):
        _edit(edit)


def test_what_was_asked_for_says_so() -> None:
    (made,) = edit_arguments((), ("--x=1",), flag="--directive")
    assert made.origin.text() == "flag: --directive"
