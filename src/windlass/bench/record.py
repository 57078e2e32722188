"""The record of a benchmark: samples, figures with their formulas, software and placement. Versioned JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from windlass.base.notation.counts import counted
from windlass.bench.measure import Figure
from windlass.errors import MachineError
from windlass.model.jsontext import to_json
from windlass.node.sys.atomic import replace_file

RECORD_KIND = "windlass.bench"
RECORD_VERSION = 1

Label = str | int | float | bool | None


class Measurement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One row of a record. `labels` identify the measurement. `wrong` counts wrong elements (None: not checked)."""

    labels: dict[str, Label]
    samples: dict[str, tuple[float, ...]] = {}
    figures: dict[str, Figure] = {}
    wrong: int | None = None


class RankLocation(msgspec.Struct, frozen=True, kw_only=True):
    """The real location of one rank."""

    rank: int
    host: str
    cpus: str = ""
    device: str = ""


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """Where the ranks ran. If a benchmark had several launches, the largest one."""

    site: str = ""
    nodes: int = 1
    ranks_per_node: int = 1
    hosts: str = ""
    job_id: str | None = None
    scheduler: str = ""
    launcher: str = ""
    container: str | None = None
    ranks: tuple[RankLocation, ...] = ()

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node


class BenchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One benchmark from its command to its figures. `complete` is false if it was stopped or a part failed."""

    record: str
    version: int
    case: str
    command: tuple[str, ...] = ()
    windlass: str = ""
    commit: str | None = None
    started: str = ""
    seconds: float = 0.0
    complete: bool = True
    where: Where = Where()
    device: dict[str, Any] = {}
    software: dict[str, Any] = {}
    environment: dict[str, str] = {}
    options: dict[str, Any] = {}
    rows: tuple[Measurement, ...] = ()
    skipped: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    imported_from: str | None = None

    @property
    def title(self) -> str:
        """One line that describes the record: case, machine, size, state."""
        each = self.where.ranks_per_node
        device = str(self.device.get("name") or ("rank" if each == 1 else "ranks"))
        size = f"{counted(self.where.nodes, 'node')} x {each}"
        state = "" if self.complete else ", PARTIAL"
        site = f" on {self.where.site}" if self.where.site else ""
        return f"{self.case}{site}: {size} {device}{state}"


def new_record(case: str, **values: Any) -> BenchRecord:
    return BenchRecord(record=RECORD_KIND, version=RECORD_VERSION, case=case, **values)


def write_record(path: Path, record: BenchRecord) -> None:
    """Write atomically, so that a reader never sees half a record."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, to_json(record), 0o644)
    except OSError as error:
        raise MachineError(
            f"cannot write the record {path}: {error.strerror}", hint="choose another with --output"
        ) from error
