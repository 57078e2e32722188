"""Recorded traces: their location, the environment of each, and how to record, show and drop them.

A trace belongs to the environment it was recorded with: the paths of its roots and the files that mark a change (its
folder, `pyvenv.cfg`, conda's history, the site-packages folders). Another version of the environment gets another
trace.

A trace can be recorded before a run needs it: with one command, on this machine, through a separate view.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from windlass.base.procs.command import run_command, which
from windlass.errors import CommandError, ConfigError, DeadlineError, MachineError, UsageError
from windlass.node.cache import control
from windlass.node.cache.config import NodeConfig
from windlass.node.cache.pack import pack_path
from windlass.node.cache.roots import declare_roots
from windlass.node.cache.trace import BadTraceError, Trace, read_trace
from windlass.node.sys.atomic import replace_file
from windlass.node.sys.folders import temporary_folder

_MARKS = ("", "pyvenv.cfg", "conda-meta/history", "lib/python3*/site-packages", "lib64/python3*/site-packages")
_SUFFIX = ".trace.json"
_MAX_READ = 20


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
    """Size of the pack next to the trace. 0: no pack."""


def environment_identity(roots: Sequence[str]) -> str:
    """Return a short name for the current state of these roots.

    Needs a few calls on the shared file system. Raises `MachineError` for a missing root.
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
        raise MachineError(f"root {name}: {error.strerror}", hint="give an existing folder") from error
    return state.hexdigest()[:16]


def trace_path(folder: Path, identity: str) -> Path:
    """Return the path of an environment's trace, which need not exist yet."""
    if not identity or not all(c in "0123456789abcdef" for c in identity):
        raise UsageError(
            f"{identity!r} is not the identity of a trace", hint="list them with `windlass cache trace list`"
        )
    return folder / f"{identity}{_SUFFIX}"


def newest_trace(folder: Path, roots: Sequence[str]) -> Path | None:
    """Return the newest trace of these roots, in any version of their environments. None if there is none."""
    wanted = sorted(os.fsencode(root) for root in roots)
    with contextlib.suppress(OSError):
        found = [(path.stat().st_mtime_ns, path) for path in folder.glob(f"*{_SUFFIX}")]
        for _, path in sorted(found, reverse=True)[:_MAX_READ]:
            with contextlib.suppress(BadTraceError, OSError):
                if sorted(read_trace(str(path)).roots) == wanted:
                    return path
    return None


def list_traces(folder: Path) -> tuple[TraceSummary, ...]:
    """Return all readable traces, newest first. Other files are skipped."""
    found = []
    for path in folder.glob(f"*{_SUFFIX}") if folder.is_dir() else ():
        try:
            found.append(summary_of(path))
        except (BadTraceError, OSError):
            continue
    return tuple(sorted(found, key=lambda s: s.recorded_s, reverse=True))


def show_trace(folder: Path, identity: str) -> Trace:
    """Return a trace with every access in order. Raises `UsageError` if missing, `ConfigError` if unreadable."""
    path = trace_path(folder, identity)
    try:
        return read_trace(str(path))
    except FileNotFoundError:
        raise UsageError(
            f"no trace {identity} in {folder}", hint="list them with `windlass cache trace list`"
        ) from None
    except (OSError, BadTraceError) as error:
        raise ConfigError(f"{path}: {error}", hint="drop it; the next run records a new trace") from error


def drop_trace(folder: Path, identity: str) -> None:
    """Remove a trace and its pack. The next run records a new one. Raises `UsageError` if the trace is missing."""
    path = trace_path(folder, identity)
    Path(pack_path(str(path))).unlink(missing_ok=True)
    try:
        path.unlink()
    except FileNotFoundError:
        raise UsageError(
            f"no trace {identity} in {folder}", hint="list them with `windlass cache trace list`"
        ) from None


def summary_of(path: Path) -> TraceSummary:
    """Read one trace. Raises `BadTraceError` or `OSError` if it cannot be read."""
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


_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX")


def record_trace(
    roots: Sequence[str],
    argv: Sequence[str],
    environ: Mapping[str, str],
    traces: Path,
    timeout_s: float,
    *,
    partial: bool = False,
) -> TraceSummary:
    """Run `argv` with the roots seen through a view, and save what it reads as their trace.

    Replaces an older trace. Raises `MachineError` if no view is possible, `CommandError` or `DeadlineError` if the
    command fails. The older trace then remains. Temporary files are removed. `partial`: keep what a command read that
    failed or was ended, and leave a trace alone that a run has written meanwhile.
    """
    identity = environment_identity(roots)
    # In the folder of the final trace: the pack is too large to be copied again.
    traces.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = traces / f"{identity}.{os.getpid()}.recording"
    try:
        kept_after = (CommandError, DeadlineError) if partial else ()
        with contextlib.suppress(*kept_after), temporary_folder(f"windlass-{os.getuid()}-trace-") as base:
            _record(base, made, roots, argv, environ, timeout_s)
        path = trace_path(traces, identity)
        return summary_of(path) if partial and path.exists() else _keep(made, path)
    finally:
        for left in (made, Path(pack_path(str(made)))):
            left.unlink(missing_ok=True)


def _record(
    base: Path, made: Path, roots: Sequence[str], argv: Sequence[str], environ: Mapping[str, str], timeout_s: float
) -> None:
    """Run the command in a view whose processes use the folder `base`, and write its trace to `made`."""
    state = base / "state"
    config = NodeConfig(
        job=f"trace{os.getpid()}.{time.monotonic_ns():x}",
        node=0,
        hosts=("127.0.0.1",),
        roots=declare_roots(list(roots)),
        state_dir=str(state),
        key_file=str(base / "key"),
        mount=str(state / "view"),
        trace_out=str(made),
        owner_pids=(os.getpid(),),
    )
    _write_key(base / "key")
    try:
        control.start(config)
        command, env = _in_view(roots, argv, environ, config.mount)
        run_command(command, timeout_s=timeout_s, env=env)
    except control.ControlError as error:
        raise MachineError(f"no view of {roots[0]}: {error}", hint="does this machine have /dev/fuse?") from error
    finally:
        control.stop(str(state))


def _write_key(path: Path) -> None:
    replace_file(str(path), os.urandom(32), 0o600)


def _keep(made: Path, path: Path) -> TraceSummary:
    try:
        found = summary_of(made)
    except (OSError, BadTraceError) as error:
        hint = "check that the command reads files below --root"
        raise MachineError(f"no trace was recorded: {error}", hint=hint) from None
    if not found.files and not found.directories:
        raise MachineError("the command read nothing below --root", hint="start the environment's own bin/python")
    with contextlib.suppress(FileNotFoundError):  # there was no space for it
        Path(pack_path(str(made))).rename(pack_path(str(path)))
    made.rename(path)
    return summary_of(path)


def _in_view(
    roots: Sequence[str], argv: Sequence[str], environ: Mapping[str, str], view: str
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Return the command and its variables with paths in the view. Programs of the roots come first in PATH."""

    def swap(path: str) -> str:
        below = any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)
        return view + path if below else path

    found = dict(environ)
    for name in _VARIABLES:
        if name in found:
            found[name] = ":".join(swap(part) for part in found[name].split(":"))
    first = [f"{view}{root}/bin" for root in roots if Path(root, "bin").is_dir()]
    found["PATH"] = ":".join([*first, found.get("PATH", os.defpath)])
    program = swap(argv[0]) if "/" in argv[0] else which(argv[0], found)
    if program is None:
        raise UsageError(f"{argv[0]}: no such program in the environment or in PATH", hint="give its path")
    return (program, *argv[1:]), found
