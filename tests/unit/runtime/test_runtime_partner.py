"""Copies between two nodes, in one process: what arrives, and what is refused."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from looping import each
from windlass.errors import MachineError
from windlass.node.wire.proof import ProtocolError
from windlass.runtime.partner import Partners, _request, partner_of, room_for
from windlass.runtime.store import CorruptError, FileEntry

DATA = bytes(range(256)) * 40_000


@each(
    ("nodes", "partners"),
    [(2, [1, 0]), (3, [1, 0, 0]), (4, [1, 0, 3, 2]), (5, [1, 0, 3, 2, 0])],
)
def test_nodes_are_paired_and_the_last_odd_one_uses_the_first(nodes: int, partners: list[int]) -> None:
    assert [partner_of(node, nodes) for node in range(nodes)] == partners


def test_room_leaves_a_reserve(tmp_path: Path) -> None:
    assert room_for(tmp_path, 1)
    assert not room_for(tmp_path, 1 << 60)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[Partners]]:
    made = []
    for node in (0, 1):
        (tmp_path / str(node) / "step-000000007").mkdir(parents=True)
        made.append(Partners(tmp_path / str(node), "run", b"k" * 32, node, serve=True, near="127.0.0.1"))
    for one in made:
        one.meet(other.place for other in made if other.place is not None)
    yield made
    for one in made:
        one.close()


def entry(tmp_path: Path, name: str = "__0_0.distcp") -> FileEntry:
    (tmp_path / "0" / "step-000000007" / name).write_bytes(DATA)
    return FileEntry(name=name, size_bytes=len(DATA), sha256=hashlib.sha256(DATA).hexdigest())


def test_files_are_sent_and_fetched_back(pair: list[Partners], tmp_path: Path) -> None:
    files = [entry(tmp_path), entry(tmp_path, ".metadata")]
    step = tmp_path / "0" / "step-000000007"
    pair[0].send(step, files, threading.Event())
    for file in files:
        assert (tmp_path / "1" / "step-000000007" / file.name).read_bytes() == DATA
        (step / file.name).unlink()
        pair[0].fetch(step, file, [1])
        assert (step / file.name).read_bytes() == DATA


def test_a_damaged_file_is_refused_by_the_partner_and_never_gets_its_name(pair: list[Partners], tmp_path: Path) -> None:
    file = entry(tmp_path)
    step = tmp_path / "0" / "step-000000007"
    (step / file.name).write_bytes(DATA[:-1] + b"x")
    with pytest.raises(MachineError, match=r"partner node 1 \(127.0.0.1\) has no copy of .*checksum"):
        pair[0].send(step, [file], threading.Event())
    assert not list((tmp_path / "1" / "step-000000007").iterdir())


def test_a_damaged_copy_is_refused_and_the_next_node_is_asked(pair: list[Partners], tmp_path: Path) -> None:
    file = entry(tmp_path)
    other = tmp_path / "1" / "step-000000007"
    (other / file.name).write_bytes(DATA[:-1] + b"x")
    with pytest.raises(CorruptError, match=r"cannot be fetched: node 1: .*checksum"):
        pair[0].fetch(other.parents[1] / "0" / "step-000000007", file, [1])
    pair[1].fetch(other, file, [1, 0])
    assert (other / file.name).read_bytes() == DATA


def test_a_partner_without_memory_refuses_before_any_byte_is_sent(pair: list[Partners], tmp_path: Path) -> None:
    file = FileEntry(name=entry(tmp_path).name, size_bytes=1 << 60, sha256="")
    with pytest.raises(MachineError, match="has no copy of step-000000007: not enough memory"):
        pair[0].send(tmp_path / "0" / "step-000000007", [file], threading.Event())
    assert not list((tmp_path / "1" / "step-000000007").iterdir())


def test_a_partner_that_is_gone_is_named(pair: list[Partners], tmp_path: Path) -> None:
    pair[1].close()
    with pytest.raises(MachineError, match="partner node 1"):
        pair[0].send(tmp_path / "0" / "step-000000007", [entry(tmp_path)], threading.Event())


@each(
    "request_",
    [
        {"do": "get", "step": "..", "name": "secret"},
        {"do": "get", "step": "step-000000007", "name": "../../secret"},
        {"do": "put", "step": "step-000000007", "name": "..", "size": 1, "sha256": ""},
        {"do": "put", "step": "step-000000007", "name": "x", "size": -1, "sha256": ""},
    ],
)
def test_names_that_lead_out_and_negative_sizes_end_the_connection(
    pair: list[Partners], tmp_path: Path, request_: dict[str, object]
) -> None:
    (tmp_path / "secret").write_bytes(b"x")
    with pair[0]._connection(1) as channel, pytest.raises((OSError, ProtocolError), match=r"ended|reset"):
        _request(channel, request_)
