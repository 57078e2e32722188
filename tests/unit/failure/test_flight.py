"""What torch's flight recorder says: which rank is missing from which collective."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

from captured import FOLDER
from windlass.run.failure.flight import last_collectives, missing, read_dump


def entry(number: int, name: str = "nccl:all_reduce", state: str = "started") -> dict[str, object]:
    return {
        "collective_seq_id": number,
        "profiling_name": name,
        "state": state,
        "process_group": ("0", "default_pg"),
        "is_p2p": False,
    }


def dump(folder: Path, rank: int, *entries: dict[str, object]) -> None:
    (folder / f"rank_{rank}").write_bytes(pickle.dumps({"version": "2.10", "entries": list(entries)}))


def test_the_rank_that_is_missing_from_a_collective_is_named(tmp_path: Path) -> None:
    dump(tmp_path, 0, entry(16, state="completed"), entry(17))
    dump(tmp_path, 1, entry(17))
    dump(tmp_path, 2, entry(16, state="completed"))
    assert missing(tmp_path, 3)[0] == "rank 2 is missing from nccl:all_reduce number 17 (it did 16)"


def test_a_record_of_nccl_names_who_did_not_come() -> None:
    """Dumps of torch 2.11 with NCCL 2.28, two ranks: the second one slept instead of coming to the fifth collective."""
    folder = FOLDER / "flight"
    assert missing(folder, 2)[0] == "rank 1 is missing from nccl:all_reduce number 5 (it did 4)"
    assert [one.state for one in last_collectives(folder)] == ["scheduled", "completed"]


def test_groups_without_a_description_of_their_own_are_not_mixed_up(tmp_path: Path) -> None:
    rows, columns = {"process_group": ("1", "undefined")}, {"process_group": ("2", "undefined")}
    for rank in (0, 1):
        dump(tmp_path, rank, {**entry(40), **rows}, {**entry(7), **columns})
    assert missing(tmp_path, 2)[0] == ""


def test_the_record_of_other_backends_beside_nccls_is_read_too(tmp_path: Path) -> None:
    dump(tmp_path, 0)
    dump(tmp_path, 1)
    for rank, number in ((0, 9), (1, 8)):
        (tmp_path / f"rank_{rank}-other").write_bytes(pickle.dumps({"entries": [entry(number)]}))
    assert "rank 1 is missing" in missing(tmp_path, 2)[0]


def test_a_rank_without_a_record_is_told_as_that(tmp_path: Path) -> None:
    dump(tmp_path, 0, entry(17))
    assert "no flight record of rank 1" in missing(tmp_path, 2)[0]
    assert missing(tmp_path / "nothing", 2)[0] == ""


def test_ranks_that_are_behind_are_not_named_where_another_cannot_answer(tmp_path: Path) -> None:
    dump(tmp_path, 0, entry(17))
    dump(tmp_path, 1, entry(16))
    text = missing(tmp_path, 3)[0]
    assert text.startswith("no flight record of rank 2;") and "rank 1" not in text


def test_a_record_that_is_torn_or_would_run_code_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "rank_0").write_bytes(pickle.dumps({"entries": [entry(1)]})[:20])
    (tmp_path / "rank_1").write_bytes(pickle.dumps(os.system))
    assert read_dump(tmp_path / "rank_0") is None
    assert read_dump(tmp_path / "rank_1") is None
    assert last_collectives(tmp_path) == ()
