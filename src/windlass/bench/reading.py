"""Reads what `report`, `compare` and `reference` are given: a record, a run folder with one, or another's output."""

from __future__ import annotations

from pathlib import Path

from windlass.bench.imported import Known, looks_foreign, parse_foreign
from windlass.bench.records import BenchRecord, record_from_json
from windlass.errors import UsageError


def read_record(path: str | Path, known: Known | None = None) -> BenchRecord:
    """The record at `path`; of a folder, its record.json. Errors name the file."""
    file = Path(path).expanduser()
    if file.is_dir():
        file = file / "record.json"
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot read {file}: {error.strerror}", hint="give a record.json, or a folder of `windlass bench`"
        ) from error
    if looks_foreign(data):
        return parse_foreign(data, known or Known(), where=str(file))
    return record_from_json(data, where=str(file))
