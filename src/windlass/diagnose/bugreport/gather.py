"""Gather a bug report. Each part runs separately with a deadline, so that a part that hangs or fails affects no other.

The size is limited too. Only the ends of logs are included, and all parts together have at most `MAX_BYTES`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from windlass.base.notation.counts import size_text
from windlass.base.procs.command import own_argv, run_command
from windlass.base.settings import Settings, read_settings
from windlass.diagnose.bugreport.about import (
    config_text,
    environment_text,
    plan_of,
    run_files,
    site_text,
    state_text,
    tools_text,
    version_text,
)
from windlass.errors import CommandError, MachineError, UsageError, WindlassError
from windlass.model.plan import Plan
from windlass.run.bundle import scrubber, write_archive
from windlass.run.folder import RunFolder
from windlass.run.supervise.runs import find_run

MAX_BYTES = 4 << 20
PART_S = 20.0
DOCTOR_S = 60.0
SUMMARY = "SUMMARY.txt"
_TOP = "windlass-bugreport"

T = TypeVar("T")
Tell = Callable[[str], None]
"""Prints a progress message."""


@dataclass(kw_only=True, slots=True)
class ReportParts:
    """Texts by their names in the archive, and the missing parts with the reasons."""

    files: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, text: str) -> None:
        """Add a text if it fits into the size limit."""
        used = sum(len(other) for other in self.files.values())
        if used + len(text) > MAX_BYTES:
            self.left[name] = f"the report is full ({size_text(MAX_BYTES)})"
        else:
            self.files[name] = text


@dataclass(frozen=True, kw_only=True, slots=True)
class BugReport:
    """The result: the archive and its contents."""

    path: Path
    run: str | None
    files: Mapping[str, int]
    """Sizes by name."""
    left_out: Mapping[str, str]
    summary: str


def write_report(
    environ: Mapping[str, str],
    *,
    run: str | None,
    out: str | None,
    without: Collection[str] = (),
    tell: Tell = lambda _: None,
) -> BugReport:
    """Gather the report and write the archive.

    `run` is a run folder or its name. None selects the last run, if one exists. `out` is the archive, by default a file
    in the current directory with the time in its name. Raises `UsageError` if the run does not exist or the file cannot
    be written."""
    path = Path(out or f"{_TOP}-{time.strftime('%Y%m%d-%H%M%S', time.localtime())}.tar.gz").expanduser()
    settings, trouble = _settings(environ)
    folder, plan = _run(run, settings)
    given = plan.request.env if plan else ()
    home = environ.get("HOME", "").rstrip("/")
    scrub = _within(PART_S, lambda: scrubber(environ, given, plan, folder, home=home))
    if isinstance(scrub, Exception):
        place = folder.path if folder else "the run"
        raise MachineError(
            f"nothing was written: the secrets in {place}, which must be left out, cannot be read ({scrub})",
            hint="name another run",
        ) from scrub
    parts = gather(environ, settings, folder, plan, without=without, tell=tell)
    files = {name: scrub.clean(text) for name, text in parts.files.items()}
    left = {name: scrub.clean(why) for name, why in {**trouble, **parts.left}.items()}
    summary = summary_text(files, left)
    write_archive(path, _TOP, {SUMMARY: summary, **files}, scrub, option="-o FILE")
    sizes = {name: len(text.encode("utf-8", "surrogateescape")) for name, text in files.items()}
    return BugReport(path=path, run=str(folder.path) if folder else None, files=sizes, left_out=left, summary=summary)


def _settings(environ: Mapping[str, str]) -> tuple[Settings, dict[str, str]]:
    """The user's settings. If they are invalid, returns the defaults and the reason."""
    try:
        return read_settings(environ), {}
    except WindlassError as error:
        plain = {name: value for name, value in environ.items() if not name.startswith("WINDLASS_")}
        return read_settings({**plain, "WINDLASS_CONFIG": os.devnull}), {"settings": str(error)}


def _run(run: str | None, settings: Settings) -> tuple[RunFolder | None, Plan | None]:
    def find() -> tuple[RunFolder, Plan | None]:
        folder = find_run(run, settings.runs_dir)
        return folder, plan_of(folder)

    found = _within(PART_S, find)
    if isinstance(found, tuple):
        return found
    if run is not None:
        raise (
            found
            if isinstance(found, WindlassError)
            else UsageError(f"{run}: {found}", hint="leave the run out to report the rest")
        )
    return None, None


def gather(
    environ: Mapping[str, str],
    settings: Settings,
    folder: RunFolder | None,
    plan: Plan | None,
    *,
    without: Collection[str],
    tell: Tell,
) -> ReportParts:
    """All parts but those `without` names. The parts about this machine come first."""
    parts = ReportParts()
    texts: dict[str, Callable[[], str]] = {
        "version.txt": lambda: version_text(environ),
        "site.txt": lambda: site_text(settings, environ),
        "tools.txt": lambda: tools_text(environ),
        "environment.txt": lambda: environment_text(environ),
        "config.txt": lambda: config_text(settings),
    }
    if folder is not None:
        texts["run/state.txt"] = lambda: state_text(folder, environ)
    for name, make in texts.items():
        tell(name.removesuffix(".txt"))
        said = _within(PART_S, make)
        if isinstance(said, str):
            parts.add(name, said)
        else:
            parts.left[name] = str(said)
    if folder is None:
        parts.left["run"] = f"no run was found in {settings.runs_dir}"
    else:
        _add_run(parts, folder, plan, "logs" not in without)
    if "doctor" not in without:
        tell("quick checks")
        parts.add("doctor.txt", _doctor_text(environ))
    else:
        parts.left["doctor.txt"] = "--without doctor"
    return parts


def _add_run(parts: ReportParts, folder: RunFolder, plan: Plan | None, logs: bool) -> None:
    found = _within(PART_S, lambda: run_files(folder, plan, logs=logs))
    if isinstance(found, Exception):
        parts.left["run"] = str(found)
        return
    files, left = found
    for name, text in files.items():
        parts.add(f"run/{name}", text)
    parts.left.update({f"run/{name}": why for name, why in left.items()})


def _within(seconds: float, make: Callable[[], T]) -> T | Exception:
    """The result or the exception of `make`. Stops waiting after this many seconds.

    A dead file system blocks its readers for ever."""
    found: list[T | Exception] = []

    def run() -> None:
        try:
            found.append(make())
        except Exception as error:  # a failing part must not hide the others
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else TimeoutError(f"no answer within {seconds:g} s")


def _doctor_text(environ: Mapping[str, str]) -> str:
    """The output of `windlass doctor --quick`, which runs in a process that can be killed."""
    argv = (*own_argv(), "doctor", "--quick", "--all")
    try:
        done = run_command(argv, timeout_s=DOCTOR_S, env={**environ, "NO_COLOR": "1"}, check=False)
        return done.stdout + done.stderr
    except CommandError as error:
        return f"{error.message}\n{error.output}"


def summary_text(files: Mapping[str, str], left: Mapping[str, str]) -> str:
    """A readable list of the included and the omitted parts."""
    width = max((len(name) for name in (*files, *left)), default=0)
    first = files.get("version.txt", "").splitlines()
    detected = [line for line in files.get("site.txt", "").splitlines() if line.startswith("detected:")]
    state = files.get("run/state.txt", "").splitlines()[1:2]
    lines = [*first, *detected, *(f"run {line}" for line in state), "", "inside:"]
    lines += [f"  {name:<{width}}  {size_text(len(text)):>9}" for name, text in files.items()]
    lines += ["", "left out:", *(f"  {name:<{width}}  {why}" for name, why in left.items())]
    lines.append("  values of your own variables; tokens, keys and passwords whose names and forms windlass recognises")
    return "\n".join(lines) + "\n"
