"""One file to all nodes: how fast `windlass stage` pushes it, beside what the links or a plain copy can do.

Over links of a known rate the figure is the share of that rate that every node receives at: bytes / seconds / rate. On
loopback, where all nodes share one machine, it is the rate of all hops together, bytes x (nodes - 1) / seconds, beside
that of one plain TCP copy to a file, which has the machine for itself.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from startup import rivals
from startup.cases import in_rounds
from startup.links import Links, linked
from startup.machine import hosted, remove_tree
from startup.onehop import one_hop
from windlass.errors import MachineError
from windlass.model.plan import CacheRoot
from windlass.run.stage.push import stage_service

LINK_CASES = ("stage", "stage-one", "sbcast", "mpi")
LOOPBACK_CASES = ("raw", "raw-memory", *LINK_CASES)
_LONGEST_S = 900.0
_PIECE = 1 << 20
_SPARE_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class PushSetup:
    """Where and what: a file of `size` bytes in `work`, over links of `link_bits_per_s`, or loopback without."""

    work: Path
    size: int
    link_bits_per_s: int | None

    @property
    def file(self) -> Path:
        return self.work / "push.data"

    @property
    def link_bytes_per_s(self) -> float | None:
        return None if self.link_bits_per_s is None else self.link_bits_per_s / 8


@dataclass(frozen=True, kw_only=True, slots=True)
class PushSample:
    """`seconds`: until the last node has all of it, agents and daemons being up. `ready_s`: their start included."""

    seconds: float
    ready_s: float | None = None
    cpu_s: float | None = None
    shared_calls: int | None = None
    shared_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PushResult:
    """The samples of one case at one size: the columns of every row of `bench/start.py`, and those of a push."""

    case: str
    nodes: int
    ranks: int
    bytes: int
    seconds: float | None = None
    shared_calls: int | None = None
    shared_bytes: int | None = None
    rate: float | None = None
    """Bytes a second that every node receives at: bytes / seconds."""
    link_share: float | None = None
    """rate / the link's rate."""
    hop_rate: float | None = None
    """Bytes a second of all hops together: bytes x (nodes - 1) / seconds."""
    of_raw: float | None = None
    """hop_rate / that of the plain copy to a file in the same run."""
    cpu_seconds: float | None = None
    """Processor time of all nodes, the agents' start included."""
    low: float | None = None
    high: float | None = None
    ready_seconds: float | None = None
    samples: tuple[float, ...] = ()
    not_measured: str = ""


def measure_push(
    setup: PushSetup, cases: tuple[str, ...], sizes: tuple[int, ...], repeat: int, tell: Callable[[str], None]
) -> list[PushResult]:
    """All cases at all sizes, one after the other in every round. Raises `MachineError` where nodes cannot be made."""
    _check_room(setup, max(sizes))
    _make_file(setup.file, setup.size)
    order = _order(cases, sizes)
    samples: dict[tuple[str, int], list[PushSample]] = {key: [] for key in order}
    missing = in_rounds(order, repeat, tell, lambda case, nodes: samples[case, nodes].append(_one(setup, case, nodes)))
    return compared([_result(setup, case, nodes, found, missing) for (case, nodes), found in samples.items()])


def _order(cases: tuple[str, ...], sizes: tuple[int, ...]) -> list[tuple[str, int]]:
    """A plain copy has two ends, whatever the number of nodes."""
    plain = [(case, 2) for case in cases if case.startswith("raw")]
    return plain + [(case, nodes) for nodes in sizes for case in cases if not case.startswith("raw")]


def _one(setup: PushSetup, case: str, nodes: int) -> PushSample:
    with _folder(setup.work / "case") as work:
        if case == "raw":
            return PushSample(seconds=one_hop(setup.file, work / "copy"))
        if case == "raw-memory":
            return PushSample(seconds=one_hop(setup.file, None))
        with contextlib.ExitStack() as stack:
            links = None
            if setup.link_bits_per_s is not None:
                links = stack.enter_context(linked(nodes, setup.link_bits_per_s))
            if case.startswith("stage"):
                return staged(setup, nodes, work, links, one_reader=case == "stage-one")
            network = links if links is not None else rivals.Loopback(nodes)
            if case == "sbcast":
                done = rivals.sbcast(network, nodes, setup.file, work, _LONGEST_S)
                return PushSample(seconds=done.seconds, cpu_s=done.cpu_s)
            apart = links is not None
            return PushSample(seconds=rivals.mpi_bcast(network, nodes, setup.size, work, _LONGEST_S, apart=apart))


def staged(setup: PushSetup, nodes: int, work: Path, links: Links | None, *, one_reader: bool) -> PushSample:
    """By the engine of `windlass stage`, from agents on every node; every copy is compared in size. With `one_reader`
    every byte leaves one node, as with the rivals; without, several nodes read parts of the file themselves."""
    run = work / "run"
    run.mkdir()
    source = CacheRoot(path=str(setup.file), real=str(setup.file))
    service = stage_service((source,), f"{work}/to-{{node}}", extract=False, shard=False, one_reader=one_reader)
    with hosted(_Here(work), nodes, run, work, service, links) as up:
        pass
    for node in range(nodes):
        found = (work / f"to-{node}" / setup.file.name).stat().st_size
        if found != setup.size:
            raise MachineError(
                f"node {node} has {found:,} of {setup.size:,} bytes", hint="is there room for the copies in /tmp?"
            )
    ended = list(up.ended.values())
    if len(ended) < nodes or not all("span" in figures for figures in ended):
        raise MachineError("an agent did not say how long it took", hint="measure again: the agent was ended too early")
    spans = [figures["span"] for figures in ended]
    return PushSample(
        seconds=max(span[1] for span in spans) - min(span[0] for span in spans),
        ready_s=up.ready_s,
        cpu_s=sum(figures["cpu_s"] for figures in ended),
        shared_calls=sum(figures["source_calls"] for figures in ended),
        shared_bytes=sum(figures["source_bytes"] for figures in ended),
    )


class _Here:
    """All nodes see this machine's files."""

    def __init__(self, work: Path) -> None:
        self._work = work

    def path(self, node: int | str) -> Path:
        return self._work


def _result(
    setup: PushSetup, case: str, nodes: int, found: list[PushSample], missing: Mapping[tuple[str, int], str]
) -> PushResult:
    if not found:
        why = missing.get((case, nodes), "no sample")
        return PushResult(case=case, nodes=nodes, ranks=nodes, bytes=setup.size, not_measured=why)
    seconds = statistics.median(sample.seconds for sample in found)
    rate = setup.size / seconds
    link = setup.link_bytes_per_s
    return PushResult(
        case=case,
        nodes=nodes,
        ranks=nodes,
        seconds=round(seconds, 3),
        shared_calls=_median([sample.shared_calls for sample in found], 0),
        shared_bytes=_median([sample.shared_bytes for sample in found], 0),
        bytes=setup.size,
        rate=round(rate),
        link_share=None if link is None else round(rate / link, 3),
        hop_rate=round(rate * (nodes - 1)),
        cpu_seconds=_median([sample.cpu_s for sample in found], 2),
        low=round(min(sample.seconds for sample in found), 3),
        high=round(max(sample.seconds for sample in found), 3),
        ready_seconds=_median([sample.ready_s for sample in found], 3),
        samples=tuple(round(sample.seconds, 3) for sample in found),
    )


def compared(rows: list[PushResult]) -> list[PushResult]:
    """The rows with their share of the plain copy to a file, where there is one."""
    raw = next((row.hop_rate for row in rows if row.case == "raw" and row.hop_rate), None)
    if raw is None:
        return rows
    return [replace(row, of_raw=round(row.hop_rate / raw, 3)) if row.hop_rate else row for row in rows]


def _median(values: list[Any], digits: int) -> Any:
    known = [value for value in values if value is not None]
    if not known:
        return None
    found = statistics.median(known)
    return round(found, digits) if digits else int(found)


def _check_room(setup: PushSetup, nodes: int) -> None:
    """One file for each node, and the one they come from."""
    room = shutil.disk_usage(setup.work).free
    needed = (nodes + 1) * setup.size + _SPARE_BYTES
    if room < needed:
        raise MachineError(
            f"{setup.work} has room for {room / 1e9:.1f} GB, {nodes} copies of the file take {needed / 1e9:.1f} GB",
            hint="give another folder with --work, or a smaller --push",
        )


def _make_file(path: Path, size: int) -> None:
    """Bytes that do not compress, in the page cache afterwards."""
    piece = os.urandom(_PIECE)
    with path.open("wb") as file:
        for start in range(0, size, _PIECE):
            file.write(piece[: min(_PIECE, size - start)])


@contextlib.contextmanager
def _folder(path: Path) -> Iterator[Path]:
    path.mkdir()
    try:
        yield path
    finally:
        remove_tree(path)
