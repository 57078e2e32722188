"""Published figures as data: read, select by device, and show. The module `verdict` judges records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from windlass.base.tables import tomllib
from windlass.errors import ConfigError, UsageError, unknown_name
from windlass.node.sys.reading import read_text
from windlass.node.sys.text import binary_size

_DATA = Path(__file__).parent / "data"
CASES = ("collectives", "matmul", "ddp", "llm", "io")


class _Closed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Citation(_Closed, frozen=True, kw_only=True):
    """Where a figure was published, and the date when it was read there."""

    where: str
    checked: str


class Bandwidth(_Closed, frozen=True, kw_only=True):
    """Bus bandwidth in GB/s.

    `transport` distinguishes a normal figure from one that shows a fault (tcp, roce-bad). `limit`: the minimum of a
    health check, not a measured value.
    """

    system: str
    device: str
    nodes: int
    ranks: int
    op: str
    bytes: int
    busbw: float
    transport: str
    source: str
    algorithm: str = ""
    limit: bool = False
    note: str = ""

    @property
    def normal(self) -> bool:
        return not self.limit and self.transport not in {"tcp", "roce-bad"}


class Latency(_Closed, frozen=True, kw_only=True):
    """Time of a tiny collective."""

    system: str
    device: str
    nodes: int
    ranks: int
    op: str
    bytes: int
    time_us: float
    transport: str
    source: str
    note: str = ""


class Ceiling(_Closed, frozen=True, kw_only=True):
    """TFLOP/s of one device, by the vendor and as measured."""

    name: str
    type: str
    source: str
    datasheet: float | None = None
    measured: float | None = None


class Rate(_Closed, frozen=True, kw_only=True):
    """Samples or tokens per second and device of a training run. `labels`: further labels that a row must have."""

    case: str
    model: str
    device: str
    ranks: int
    nodes: int
    method: str
    value: float
    unit: str
    source: str
    batch: int | None = None
    sequence: int | None = None
    labels: dict[str, str | int] = {}


class Sample(_Closed, frozen=True, kw_only=True):
    """Bytes of one stored training sample."""

    name: str
    bytes: int
    source: str
    note: str = ""


class References(_Closed, frozen=True, kw_only=True):
    """The figures of one file, or of several files together."""

    sources: dict[str, Citation] = {}
    bandwidth: tuple[Bandwidth, ...] = ()
    latency: tuple[Latency, ...] = ()
    device: tuple[Ceiling, ...] = ()
    rate: tuple[Rate, ...] = ()
    sample: tuple[Sample, ...] = ()


_TABLES = ("bandwidth", "latency", "device", "rate", "sample")


def load_references(config_dir: Path | None = None) -> References:
    """Load the built-in figures and those of the user's files `references/*.toml`."""
    files = sorted(_DATA.glob("*.toml"))
    if config_dir is not None:
        files += sorted((config_dir.expanduser() / "references").glob("*.toml"))
    whole = References()
    for file in files:
        whole = _joined(whole, _read(file))
    return whole


def _read(file: Path) -> References:
    try:
        found = msgspec.convert(tomllib.loads(read_text(file, follow=True)), References)
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(
            f"{file}: not a file of reference figures: {error}",
            hint="correct it, or move it away; `docs/reference/bench.md` shows one",
        ) from error
    missing = {row.source for row in _rows(found)} - set(found.sources)
    if missing:
        raise ConfigError(f"{file}: source {sorted(missing)[0]!r} is used but not defined", hint="add [sources.NAME]")
    name = file.stem
    tables = {
        table: tuple(msgspec.structs.replace(row, source=f"{name}/{row.source}") for row in getattr(found, table))
        for table in _TABLES
    }
    return References(sources={f"{name}/{key}": source for key, source in found.sources.items()}, **tables)


def _rows(found: References) -> list[Any]:
    return [row for table in _TABLES for row in getattr(found, table)]


def _joined(one: References, two: References) -> References:
    tables = {table: getattr(one, table) + getattr(two, table) for table in _TABLES}
    return References(sources=one.sources | two.sources, **tables)


def is_device(reference: str, name: str) -> bool:
    """Whether a device name ("NVIDIA GH200 120GB") is of this kind. GH200 is not an H200."""
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(reference)}(?![A-Za-z0-9])", name, re.IGNORECASE) is not None


def ceiling_of(references: References, name: str, kind: str) -> Ceiling | None:
    """Return the ceiling of the matching device with the most exact name."""
    fitting = [one for one in references.device if one.type == kind and is_device(one.name, name)]
    return max(fitting, key=lambda one: len(one.name), default=None)


def datasheet_tflops(name: str, kind: str) -> float | None:
    """Return the vendor's dense rate for this device and type, or None if it is unknown."""
    found = ceiling_of(load_references(), name, kind)
    return found.datasheet if found else None


def reference_lines(case: str, references: References, device: str | None = None) -> list[str]:
    """Return the published figures of a case as a table, each with its source."""
    if case not in CASES:
        raise unknown_name("case", case, CASES)
    table = {"collectives": _bandwidth_lines, "matmul": _ceiling_lines, "io": _sample_lines}.get(case)
    lines = table(references, device) if table else _rate_lines(references, device, case)
    if not lines:
        raise UsageError(
            f"no published figures of {case}" + (f" for {device}" if device else ""),
            hint="`windlass bench reference CASE` without --device-name lists what there is",
        )
    return lines


def _wanted(name: str, device: str | None) -> bool:
    return device is None or is_device(name, device) or is_device(device, name)


def _bandwidth_lines(references: References, device: str | None) -> list[str]:
    lines = []
    for row in references.bandwidth:
        if _wanted(row.device, device):
            size, how = binary_size(row.bytes), row.algorithm or row.transport
            at_least = ">= " if row.limit else ""
            shape = f"{row.nodes} node{'s' * (row.nodes > 1)}, {row.ranks} ranks"
            lines.append(
                f"{row.device:<7} {shape:<18} {row.op:<12} {size:>8} {at_least + format(row.busbw, 'g'):>8} GB/s busbw "
                f"{how:<9} {row.system}{_remark(row.note)} [{row.source}]"
            )
    for late in references.latency:
        if _wanted(late.device, device):
            shape = f"{late.nodes} nodes, {late.ranks} ranks"
            lines.append(
                f"{late.device:<7} {shape:<18} {late.op:<12} {binary_size(late.bytes):>8} {late.time_us:>8g} us"
                f"         {late.transport:<9} {late.system}{_remark(late.note)} [{late.source}]"
            )
    return lines + _sources(references, lines)


def _ceiling_lines(references: References, device: str | None) -> list[str]:
    lines = [
        f"{row.name:<20} {row.type:<5} datasheet {row.datasheet or '-':>7}   measured {row.measured or '-':>7} TFLOP/s "
        f"[{row.source}]"
        for row in references.device
        if _wanted(row.name, device)
    ]
    return lines + _sources(references, lines)


def _rate_lines(references: References, device: str | None, case: str) -> list[str]:
    lines = []
    for row in references.rate:
        if row.case == case and _wanted(row.device, device):
            shape = f"{row.nodes} nodes, {row.ranks} ranks"
            size = f"sequence {row.sequence}" if row.sequence else f"batch {row.batch}" if row.batch else ""
            lines.append(
                f"{row.device:<7} {shape:<19} {row.model:<10} {size:<14} {row.value:>9,.1f} {row.unit:<8} "
                f"{row.method} [{row.source}]"
            )
    return lines + _sources(references, lines)


def _sample_lines(references: References, device: str | None) -> list[str]:
    lines = [
        f"{row.name:<12} {row.bytes:>12,} bytes per sample{_remark(row.note)} [{row.source}]"
        for row in references.sample
    ]
    return lines + _sources(references, lines)


def _remark(note: str) -> str:
    return f" ({note})" if note else ""


def _sources(references: References, lines: Sequence[str]) -> list[str]:
    if not lines:
        return []
    used = sorted({match for line in lines for match in re.findall(r"\[([\w./-]+)\]\Z", line)})
    return [
        "",
        *(f"[{name}] {references.sources[name].where}; read {references.sources[name].checked}" for name in used),
    ]
