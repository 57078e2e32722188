"""The record of a benchmark: samples, figures with their formulas, what ran where. Versioned JSON, and its readers."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from windlass.bench.sizes import counted
from windlass.errors import ConfigError, MachineError, VersionError
from windlass.model.jsontext import to_json

RECORD_KIND = "windlass.bench"
RECORD_VERSION = 1

Label = str | int | float | bool | None


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A derived value with its unit and the name of the formula that made it."""

    value: float
    unit: str
    formula: str


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One measured case. `labels` say which; `wrong` counts elements with a wrong value (None: not checked)."""

    labels: dict[str, Label]
    samples: dict[str, tuple[float, ...]] = {}
    figures: dict[str, Figure] = {}
    wrong: int | None = None


class RankPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where one rank really was."""

    rank: int
    host: str
    cpus: str = ""
    device: str = ""


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """What ran where. The largest launch, where a benchmark had several."""

    site: str = ""
    nodes: int = 1
    ranks_per_node: int = 1
    hosts: str = ""
    job_id: str | None = None
    scheduler: str = ""
    launcher: str = ""
    container: str | None = None
    ranks: tuple[RankPlace, ...] = ()

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node


class BenchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One benchmark from its command to its figures. `complete` is false where it was stopped or a part failed."""

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
    rows: tuple[Row, ...] = ()
    skipped: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    imported_from: str | None = None

    @property
    def title(self) -> str:
        """One line that says what this is: case, machine, size, state."""
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
    partial = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(to_json(record))
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise MachineError(
            f"cannot write the record {path}: {error.strerror}", hint="choose another with --out"
        ) from error


class _Head(msgspec.Struct):
    record: str = ""
    version: int = 0


def record_from_json(data: bytes, *, where: str) -> BenchRecord:
    """The record in `data`. A torn text, another kind and a newer version are errors that name `where`."""
    try:
        head = msgspec.json.decode(data, type=_Head)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: not a benchmark record: {error}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{where}: torn or not JSON: {error}", hint="was it still being written? measure again, or fetch it again"
        ) from error
    known = {RECORD_KIND: RECORD_VERSION, "windlass.bench.train": 1, "windlass.bench.matmul": 1}
    if head.record not in known:
        raise ConfigError(
            f"{where}: not a benchmark record of windlass" + (f" but {head.record!r}" if head.record else ""),
            hint="give a record.json of `windlass bench`, or output of nccl-tests or the oneCCL benchmark",
        )
    if head.version > known[head.record]:
        raise VersionError(
            f"{where}: record version {head.version} of {head.record} is newer than this windlass reads "
            f"({known[head.record]})",
            hint="use a newer windlass",
        )
    try:
        if head.record == RECORD_KIND:
            return msgspec.json.decode(data, type=BenchRecord)
        return _from_program(msgspec.json.decode(data))
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        raise ConfigError(f"{where}: not a whole record: {error}") from error


def _from_program(raw: dict[str, Any]) -> BenchRecord:
    """A record that `python -m windlass.bench.train` or `.matmul` wrote, as one of ours."""
    rows = matmul_rows(raw) if raw["record"].endswith("matmul") else (train_row(raw, nodes=1),)
    case = "matmul" if raw["record"].endswith("matmul") else str(raw["case"])
    return new_record(
        case,
        command=tuple(raw.get("command", ())),
        windlass=raw["software"].get("windlass") or "",
        commit=raw["software"].get("commit"),
        where=Where(ranks_per_node=int(raw.get("ranks", 1))),
        device=raw["device"],
        software=raw["software"],
        options=raw.get("options", {}),
        rows=rows,
        skipped=tuple(raw.get("skipped", ())),
        remarks=tuple(raw.get("loss_problems", ())),
    )


def figures_of(raw: dict[str, Any]) -> dict[str, Figure]:
    return {name: msgspec.convert(value, Figure) for name, value in raw.items()}


def matmul_rows(raw: dict[str, Any], **labels: Label) -> tuple[Row, ...]:
    """Rows of a matmul record: one per type."""
    return tuple(
        Row(
            labels={"type": one["type"], "m": one["m"], "n": one["n"], "k": one["k"], **labels},
            samples={"burst_s": tuple(one["burst_s"]), "sustained_s": tuple(one["sustained_s"])},
            figures=figures_of({"burst": one["burst"], "sustained": one["sustained"]}),
        )
        for one in raw["results"]
    )


def train_row(raw: dict[str, Any], *, nodes: int, step_s: tuple[float, ...] | None = None, **labels: Label) -> Row:
    """The row of one training run; `step_s` where samples of more ranks than the first are known."""
    options = raw["options"]
    batch = options.get("batch") or options.get("micro_batch")
    row: dict[str, Label] = {
        "model": options["model"],
        "precision": options["precision"],
        "parallel": options["parallel"],
        "batch": batch,
        "ranks": int(raw["ranks"]),
        "nodes": nodes,
    }
    for name in ("sequence", "accumulation", "checkpointing"):
        if options.get(name) not in (None, 1, "none"):
            row[name] = options[name]
    samples = {"step_s": step_s or tuple(raw["samples"]["step_s"]), "loss": tuple(raw["losses"])}
    return Row(labels=row | labels, samples=samples, figures=figures_of(raw["figures"]) | _beside(raw))


def _beside(raw: dict[str, Any]) -> dict[str, Figure]:
    """Memory, and where the time of one more step went, where that was asked."""
    found = {}
    if raw.get("peak_memory_bytes"):
        how = "most that tensors took at once, first rank"
        found["peak_memory"] = Figure(value=raw["peak_memory_bytes"] / 2**30, unit="GiB", formula=how)
    profile = raw.get("breakdown") or {}
    for kind, value in [*profile.get("kinds_ms", ()), *([["idle", profile["idle_ms"]]] if profile else ())]:
        found[f"profile_{kind}"] = Figure(value=value, unit="ms", formula="one step under the profiler, first rank")
    return found
