"""Read the inputs of `report`, `compare` and `reference`.

An input is a record of any case and version, a run directory with a record, or the output of another benchmark.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from windlass.bench.imported import Known, looks_foreign, parse_foreign
from windlass.bench.record import RECORD_KIND, RECORD_VERSION, BenchRecord
from windlass.errors import ConfigError, UsageError, VersionError, os_errors
from windlass.node.sys.reading import read_bytes
from windlass.run.failure.rank_logs import rank_logs
from windlass.run.folder import PLAN_FILE, read_plan

_NOT_WHOLE = (msgspec.ValidationError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError)


def read_record(path: str | Path, known: Known | None = None) -> BenchRecord:
    """Return the record at `path`, or the record in standard input if `path` is `-`.

    For a directory, read its record.json, or the output of the ranks of that run. Errors name the file.
    """
    if str(path) == "-":
        return _record_in(sys.stdin.buffer.read(), known or Known(), where="standard input")
    file = Path(path).expanduser()
    if file.is_dir() and not (file / "record.json").exists() and (file / PLAN_FILE).exists():
        return _printed(file, known or Known())
    if file.is_dir():
        file = file / "record.json"
    with os_errors(f"read {file}", hint="give a record.json, or a folder of `windlass bench`", kind=UsageError):
        data = read_bytes(file, follow=True)
    return _record_in(data, known or Known(), where=str(file))


def _record_in(data: bytes, known: Known, *, where: str) -> BenchRecord:
    if not data.strip():
        raise ConfigError(
            f"{where}: empty, so no record of a benchmark",
            hint="measure again, e.g. `windlass bench collectives --output FILE`; the disk or your quota may be full",
        )
    if looks_foreign(data):
        return parse_foreign(data, known, where=where)
    return record_from_json(data, where=where)


def _printed(folder: Path, known: Known) -> BenchRecord:
    """Read the table in the output of a run, for example of nccl-tests under `windlass run`.

    The plan contains the number of nodes, which the table may lack.
    """
    plan = read_plan(folder)
    text = "\n".join(line for _, line in rank_logs(plan, folder).lines(None))
    data = text.encode("utf-8", "surrogateescape")
    if not looks_foreign(data):
        raise UsageError(
            f"{folder}: neither a record nor a table of a benchmark in the output of its ranks",
            hint="give a folder of `windlass bench`, or of a run of nccl-tests or the oneCCL benchmark",
        )
    return parse_foreign(data, dataclasses.replace(known, nodes=known.nodes or plan.nodes), where=str(folder))


class _Head(msgspec.Struct):
    record: str = ""
    version: int = 0


def record_from_json(data: bytes, *, where: str) -> BenchRecord:
    """Return the record in `data`. Truncated text, another kind or a newer version raise errors that name `where`."""
    try:
        head = msgspec.json.decode(data, type=_Head)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{where}: not a benchmark record: {error}", hint="give a record.json of `windlass bench`"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(
            f"{where}: torn or not JSON: {error}", hint="it may be incomplete: measure again, or copy it again"
        ) from error
    if head.record != RECORD_KIND:
        raise ConfigError(
            f"{where}: not a benchmark record of windlass" + (f" but {head.record!r}" if head.record else ""),
            hint="give a record.json of `windlass bench`, or output of nccl-tests or the oneCCL benchmark",
        )
    if head.version > RECORD_VERSION:
        raise VersionError(
            f"{where}: record version {head.version} is newer than this windlass reads ({RECORD_VERSION})",
            hint="use a newer windlass",
        )
    try:
        return msgspec.json.decode(data, type=BenchRecord)
    except _NOT_WHOLE as error:
        raise _not_whole(where, error) from error


@contextmanager
def showing(where: str) -> Iterator[None]:
    """Turn errors of tables, charts and verdicts of records at `where` into errors of the record.

    Such rows lack values that their case shows, or have values of another type. Records come from any source, and every
    case has different rows.
    """
    try:
        yield
    except _NOT_WHOLE as error:
        raise _not_whole(where, error) from error


def _not_whole(where: str, error: Exception) -> ConfigError:
    why = str(error) if isinstance(error, msgspec.ValidationError) else f"{type(error).__name__}: {error}"
    return ConfigError(f"{where}: not a whole record: {why[:200]}", hint="measure again, or fetch it again")
