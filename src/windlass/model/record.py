"""The record of a run: what ran where, how it ended, and its measurements. Versioned JSON."""

from __future__ import annotations

from typing import Literal

import msgspec

from windlass.errors import ConfigError, VersionError
from windlass.model.finding import Finding
from windlass.model.jsontext import Versioned, from_json, to_json

RECORD_VERSION = 1

Outcome = Literal["ok", "failed", "killed", "stopped", "not-started"]


class RankFailure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first rank that failed. `signal` is set if a signal ended it."""

    rank: int | None
    host: str | None = None
    code: int | None = None
    signal: int | None = None
    log: str | None = None
    last_lines: tuple[str, ...] = ()
    said: str = ""
    """The launcher's own message about it ("Out Of Memory")."""

    @property
    def exit_code(self) -> int:
        """The exit code as a shell reports it: the code, or 128 + signal."""
        if self.signal is not None:
            return 128 + self.signal
        return self.code if self.code else 1


class RunRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one run, `result.json` in its folder."""

    version: int
    windlass: str
    name: str
    site: str
    nodes: int
    ranks_per_node: int
    hosts: str
    job_id: str | None = None
    outcome: Outcome
    exit_code: int
    started: str
    seconds: float
    launch_argv: tuple[str, ...] = ()
    failure: RankFailure | None = None
    remarks: tuple[str, ...] = ()
    steps: int | None = None
    """Number of steps of the rank with the most steps. None: not sampled."""
    step_ms: float | None = None
    """Median step."""
    findings: tuple[Finding, ...] = ()
    """Findings of the rules of `windlass report` in the samples."""


def record_to_json(record: RunRecord) -> bytes:
    return to_json(record)


def record_from_json(data: bytes, *, where: str = "record") -> RunRecord:
    """Decode a record. A truncated file or a newer version is an error that names `where`."""
    try:
        version = from_json(data, Versioned).version
        if version > RECORD_VERSION:
            raise VersionError(
                f"{where}: record version {version} is newer than this windlass reads", hint="use a newer windlass"
            )
        return from_json(data, RunRecord)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{where}: not a record of a run: {error}",
            hint="it is damaged; the output of the run is in `out` in the same folder",
        ) from error
