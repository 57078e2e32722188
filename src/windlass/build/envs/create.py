"""Create an environment on this machine. It gets its final name only when it is complete.

All steps run in one bash, with the script of the plan, in a hidden folder next to the final one. After an interruption,
the same command continues in that folder: pip keeps the packages that are complete. Another command removes the folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

import msgspec

from windlass.base.notation.counts import counted, size_text
from windlass.base.procs.children import adopt_orphans, signal_group, start_child
from windlass.base.settings import read_settings
from windlass.build.envs.archive import hint_for, move_names, room_hint
from windlass.build.envs.download import measure_download
from windlass.build.envs.plan import EnvPlan
from windlass.build.envs.render import STEP_MARK, script_text
from windlass.errors import CommandError, DeadlineError, MachineError, UsageError, os_errors
from windlass.model.jsontext import to_json
from windlass.node.sys.atomic import open_append, replace_file, take_lock
from windlass.node.sys.identity import kill_marked
from windlass.node.sys.reading import read_object, read_text
from windlass.run.trust import seal_file, why_no_file_seal

RECORD = "windlass-env.json"
LOG = "windlass-env.log"
_PATHS = "paths"
_QUIET_S = 60.0
_NEWS = re.compile(r"\s*(Downloading \S+\.(whl|gz|zip) \([\d.]+ [MG]B\)|Installing collected packages|Building wheel)")
_MAX_S = 4 * 3600.0
_MARK = "WINDLASS_ENV_CREATE"
_STEP = re.compile(re.escape(STEP_MARK) + r" \d+ of \d+: (.*)")
_NO_ROOM = ("No space left on device", "Disk quota exceeded", "[Errno 28]", "[Errno 122]")
_NO_NETWORK = (
    "Failed to establish a new connection",
    "Temporary failure in name resolution",
    "Name or service not known",
    "Network is unreachable",
    "Connection refused",
    "ConnectTimeoutError",
    "ProxyError",
    "CondaHTTPError",
)


class Created(msgspec.Struct, frozen=True, kw_only=True):
    """The created environment."""

    path: str
    site: str
    log: str
    seconds: float
    swept: bool
    """Whether the remains of an interrupted start were removed first."""
    continued: bool = False
    """Whether an interrupted start of the same command was continued."""
    already: bool = False
    """Whether the same command had created it before. Then nothing was done."""


def refuse_elsewhere(plan: EnvPlan, here: str) -> None:
    """Raise `UsageError` for a plan that cannot be executed here, with the alternative."""
    said = f"windlass env plan --site {plan.site} --format script >make-env.sh; run it on a login node there with bash"
    if plan.site != here:
        raise UsageError(f"an environment for {plan.site} cannot be made here: this is {here}", hint=said)
    if plan.kind == "conda":
        raise UsageError(
            "a conda environment holds its own path in its programs, so it cannot be made aside and renamed", hint=said
        )
    if plan.beneath == "image":
        raise UsageError("an environment on top of an image is made inside of that image", hint=said)


def create_env(plan: EnvPlan, environ: Mapping[str, str], tell: Callable[[str], None]) -> Created:
    """Create the environment. If it fails, nothing exists under its name, and the log contains the reason."""
    final = Path(plan.path)
    work, log = final.with_name(f".{final.name}.partial"), final.with_name(f"{final.name}.{LOG}")
    if _is_made(plan, final):
        return Created(path=str(final), site=plan.site, log=str(final / LOG), seconds=0.0, swept=False, already=True)
    _refuse_place(final)
    lock = _locked(final)
    began = time.monotonic()
    try:
        found = work.exists() or work.is_symlink()
        state_dir = read_settings(environ).state_dir
        continued = found and _continues(plan, work, state_dir, tell)
        tell(f"making {final}; log: {log}")
        _tell_size(plan, environ, final, tell)
        open_append(log, fresh=not continued).close()
        with _work_folder(work, continued) as opened:
            partial = Path(f"/proc/{os.getpid()}/fd/{opened}", final.name)  # `work` may be renamed
            inside = partial.parent
            replace_file(inside / RECORD, to_json(plan))
            seal_file(inside / RECORD, state_dir, state_dir)
            with open_append(inside / _PATHS) as paths:
                paths.write(os.fsencode(f"{partial}\n"))
            _run(plan, partial, log, {**environ, _MARK: str(work)}, tell)
            # Scripts contain the path of the start that wrote them. Some tools store the resolved path.
            for built in (*read_text(inside / _PATHS).splitlines(), str(work / final.name)):
                move_names(partial, built, str(final))
            replace_file(partial / RECORD, to_json(plan), 0o644)
            _name(opened, work, final)
        with contextlib.suppress(OSError):
            log.rename(final / LOG)
            log = final / LOG
    except OSError as error:
        raise MachineError(f"cannot make {final}: {error.strerror}", hint=hint_for(error, final.parent)) from error
    finally:
        final.with_name(f".{final.name}.lock").unlink(missing_ok=True)
        os.close(lock)
    return Created(
        path=str(final),
        site=plan.site,
        log=str(log),
        seconds=round(time.monotonic() - began, 1),
        swept=found and not continued,
        continued=continued,
    )


def _is_made(plan: EnvPlan, folder: Path) -> bool:
    """Return whether the folder contains the record of a plan with the same steps."""
    try:
        old, new = read_object(folder / RECORD), json.loads(to_json(plan))
    except (OSError, ValueError):
        return False
    return bool(old.get("path") == new["path"] and old.get("steps") == new["steps"])


def _tell_size(plan: EnvPlan, environ: Mapping[str, str], final: Path, tell: Callable[[str], None]) -> None:
    size = measure_download(plan, environ)
    if size is not None:
        least = "at least " if size.unknown else ""
        free = size_text(shutil.disk_usage(final.parent).free)
        tell(f"to download: {counted(size.files, 'package')}, {least}{size_text(size.size_bytes)}; {free} free here")
    elif plan.torch is not None:
        tell("the size of the download is not known: the base Python has no pip, or the index cannot be reached")


def _refuse_place(final: Path) -> None:
    if final.exists() or final.is_symlink():
        hint = "choose another path, or move it away; `windlass env check` shows its contents"
        raise UsageError(f"{final} already exists: nothing was changed", hint=hint)
    with os_errors(f"make {final.parent}", hint="choose another place", kind=UsageError):
        final.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(final.parent, os.W_OK):
        raise UsageError(f"{final.parent}: you may not write there", hint="choose another place")


def _locked(final: Path) -> int:
    try:
        return take_lock(final.with_name(f".{final.name}.lock"))
    except BlockingIOError as error:
        hint = "wait for it, or choose another place"
        raise UsageError(f"another windlass is making {final} now", hint=hint) from error
    except OSError as error:
        hint = hint_for(error, final.parent)
        raise MachineError(f"cannot write to {final.parent}: {error.strerror}", hint=hint) from error


def _continues(plan: EnvPlan, work: Path, state_dir: Path, tell: Callable[[str], None]) -> bool:
    """End the processes of an interrupted start. Remove its folder, unless it is from the same command of this user.

    The folder runs code, and could be from an unpacked archive.
    """
    found = work.lstat()
    if found.st_uid != os.geteuid():
        hint = "ask this user to remove it, or choose another place"
        raise UsageError(f"{work} belongs to uid {found.st_uid}", hint=hint)
    kill_marked(f"{_MARK}={work}".encode())
    private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
    if private and _is_made(plan, work) and not why_no_file_seal(work / RECORD, state_dir, state_dir):
        tell(f"an earlier start was interrupted: it continues in {work}")
        return True
    tell(f"an earlier start was interrupted: {work} is removed, and the build starts from the beginning")
    shutil.rmtree(work, ignore_errors=True)
    return False


@contextlib.contextmanager
def _work_folder(work: Path, continued: bool) -> Iterator[int]:
    """Create a folder that only this user can enter, and yield its descriptor.

    The folder is removed at the end, unless this process was interrupted.
    """
    if not continued:
        work.mkdir(mode=0o700)
    opened = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    keeps = False
    try:
        yield opened
    except (KeyboardInterrupt, SystemExit, DeadlineError):
        keeps = True
        raise
    finally:
        if not keeps and _is_ours(opened, work):
            shutil.rmtree(work, ignore_errors=True)
        os.close(opened)


def _is_ours(opened: int, work: Path) -> bool:
    """Return whether this path is still the opened folder and belongs to this user."""
    found = os.fstat(opened)
    try:
        named = work.lstat()
    except FileNotFoundError:
        return False
    return found.st_uid == os.geteuid() and (named.st_dev, named.st_ino) == (found.st_dev, found.st_ino)


def _name(opened: int, work: Path, final: Path) -> None:
    if final.exists() or final.is_symlink():
        raise UsageError(f"{final} was created by another user in the meantime", hint="choose another place")
    if not _is_ours(opened, work):
        hint = "choose a folder in which only you can write"
        raise MachineError(f"another user replaced {work} during the build: the environment is not used", hint=hint)
    os.rename(final.name, final, src_dir_fd=opened)


def _run(plan: EnvPlan, partial: Path, log: Path, environ: Mapping[str, str], tell: Callable[[str], None]) -> None:
    # Without the first step, which refuses a folder that is there.
    script = script_text(msgspec.structs.replace(plan, path=str(partial), variables=(), steps=plan.steps[1:]))
    env = {k: v for k, v in environ.items() if k not in ("ENV", "VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH")}
    argv = ("bash", "-c", script)
    step = "start"
    with adopt_orphans(), open_append(log) as stream:
        child = start_child(argv, env=env, death=signal.SIGTERM, merge=True)
        try:
            assert child.stdout is not None
            for line in _lines(child.stdout, lambda: child.poll() is not None, stream):
                found = _STEP.match(line)
                if found:
                    step = found[1]
                    tell(f"{step} …")
                elif _NEWS.match(line):
                    tell(f"  {line.strip()[:100]}")
                elif not line:
                    tell(f"  {step}: still running")
            child.wait(timeout=10)
        finally:
            signal_group(child, signal.SIGKILL)
            child.wait(timeout=10)
    if child.returncode != 0:
        raise _failure(step, log, argv, child.returncode)


def _lines(output: IO[bytes], ended: Callable[[], bool], log: IO[bytes]) -> Iterator[str]:
    """Yield the child's lines until it ends, and write all of them to the log.

    Yields an empty line after a minute without output. Raises `DeadlineError` after the deadline.
    """
    rest, end, seen = b"", time.monotonic() + _MAX_S, time.monotonic()
    while time.monotonic() < end:
        ready, _, _ = select.select([output], [], [], 1.0)
        if not ready and time.monotonic() - seen > _QUIET_S:
            yield ""
        if ready or time.monotonic() - seen > _QUIET_S:
            seen = time.monotonic()
        data = output.read() if ready else None
        if data:
            log.write(data)
            log.flush()
            *lines, rest = (rest + data).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines if line.strip())
        elif data == b"" or ended():
            return
    raise DeadlineError(
        f"not finished after {_MAX_S / 3600:g} hours",
        argv=("bash",),
        code=None,
        hint="the package registry may be slow or unreachable; the log has the details",
    )


def _failure(step: str, log: Path, argv: tuple[str, ...], code: int) -> CommandError:
    text = read_text(log, errors="replace")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(("not finished:", "[notice]"))]
    hint = f"all of its output: {log}; everything else was removed; the next start begins from the beginning"
    if any(word in text for word in _NO_ROOM):
        hint = f"{room_hint(log.parent)}; {hint}"
    elif any(word in text for word in _NO_NETWORK):
        hint = (
            "the index of packages cannot be reached: use a login node, set https_proxy, or name a mirror with "
            f"--torch-index URL (none: as pip is configured); {hint}"
        )
    elif "(from versions: none)" in text:
        hint = f"the index has no such package for this Python, or cannot be reached; {hint}"
    errors = [line for line in lines if line.startswith("ERROR")]
    return CommandError(
        f"step '{step}' failed: {(errors or lines or ['no message'])[-1][:200]}",
        argv=argv[:2],
        code=code,
        output="\n".join(line[:160] for line in lines[-5:]),
        hint=hint,
    )
