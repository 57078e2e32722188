"""The run folder: plan, scripts, output, the node of each rank, and how it ended. One per run, private to the user.

Windlass runs files of this folder with the user's rights and secrets, so no other user may write to it. A new folder
has mode 0700. An existing folder loses the write access of group and others before the first file is written.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from windlass.errors import ConfigError, MachineError, UsageError, WindlassError, os_errors
from windlass.model.jsontext import from_json, to_json
from windlass.model.plan import PLAN_VERSION, Plan, plan_from_json, plan_to_json
from windlass.model.record import RunRecord, record_from_json, record_to_json
from windlass.node.ray import ARCHIVE_FILE, TOKEN_FILE
from windlass.node.sys.atomic import create_file, replace_file
from windlass.node.sys.folders import UntrustedError, exposure, keep_to_ourselves, private_folder
from windlass.node.sys.identity import Process, this_process
from windlass.node.sys.reading import read_bytes, read_text
from windlass.plan.agents import plan_agents
from windlass.plan.inputs import Secrets
from windlass.plan.render.variables import SECRETS_FILE, secrets_text
from windlass.run.trust import (
    COMPONENTS,
    SIGNATURE_FILE,
    component_folders,
    is_component,
    seal_component,
    seal_folder,
    sign_file,
)

PLAN_FILE = "plan.json"
RESULT_FILE = "result.json"
AGENT_FILE = "agent.pyz"
RUN_ID_FILE = "run-id"
BATCH_FILE = "batch.sh"
COMMAND_FILE = "command.json"
_PARTS = ("out", "where", "ends", "comm")
_OF_ATTEMPT = (
    "watch",
    "launcher.log",
    "agents.log",
    "agents.out",
    "evidence",
    "flight",
    "verdict.json",
    "components.json",
    "out.since",
)
"""Files of one start, in addition to the parts."""
IN_PLACE = ("where", "ends", "comm", RESULT_FILE, "evidence", "flight", "verdict.json")
"""Files of one start in place. The step of the launcher and the agents stay, and continue to write the others."""
_OTHER_PLACE = "choose another place with --run-dir"
_log = logging.getLogger("windlass")


class FolderUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A command that is not a run, with a separate folder next to the run folders."""

    version: int = 1
    command: str
    process: Process
    outcome: Literal["", "done", "failed"] = ""
    """Empty: the command still runs, or was killed."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of one run."""

    path: Path

    @property
    def run_id(self) -> str:
        """Return a name for objects outside the folder that belong to this run (node-local folders).

        It is file-safe, and random so that no other user can create them first. Folders of 0.1.0 do not store a name:
        theirs is derived from the folder.
        """
        try:
            text = read_text(self.part(RUN_ID_FILE)).strip()
        except OSError:
            text = ""
        if text and all(char in "0123456789abcdef" for char in text):
            return text
        stat = self.path.stat()
        return f"{stat.st_ino:x}-{stat.st_ctime_ns // 1_000_000_000 & 0xFFFFFF:x}"

    def part(self, name: str) -> Path:
        return self.path / name

    def write(self, name: str, text: str, *, mode: int = 0o600) -> Path:
        """Write a file of the run atomically, with its mode from the start."""
        return self.write_bytes(name, text.encode("utf-8", "surrogateescape"), mode=mode)

    def write_bytes(self, name: str, data: bytes, *, mode: int = 0o600) -> Path:
        target = self.path / name
        with os_errors(f"write {target}", hint=_OTHER_PLACE):
            replace_file(target, data, mode)
        return target

    def write_signed(self, name: str, data: bytes, *, mode: int = 0o600) -> Path:
        """Write a file from which windlass later runs something."""
        written = self.write_bytes(name, data, mode=mode)
        sign_file(self.path, name, data)
        return written

    def save_plan(self, plan: Plan, hidden: Secrets) -> None:
        self.write_signed(PLAN_FILE, plan_to_json(plan))
        if hidden.words or hidden.env:
            self.write_signed(SECRETS_FILE, secrets_text(hidden).encode("utf-8", "surrogateescape"))
        if plan.parts:
            with os_errors(f"use the folder {COMPONENTS}", hint=_OTHER_PLACE, kind=UsageError):
                private_folder(self.part(COMPONENTS))
        for number, (one, part) in enumerate(zip(plan.request.components, plan.parts, strict=True)):
            folder = RunFolder(component_folder(self.path, one.name))
            if not os.path.lexists(folder.path):
                _create(folder.path, exist_ok=False)
                seal_component(self.path, folder.path)
            elif not is_component(self.path, folder.path):
                raise UsageError(f"{folder.path} is not a folder of this run", hint=_OTHER_PLACE)
            folder.save_plan(part, hidden.parts[number] if hidden.parts else Secrets())

    def keep_to_ourselves(self) -> None:
        """Raise `UsageError` if another user could have written to the folder. Call this before using or writing it."""
        try:
            keep_to_ourselves(self.path)
        except UntrustedError as error:
            raise UsageError(f"run folder: {error}", hint="name a new folder with --run-dir") from None
        exposed = exposure(self.path)
        if exposed is not None:
            text = "windlass: warning: %s, this run's folder included: chmod +t it, or choose another --run-dir"
            _log.warning(text, exposed)

    def claim(self) -> None:
        """Claim this folder for one run. If two runs start in it at once, one of them raises an error."""
        with os_errors(f"write {self.part(PLAN_FILE)}", hint=_OTHER_PLACE):
            try:
                create_file(self.part(PLAN_FILE))
            except FileExistsError:
                raise _taken(str(self.path)) from None

    def has_secrets(self) -> bool:
        return self.part(SECRETS_FILE).exists()

    def forget_secrets(self) -> None:
        for name in (SECRETS_FILE, TOKEN_FILE, ARCHIVE_FILE):
            self.part(name).unlink(missing_ok=True)

    def forget_key(self) -> None:
        """Remove the files from which the agents were started. They contain the job's key."""
        self.part(AGENT_FILE).unlink(missing_ok=True)

    def save_result(self, record: RunRecord) -> None:
        self.write_bytes(RESULT_FILE, record_to_json(record))

    def result(self) -> RunRecord | None:
        """Return the record of the run. None while it runs, or if it was killed before it could write one."""
        path = self.part(RESULT_FILE)
        return record_from_json(read_bytes(path), where=str(path)) if path.exists() else None

    @contextlib.contextmanager
    def used_by(self, command: str) -> Iterator[None]:
        """Record which command that is not a run (`stage`, `tune`) uses this folder, and at its end the result.

        `windlass runs` shows both.
        """
        use = FolderUse(command=command, process=this_process())
        self.write_bytes(COMMAND_FILE, to_json(use))
        try:
            yield
        except BaseException as error:
            self.failed(command, error)
            raise
        self.write_bytes(COMMAND_FILE, to_json(msgspec.structs.replace(use, outcome="done")))

    def failed(self, command: str, error: BaseException) -> None:
        """Record that a command failed before a run existed."""
        why = error.message if isinstance(error, WindlassError) else type(error).__name__
        use = FolderUse(command=command, process=this_process(), outcome="failed", why=why)
        with contextlib.suppress(MachineError):  # the earlier error matters more
            self.write_bytes(COMMAND_FILE, to_json(use))


def component_folder(path: Path, name: str) -> Path:
    """Return the run folder of one component of a job file."""
    return path / COMPONENTS / name


def folder_use(folder: RunFolder) -> FolderUse | None:
    """Return what a command that is not a run did here. None for a run."""
    try:
        return from_json(read_bytes(folder.part(COMMAND_FILE)), FolderUse)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"{folder.part(COMMAND_FILE)}: cannot be read: {error}", hint="it is damaged: start the command again"
        ) from error


def discard(folder: RunFolder) -> None:
    """Remove what was created for a run that will not start. In a folder that existed before, remove only that."""
    for name in (PLAN_FILE, BATCH_FILE, RUN_ID_FILE, SECRETS_FILE, SIGNATURE_FILE):
        folder.part(name).unlink(missing_ok=True)
    for part in component_folders(folder.path):
        discard(RunFolder(part))
    for path in (*map(folder.part, (*_PARTS, COMPONENTS)), folder.path):
        with contextlib.suppress(OSError):  # the folder contains files of other origin
            path.rmdir()


def make_folder(
    wanted: str | None, runs_dir: Path, name: str, *, state_dir: Path | None = None, now: float | None = None
) -> RunFolder:
    """Create a new, empty run folder. With `wanted`, exactly that path, which must not contain a run.

    This user's secret in `state_dir` seals the folder, so that later commands trust it.
    """
    folder = RunFolder(_new_path(wanted, runs_dir, name, now))
    if state_dir is not None:
        seal_folder(folder.path, state_dir)
    return folder


def _new_path(wanted: str | None, runs_dir: Path, name: str, now: float | None) -> Path:
    if wanted is not None:
        path = folder_path(wanted, runs_dir, name)
        if (path / PLAN_FILE).exists():
            raise _taken(wanted)
        return _create(path, exist_ok=True)
    first = folder_path(None, runs_dir, name, now=now)
    for attempt in range(100):
        path = first if attempt == 0 else first.with_name(f"{first.name}-{attempt + 1}")
        try:
            return _create(path, exist_ok=False)
        except FileExistsError:
            continue
    raise MachineError(f"cannot find a free name for a run folder in {first.parent}", hint="use --run-dir")


def _taken(folder: str) -> UsageError:
    return UsageError(f"--run-dir {folder} already contains a run", hint="choose another folder, or remove this one")


def folder_path(wanted: str | None, runs_dir: Path, name: str, *, now: float | None = None) -> Path:
    """Return where a run folder would be created now."""
    if wanted is not None:
        return Path(wanted).expanduser().absolute()
    return runs_dir.expanduser().absolute() / f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}"


def _create(path: Path, *, exist_ok: bool) -> Path:
    action = f"make the run folder {path}"
    with os_errors(action, hint=_OTHER_PLACE):  # a file with that name also blocks the path
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700, exist_ok=exist_ok)
        RunFolder(path).keep_to_ourselves()
        for part in _PARTS:
            (path / part).mkdir(mode=0o700, exist_ok=exist_ok)
            keep_to_ourselves(path / part)
        if not (path / RUN_ID_FILE).exists():
            RunFolder(path).write(RUN_ID_FILE, f"{secrets.token_hex(8)}\n")
    except FileExistsError:
        if not exist_ok:
            raise
        raise MachineError(f"cannot {action}: a file of this name exists", hint=_OTHER_PLACE) from None
    except OSError as error:
        raise MachineError(f"cannot {action}: {error.strerror}", hint=_OTHER_PLACE) from error
    return path


def is_run(path: str | Path) -> bool:
    """Return whether this is a run folder, or the plan in one. Any other file with a plan does not count."""
    given = Path(path).expanduser()
    folder = given.parent if given.name == PLAN_FILE else given
    return (folder / PLAN_FILE).exists() and all((folder / part).is_dir() for part in _PARTS)


def open_folder(path: str | Path) -> RunFolder:
    """Open an existing run folder, by its path or the path of its plan."""
    if not is_run(path):
        raise UsageError(f"{path}: not a run folder (no {PLAN_FILE} in it)", hint="`windlass runs list` shows all runs")
    given = Path(path).expanduser().absolute()
    return RunFolder(given.parent if given.name == PLAN_FILE else given)


def read_plan(path: str | Path) -> Plan:
    """Return the plan in a file or run folder."""
    file, data = read_plan_file(path)
    return plan_of(data, file)


def read_plan_file(path: str | Path) -> tuple[Path, bytes]:
    """Return the plan file of this path (a file or a run folder) and its content."""
    given = Path(path).expanduser()
    file = (given / PLAN_FILE if given.is_dir() else given).absolute()
    with os_errors(f"read {file}", hint="create one with `windlass plan --json`", kind=ConfigError):
        return file, read_bytes(file, follow=not given.is_dir())


def plan_of(data: bytes, file: Path) -> Plan:
    """Parse the plan in the content of a file."""
    plan = plan_from_json(data, where=str(file))
    return plan if plan.version == PLAN_VERSION else _of_now(plan)


def _of_now(plan: Plan) -> Plan:
    """Convert a plan of an earlier version to this version. In windlass 0.1.0, `run` chose the agents itself."""
    agents = plan_agents(plan) if plan.version == 1 else plan.agents
    return msgspec.structs.replace(plan, version=PLAN_VERSION, agents=agents)


def restart(folder: RunFolder, names: tuple[str, ...] = (*_PARTS, RESULT_FILE, *_OF_ATTEMPT)) -> None:
    """Prepare another start of the same run: move the files of the last start, or these, to `attempt-N`."""
    if not any(folder.part("out").iterdir()) and not folder.part(RESULT_FILE).exists():
        return
    for number in range(1, 10_000):
        old = folder.part(f"attempt-{number}")
        if not old.exists():
            break
    old.mkdir(mode=0o700)
    for name in names:
        if folder.part(name).exists():
            folder.part(name).rename(old / name)
    for part in _PARTS:
        folder.part(part).mkdir(mode=0o700, exist_ok=True)
