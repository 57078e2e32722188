"""windlass explain: why a name is in a plan, or when it would be."""

from __future__ import annotations

import json
from pathlib import Path

from looping import each
from unit.cli.typed import in_process
from windlass.run.folder import make_folder


@each(
    "words",
    [
        "FI_MR_CACHE_MONITOR --site lumi --nodes 2",
        "--site lumi --nodes 2 FI_MR_CACHE_MONITOR",
        "--site=lumi FI_MR_CACHE_MONITOR -N 2",
    ],
)
def test_the_name_may_stand_before_or_after_the_options(tmp_path: Path, words: str) -> None:
    ended = in_process("explain", *words.split(), cwd=tmp_path)
    assert ended.code == 0, ended.stderr
    assert ended.stdout.startswith("FI_MR_CACHE_MONITOR=userfaultfd   (variable, in this plan)\n  because ")
    assert "  source " in ended.stdout


def test_a_run_and_a_saved_plan_are_explained(tmp_path: Path) -> None:
    words = ("--site", "lumi", "--nodes", "2", "--restarts", "1", "--", "true")
    run = make_folder(None, tmp_path / "runs", "mine").path
    (run / "plan.json").write_text(in_process("plan", "--json", *words, cwd=tmp_path).stdout)
    for name in (run.name, f"runs/{run.name}", f"runs/{run.name}/plan.json"):
        whole = in_process("explain", name, cwd=tmp_path)
        assert whole.code == 0, whole.stderr
        assert "1 restart" in whole.stdout and "[network slingshot-11: " in whole.stdout
        one = in_process("explain", "FI_MR_CACHE_MONITOR", name, cwd=tmp_path)
        assert one.stdout.startswith("FI_MR_CACHE_MONITOR=userfaultfd   (variable, in this plan)\n  because ")
    missing = in_process("explain", "FI_MR_CACHE_MONITOR", "no-such-run", cwd=tmp_path)
    assert missing.code == 2 and "no-such-run" in missing.stderr


@each(
    ("words", "where"),
    [
        ("--cpu-bind --site lumi", "launcher argument, in this plan"),
        ("--site lumi --cpu-bind", "launcher argument, in this plan"),
        ("cpu-bind --site lumi", "launcher argument, in this plan"),
        ("--exclusive --site lumi", "batch directive, in this plan"),
        ("-c --site lumi", "limit, in this plan"),
        ("--reservation --site lumi --directive --reservation=r1", "batch directive, in this plan"),
    ],
)
def test_a_name_may_look_like_an_option(tmp_path: Path, words: str, where: str) -> None:
    ended = in_process("explain", *words.split(), cwd=tmp_path)
    assert ended.code == 0, ended.stderr
    assert where in ended.stdout


def test_a_setting_whose_condition_does_not_hold_tells_when_it_would(tmp_path: Path) -> None:
    ended = in_process("explain", "FI_MR_CACHE_MONITOR", "--site", "lumi", cwd=tmp_path)
    assert "not in this plan" in ended.stdout
    assert "  when    multi-node" in ended.stdout


def test_notes_are_found_by_whole_names(tmp_path: Path) -> None:
    found = json.loads(in_process("explain", "NCCL_NET", "--site", "frontier", "--json", cwd=tmp_path).stdout)
    topics = [entry["text"].split(":")[0] for entry in found if entry["where"] == "note"]
    assert "NCCL_NET" in topics
    assert "NCCL_NET_GDR_LEVEL" not in topics


def test_a_flag_of_the_user_is_the_reason(tmp_path: Path) -> None:
    ended = in_process("explain", "A", "--env", "A=1", cwd=tmp_path)
    assert "A=1   # yours" in ended.stdout
    assert "flag: --env" in ended.stdout


def test_an_unknown_name_is_answered_with_the_nearest(tmp_path: Path) -> None:
    ended = in_process("explain", "FI_MR_CACHE_MONITR", "--site", "lumi", cwd=tmp_path)
    assert ended.code == 2
    assert "did you mean FI_MR_CACHE_MONITOR?" in ended.stderr


@each("words", [(), ("--site", "lumi")])
def test_a_forgotten_name_is_asked_for(tmp_path: Path, words: tuple[str, ...]) -> None:
    ended = in_process("explain", *words, cwd=tmp_path)
    assert ended.code == 2
    assert "NAME" in ended.stderr


@each(
    ("words", "gone"),
    [
        ("NCCL_CROSS_NIC --site frontier -N 2 --env NCCL_CROSS_NIC=0", "NCCL_CROSS_NIC=1"),
        ("NCCL_CROSS_NIC --site frontier -N 2 --env ~NCCL_CROSS_NIC", "NCCL_CROSS_NIC=1"),
        ("--cpu-bind --site frontier -N 2 --arg --cpu-bind=none", "--cpu-bind=mask_cpu="),
    ],
)
def test_what_the_user_replaced_is_told_once_with_its_reason(tmp_path: Path, words: str, gone: str) -> None:
    ended = in_process("explain", *words.split(), cwd=tmp_path)
    assert ended.code == 0, ended.stderr
    (line,) = (line for line in ended.stdout.splitlines() if line.startswith(gone))
    assert line.endswith("replaced by yours)"), ended.stdout


def test_without_a_site_the_whole_catalog_is_searched(tmp_path: Path) -> None:
    ended = in_process("explain", "NCCL_CROSS_NIC", cwd=tmp_path)
    assert ended.code == 0, ended.stderr
    assert "(variable on " in ended.stdout and "frontier" in ended.stdout.splitlines()[0]
