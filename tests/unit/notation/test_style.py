"""What a terminal shows of a text: folded between words, in colour where that is wanted; pipes get it plain."""

from __future__ import annotations

import re

from looping import each
from windlass.base.notation.style import filled, folded, in_colour, painted, table_lines

TERMINAL = {"TERM": "xterm"}
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


@each(
    ("live", "environ", "coloured"),
    [
        (True, TERMINAL, True),
        (False, TERMINAL, False),
        (True, {**TERMINAL, "NO_COLOR": "1"}, False),
        (True, {**TERMINAL, "NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
        (True, {}, False),
        (True, {**TERMINAL, "CLICOLOR": "0"}, False),
        (False, {"FORCE_COLOR": "1"}, True),
        (False, {"CLICOLOR_FORCE": "1"}, True),
        (False, {"FORCE_COLOR": "0"}, False),
        (False, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colour_is_for_terminals_and_for_those_who_ask(live: bool, environ: dict[str, str], coloured: bool) -> None:
    assert in_colour(live, environ) is coloured


@each(
    ("line", "word", "code"),
    [
        ("ok       torch: 2.13.0", "ok", "32"),
        ("warning  ulimits: files 1024", "warning", "33"),
        ("error    devices: 3 of 4", "error", "1;31"),
        ("killed     11-16 00:09  1 x 2  runs/a", "killed", "1;31"),
        ("windlass: error: no such file", "error", "1;31"),
        ("srun: error: node down", "error", "1;31"),
        ("  hint: say another", "hint:", "36"),
        ("       → use another node", "→", "36"),
        ("  network    error: no plugin", "error", "1;31"),
        ("verdict on lumi: should work, 1 note", "should work", "32"),
        ("verdict: will not work as it is: 1 error", "will not work as it is", "1;31"),
        ("windlass: all 2 ranks finished after 0.9 s", "finished", "32"),
    ],
)
def test_status_words_and_hints_are_coloured_and_nothing_else_of_the_line(line: str, word: str, code: str) -> None:
    shown = painted(line)
    assert f"\x1b[{code}m{word}\x1b[0m" in shown
    assert _ESCAPE.sub("", shown) == line and len(_ESCAPE.findall(shown)) == 2


@each("line", ["ok then, said the user", "errors: 4", "donee  x", "a hint: no", "", "[0] ok"])
def test_other_lines_stay_as_they_are(line: str) -> None:
    assert painted(line) == line


def test_a_heading_is_bold_and_a_source_faint_even_where_it_was_folded() -> None:
    text = "machine\n  network  slingshot  [site lumi: a workshop of long ago, checked 2025-10-02]\n"
    shown = painted(folded(text, 50))
    assert shown.startswith("\x1b[1mmachine\x1b[0m\n")
    assert shown.count("\x1b[2m") == 2 and _ESCAPE.sub("", shown) == folded(text, 50)


def test_lines_are_folded_between_words_below_what_they_continue() -> None:
    line = "  hardware   cray-ex-mi250x  which is a machine of many words that go on and on for more than a line"
    lines = folded(line, 60).split("\n")
    assert all(len(piece) <= 60 for piece in lines) and len(lines) == 2
    assert lines[1].startswith(" " * 13 + "many") or lines[1].startswith(" " * 13)
    assert " ".join(" ".join(lines).split()) == " ".join(line.split())


def test_a_word_that_is_too_long_is_not_broken_and_a_script_is_not_folded() -> None:
    path = "/".join(["folder"] * 20)
    assert path in folded(f"see {path} and more words behind it to be folded away", 40)
    script = "plan\n  x\n\nrank script\n  " + "word " * 40
    assert folded(script, 40) == script


def test_columns_of_a_table_are_aligned() -> None:
    rows = [("done", "1 x 2", "runs/a", ""), ("resumable", "128 x 8", "runs/longer", "step 4")]
    assert table_lines(rows, right=(1,)) == [
        "done         1 x 2  runs/a",
        "resumable  128 x 8  runs/longer  step 4",
    ]
    assert table_lines([]) == []


def test_what_backquotes_quote_and_lines_to_copy_are_not_broken() -> None:
    text = "hint: get nodes by `windlass alloc --nodes 2 --time 1h` and then start the script in there"
    assert any("`windlass alloc --nodes 2 --time 1h`" in line for line in folded(text, 45).split("\n"))
    command = "    windlass run --ranks-per-node 2 --show all train.py --lr 0.1"
    assert folded(command, 30) == command
    kept = "       py -m pip install torch --index-url https://example.org/whl"
    assert folded(kept, 30, {kept}) == kept and folded(kept, 30) != kept


def test_paragraphs_are_filled_and_lists_stay() -> None:
    text = "One line that is\nbroken anew.\n\n  a  list\n  b  of two\nand the end"
    assert filled(text, 40) == "One line that is broken anew.\n\n  a  list\n  b  of two\nand the end"
    assert filled("one two three four five six seven", 20) == "one two three four\nfive six seven"
