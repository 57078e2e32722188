"""Records: written whole, read back, refused clearly where they cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from looping import each
from unit.bench.made import collectives_record, told
from windlass.bench.reading import read_record
from windlass.bench.record import BenchRecord, write_record
from windlass.errors import ConfigError, MachineError, UsageError, VersionError


def _record() -> BenchRecord:
    return collectives_record(told(1 << 20, 105.9), told(1 << 21, 142.1), environment={"NCCL_ALGO": "Tree"})


def test_a_record_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    write_record(tmp_path / "deep" / "record.json", _record())
    assert read_record(tmp_path / "deep" / "record.json") == _record()
    assert read_record(tmp_path / "deep") == _record()
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["record.json"]


def test_samples_and_formulas_are_in_the_file(tmp_path: Path) -> None:
    write_record(tmp_path / "r.json", _record())
    raw = json.loads((tmp_path / "r.json").read_text())
    assert raw["record"] == "windlass.bench"
    assert raw["version"] == 1
    assert len(raw["rows"][0]["samples"]["time_s"]) == 5
    assert raw["rows"][0]["figures"]["busbw"]["formula"] == "busbw = algbw*2(n-1)/n"


@each("part", [0, 1, 10, 200])
def test_a_torn_record_is_refused_by_its_name(tmp_path: Path, part: int) -> None:
    write_record(tmp_path / "r.json", _record())
    data = (tmp_path / "r.json").read_bytes()
    (tmp_path / "r.json").write_bytes(data[: len(data) - part - 3])
    with pytest.raises(ConfigError, match=r"r\.json.*torn"):
        read_record(tmp_path / "r.json")


def test_a_newer_version_is_refused_with_a_clear_word(tmp_path: Path) -> None:
    write_record(tmp_path / "r.json", _record())
    raw = json.loads((tmp_path / "r.json").read_text()) | {"version": 2, "rows": "in a form nobody knows yet"}
    (tmp_path / "r.json").write_text(json.dumps(raw))
    with pytest.raises(VersionError, match=r"version 2 .* newer"):
        read_record(tmp_path / "r.json")


@each("text", ['{"a": 1}', "[]", "3", '{"record": "windlass.bench", "version": 1}', '{"record": 7}'])
def test_json_that_is_no_record_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ConfigError, match=r"r\.json"):
        read_record(tmp_path / "r.json")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        read_record(tmp_path / "nowhere.json")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="cannot write the record"):
        write_record(tmp_path / "file" / "r.json", _record())


@each("content", [b"", b" \n"])
def test_an_empty_file_is_called_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "record.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"record\.json: empty") as caught:
        read_record(tmp_path)
    assert "measure again" in (caught.value.hint or "")
