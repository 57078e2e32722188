"""Every case by name: options and run function of measuring cases, tables and charts of every record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from windlass.bench.record import BenchRecord
from windlass.bench.reference import References
from windlass.bench.runner import Bench
from windlass.errors import ConfigError

# The case and the name of its options class. The help of a command is the docstring of its package or module.
_MEASURING = {
    "collectives": "CollectivesOptions",
    "matmul": "MatmulOptions",
    "ddp": "DdpOptions",
    "llm": "LlmCaseOptions",
    "io": "IoOptions",
}
# Cases that are one module. The others have a package whose `rows` module runs the case and shows its records.
_MODULES = ("ddp", "llm", "scale", "start")
# Cases that show their own records, and those that are shown as training runs.
_TRAINED = ("llm", "resnet")
_SHOWN = ("collectives", "matmul", "ddp", "io", "scale", "start")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A case that measures by starting ranks."""

    help: str
    options: type
    run: Callable[[Bench], BenchRecord]


def measuring_case(name: str) -> Case:
    """Return the case of that name. Its `run` rejects invalid options before it starts anything."""
    whole = _part(name)
    options = getattr(_part(name, "options"), _MEASURING[name])
    return Case(help=whole.__doc__ or "", options=options, run=_part(name, "rows").run)


def table_text(record: BenchRecord) -> str:
    """Return the table of a record."""
    return str(_shows(record).text(record)) if record.rows else "nothing was measured"


def charts(record: BenchRecord, references: References) -> list[tuple[str, str]]:
    """Return (caption, svg) of every chart of this record."""
    return [(caption, svg) for caption, svg in _shows(record).charts(record, references) if svg]


def _shows(record: BenchRecord) -> Any:
    if record.case not in (*_SHOWN, *_TRAINED):
        raise ConfigError(f"cannot show a record of `bench {record.case}`", hint=f"known: {', '.join(_SHOWN)}, llm")
    return _part("train" if record.case in _TRAINED else record.case, "rows")


def _part(case: str, part: str = "") -> Any:
    return import_module(f"windlass.bench.{case}" + (f".{part}" if part and case not in _MODULES else ""))
