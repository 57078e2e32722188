"""windlass diff: two saved plans, and everything in which they differ."""

from __future__ import annotations

from pathlib import Path

from looping import each
from unit.cli.typed import in_process, script


def _saved(folder: Path, name: str, *words: str) -> Path:
    ended = in_process("plan", "--json", *words, "--", "true", cwd=folder)
    assert ended.code == 0, ended.stderr
    path = folder / name
    path.write_text(ended.stdout)
    return path


def test_plans_that_agree_give_code_0(tmp_path: Path) -> None:
    _saved(tmp_path, "a.json", "--site", "lumi")
    ended = in_process("diff", "a.json", "a.json", cwd=tmp_path)
    assert (ended.code, ended.stdout) == (0, "the plans are equal\n")


def test_one_node_more_changes_words_and_variables(tmp_path: Path) -> None:
    _saved(tmp_path, "a.json", "--site", "lumi", "--nodes", "1")
    _saved(tmp_path, "b.json", "--site", "lumi", "--nodes", "2")
    ended = in_process("diff", "a.json", "b.json", cwd=tmp_path)
    assert ended.code == 1
    for line in (
        "  - nodes 1",
        "  + nodes 2",
        "  - --ntasks=8",
        "  + --ntasks=16",
        "  + FI_MR_CACHE_MONITOR=userfaultfd",
    ):
        assert line in ended.stdout.splitlines()


@each(
    "words",
    [
        "--master-port 12345",
        "--grace 9",
        "--keep-caches kept",
        "--no-placeholders",
        "--comm-log 0",
        "--env A=1",
        "--env ~A",
        "--cpu-bind none",
        "--threads 3",
        "-r 2",
        "--python /usr/bin/true",
    ],
)
def test_whatever_changes_what_happens_is_a_difference(tmp_path: Path, words: str) -> None:
    script(tmp_path)
    for name, more in (("a.json", []), ("b.json", words.split())):
        (tmp_path / name).write_text(in_process("plan", "--json", *more, "place.py", cwd=tmp_path).stdout)
    assert in_process("diff", "a.json", "b.json", cwd=tmp_path).code == 1


def test_two_arguments_of_one_name_are_both_compared(tmp_path: Path) -> None:
    site = ("--site", "aurora")
    _saved(tmp_path, "a.json", *site, "--directive", "-W one=1", "--directive", "-W two=2")
    _saved(tmp_path, "b.json", *site, "--directive", "-W one=9", "--directive", "-W two=2")
    assert in_process("diff", "a.json", "b.json", cwd=tmp_path).code == 1


@each(
    ("content", "told"),
    [
        (None, "No such file"),
        (b"", "not a plan"),
        (b'{"version": 1', "not a plan"),
        (b"[1]", "not a plan"),
        (b"\xff\xfe", "not a plan"),
        (b'{"version": 99}', "newer than this windlass reads"),
        (b'{"version": 1}', "not a plan"),
    ],
)
def test_a_file_that_is_no_plan_is_named(tmp_path: Path, content: bytes | None, told: str) -> None:
    if content is not None:
        (tmp_path / "a.json").write_bytes(content)
    ended = in_process("diff", "a.json", "a.json", cwd=tmp_path)
    assert ended.code == 2
    assert "a.json" in ended.stderr and told in ended.stderr
