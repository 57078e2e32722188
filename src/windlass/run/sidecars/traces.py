"""The recorded traces: where they lie, which environment each belongs to, and showing and dropping them.

A trace belongs to the environment it was recorded with: the paths of its roots and what marks a change of it (its own
folder, `pyvenv.cfg`, conda's history, the site-packages folders). Another version of it gets another trace.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from windlass.errors import ConfigError, MachineError, UsageError
from windlass.node.cache.pack import pack_path
from windlass.node.cache.roots import declare_roots
from windlass.node.cache.trace import BadTraceError, Trace, read_trace

_MARKS = ("", "pyvenv.cfg", "conda-meta/history", "lib/python3*/site-packages", "lib64/python3*/site-packages")
_SUFFIX = ".trace.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceSummary:
    """One recorded trace, for a list."""

    identity: str
    roots: tuple[str, ...]
    directories: int
    files: int
    file_bytes: int
    recorded_s: float
    pack_bytes: int = 0
    """Of the pack beside it; 0: none."""


def environment_identity(roots: Sequence[str]) -> str:
    """A short name for these roots as they are now.

    Costs a handful of calls on the shared file system. Raises `MachineError` for a root that is not there.
    """
    state = hashlib.sha256()
    try:
        for root in declare_roots(list(roots)):
            state.update(root.view + b"\0" + root.real + b"\0")
            folder = Path(os.fsdecode(root.real))
            for mark in _MARKS:
                for found in sorted(folder.glob(mark)) if "*" in mark else [folder / mark]:
                    if found.exists():
                        status = found.stat()
                        state.update(os.fsencode(f"{found} {status.st_size} {status.st_mtime_ns}\n"))
    except OSError as error:
        name = os.fsdecode(error.filename or "")
        raise MachineError(f"root {name}: {error.strerror}", hint="give a folder that is there") from error
    return state.hexdigest()[:16]


def trace_path(folder: Path, identity: str) -> Path:
    """Where the trace of an environment lies or will lie."""
    if not identity or not all(c in "0123456789abcdef" for c in identity):
        raise UsageError(f"{identity!r} is not the identity of a trace", hint="see the list of traces")
    return folder / f"{identity}{_SUFFIX}"


def list_traces(folder: Path) -> tuple[TraceSummary, ...]:
    """All traces that can be read, newest first; a file that is no trace is left out."""
    found = []
    for path in folder.glob(f"*{_SUFFIX}") if folder.is_dir() else ():
        try:
            found.append(summary_of(path))
        except (BadTraceError, OSError):
            continue
    return tuple(sorted(found, key=lambda s: s.recorded_s, reverse=True))


def show_trace(folder: Path, identity: str) -> Trace:
    """A trace with every touch in order. `UsageError` where there is none, `ConfigError` where it cannot be read."""
    path = trace_path(folder, identity)
    try:
        return read_trace(str(path))
    except FileNotFoundError:
        raise UsageError(f"no trace {identity} in {folder}", hint="see the list of traces") from None
    except (OSError, BadTraceError) as error:
        raise ConfigError(f"{path}: {error}", hint="drop it: the next run records a new one") from error


def drop_trace(folder: Path, identity: str) -> None:
    """Removes a trace and its pack; the next run records a new one. `UsageError` where there is none."""
    path = trace_path(folder, identity)
    Path(pack_path(str(path))).unlink(missing_ok=True)
    try:
        path.unlink()
    except FileNotFoundError:
        raise UsageError(f"no trace {identity} in {folder}", hint="see the list of traces") from None


def summary_of(path: Path) -> TraceSummary:
    """One trace; `BadTraceError` or `OSError` where it cannot be read."""
    trace = read_trace(str(path))
    pack = Path(pack_path(str(path)))
    return TraceSummary(
        identity=path.name.removesuffix(_SUFFIX),
        roots=tuple(os.fsdecode(r) for r in trace.roots),
        directories=sum(t.is_directory for t in trace.touches),
        files=len({t.path for t in trace.touches if not t.is_directory}),
        file_bytes=trace.file_bytes,
        recorded_s=path.stat().st_mtime,
        pack_bytes=pack.stat().st_size if pack.exists() else 0,
    )
