"""The whole job at one moment, as the run folder stores it: one row per node, device and rank. Values only.

Rows are JSON arrays, so that 10,000 nodes need a few megabytes and are read in a fraction of a second.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from windlass.errors import ConfigError, VersionError
from windlass.model.finding import Finding
from windlass.model.jsontext import Versioned, from_json
from windlass.node.sys.reading import read_bytes

FOLDER = "watch"
"""Name of the directory in the run folder."""
NOW_FILE = "now.json"
MAX_HISTORY_BYTES = 64 << 20
HISTORY_FILE = "history.jsonl"
JOB_VERSION = 1
RankActivity = Literal["steps", "python", "command", "ended"]
"""`steps`: the rank has taken steps. `python`: a Python process with the hook, but no step yet. `command`: running, but
without the hook. `ended`: its process has exited."""


Index = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Bytes = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class NodeRow(msgspec.Struct, frozen=True, array_like=True):
    """One node. None means not measured on this node."""

    host: str
    at: float
    """Time of its last sample. 0 if no sample has arrived yet."""
    cpu: float | None = None
    memory_bytes: Bytes | None = None
    """Working set: memory that cannot be freed without writing it to a file or to swap."""
    memory_limit_bytes: Bytes | None = None
    rx_bytes_s: float | None = None
    tx_bytes_s: float | None = None
    shared_read_bytes_s: float | None = None
    """Traffic of Lustre and NFS."""
    shared_write_bytes_s: float | None = None
    disk_read_bytes_s: float | None = None
    disk_write_bytes_s: float | None = None
    power_w: float | None = None
    memory_peak_bytes: Bytes | None = None
    growth_bytes_s: float | None = None
    """Growth of its memory while ranks take steps, if it grows continuously."""


class DeviceRow(msgspec.Struct, frozen=True, array_like=True):
    """One accelerator."""

    node: Index
    index: Index
    busy: float | None = None
    memory_bytes: Bytes | None = None
    memory_total_bytes: Bytes | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    clock_mhz: float | None = None
    throttled: bool | None = None
    worked: float | None = None
    """Mean of `busy` while ranks took steps."""
    throttled_share: float | None = None
    """Share of the samples while ranks took steps."""
    unverified: bool = False
    """Its reader has never run on a device of this kind."""


class RankRow(msgspec.Struct, frozen=True, array_like=True):
    """One rank. `step_ms`, `wait_share` and `comm_share` describe the newest steps, without warm-up and pauses.

    `comm_share` is the communication that DDP measured and that computation does not hide. None means not measured."""

    rank: Index
    node: Index
    activity: RankActivity
    steps: Bytes = 0
    last_at: float | None = None
    step_ms: float | None = None
    wait_share: float | None = None
    comm_share: float | None = None
    cpu: float | None = None
    """Number of cores that its processes keep busy."""
    memory_bytes: Bytes | None = None
    all_ms: float | None = None
    """Mean of all its steps."""
    p95_ms: float | None = None
    all_wait_share: float | None = None
    alloc_retries: Bytes | None = None
    median_ms: float | None = None
    """Median of all its steps."""
    first_at: float | None = None
    """Time at which its first step ended."""
    doing: str = ""
    """Activity since its last step: `data` (it fetches batches), `save`, or empty if unknown."""
    doing_at: float | None = None
    gil_us: float | None = None
    """Time until the main thread gets Python's lock (GIL) back."""
    nan_step: Bytes | None = None
    """The step after which parameters were NaN."""
    phases_s: tuple[float, float, float, float, float, float] | None = None
    """Seconds of start-up, warm-up, steps, evaluation, save and other pauses."""
    run_delay: float | None = None
    """Share of the time in which its main thread was ready but had no core, as a mean of the samples with steps.

    If the kernel does not count that, the share of its cores that other processes used while all of them were busy."""
    slow_share: float | None = None
    """Share of the compared samples in which this rank itself, without waiting, was slower than the others."""


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A figure that could not be measured, and on which nodes."""

    text: str
    nodes: str
    """Folded host list."""


class About(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of the plan that the rules need."""

    cpus_per_rank: Index = 0
    """0 if not bound."""
    bound_by: str = ""
    profiled: tuple[Index, ...] = ()
    remarks: tuple[Finding, ...] = ()
    """Remarks of the plan that explain a slow run."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The job according to the last samples."""

    version: int = JOB_VERSION
    at: float
    name: str
    interval_s: float
    ended: bool = False
    cores: Index = 0
    """Cores of a node that the ranks can use. 0 if unknown."""
    started: float = 0.0
    about: About = About()
    compared: Index = 0
    """Number of samples in which the ranks were compared: the newest of a running job, all of an ended job."""
    uneven: Index = 0
    """Number of these samples that had a slow rank."""
    shared_files: tuple[tuple[str, tuple[Index, ...]], ...] = ()
    """Files that several ranks saved at the same step, with these ranks."""
    nodes: tuple[NodeRow, ...]
    devices: tuple[DeviceRow, ...] = ()
    ranks: tuple[RankRow, ...] = ()
    notes: tuple[Note, ...] = ()

    def __post_init__(self) -> None:
        on = [device.node for device in self.devices] + [rank.node for rank in self.ranks]
        if on and max(on) >= len(self.nodes):
            raise ValueError("a device or a rank is on an unknown node")


class HistoryHead(msgspec.Struct, frozen=True, kw_only=True):
    """First line of the history. It defines the columns of all other lines."""

    version: int = JOB_VERSION
    hosts: tuple[str, ...]
    devices: tuple[tuple[Index, Index], ...]
    """Node and index of each device."""
    ranks: tuple[Index, ...]


class HistoryLine(msgspec.Struct, frozen=True, kw_only=True):
    """Means over a span of time, one entry per node, device and rank of the head. None if there was no value."""

    begin: float
    end: float
    nodes: tuple[tuple[float | None, float | None, float | None, float | None, float | None], ...]
    """Busy CPUs, memory, network, shared file systems (bytes per second), power."""
    devices: tuple[tuple[float | None, float | None, float | None], ...]
    """Busy, power, memory."""
    ranks: tuple[tuple[float | None, float | None, float | None, float | None], ...]
    """Step in ms, share of waiting for data, share of communication, busy cores."""


def read_job(folder: Path) -> Job | None:
    """The job of a run folder, or None if it has no samples. Raises `ConfigError` for a damaged file."""
    path = folder / FOLDER / NOW_FILE
    try:
        data = read_bytes(path, MAX_HISTORY_BYTES, within=folder)
    except OSError:
        return None
    try:
        version = from_json(data, Versioned).version
        if version > JOB_VERSION:
            raise VersionError(
                f"{path}: version {version} is newer than this windlass reads", hint="use a newer windlass"
            )
        return msgspec.json.decode(data, type=Job)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{path}: not samples of a job: {error}", hint="it is damaged; the next sample replaces it"
        ) from error


def read_history(folder: Path) -> tuple[HistoryHead | None, tuple[HistoryLine, ...], int]:
    """Head and lines of a run folder's history, and the number of lines that could not be read."""
    try:
        raw = read_bytes(folder / FOLDER / HISTORY_FILE, 2 * MAX_HISTORY_BYTES, within=folder).splitlines()
    except OSError:
        return None, (), 0
    head: HistoryHead | None = None
    lines, torn = [], 0
    for text in raw:
        try:
            if head is None:
                head = msgspec.json.decode(text, type=HistoryHead)
            else:
                lines.append(msgspec.json.decode(text, type=HistoryLine))
        except msgspec.DecodeError:
            torn += 1
    return head, tuple(lines), torn
