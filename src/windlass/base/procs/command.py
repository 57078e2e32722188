"""Run a command, wait for it and read its output. Every call has a deadline and keeps its argv.

No other module does this. Long-lived children (launchers, ranks) are started by `base.procs.children`, which uses
`pdeathsig` from here.

The module also builds the argv with which windlass starts itself again: in a job, on a node, or in a process that can
be ended.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import BinaryIO, NoReturn, cast

import windlass
from windlass.errors import CommandError, DeadlineError

_STOP_S = 3.0
_PIPE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """A command that has ended."""

    argv: tuple[str, ...]
    code: int
    stdout: str
    stderr: str


def which(name: str, environ: Mapping[str, str] | None = None) -> str | None:
    """Full path of a command in PATH, or None."""
    return shutil.which(name, path=environ.get("PATH") if environ else None)


def run_command(
    argv: tuple[str, ...],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    input_text: str | None = None,
    check: bool = True,
    cwd: str | None = None,
    stop_with: signal.Signals | None = None,
) -> Done:
    """Run a command and wait for it.

    Raises `CommandError` if it cannot start or (with `check`) fails. Raises `DeadlineError` with its output if it still
    runs after `timeout_s`. The command and its children have then been killed. `stop_with` is a signal that is sent
    first, for commands that must end something elsewhere. It is also sent when windlass is interrupted.
    """
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE if input_text is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env) if env is not None else None,
            cwd=cwd,
            start_new_session=True,
            text=True,
            errors="surrogateescape",
        )
    except OSError as error:
        raise _cannot_run(argv, error) from error
    try:
        stdout, stderr = child.communicate(input_text, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise DeadlineError(
            f"{argv[0]} gave no answer within {timeout_s:g} s",
            argv=argv,
            code=None,
            output=_end(child, stop_with),
            hint="its server may be unreachable",
        ) from error
    except BaseException:
        _end(child, stop_with)
        raise
    done = Done(argv=argv, code=child.returncode, stdout=stdout, stderr=stderr)
    if check and done.code != 0:
        said = (done.stderr or done.stdout).strip()
        last = said.splitlines()[-1] if said else "no message"
        raise CommandError(
            f"{argv[0]} failed with code {done.code}: {last}",
            argv=argv,
            code=done.code,
            output=said,
            hint="this is its last line; run the command in a shell to see all output",
        )
    return done


def feed_command(
    argv: tuple[str, ...],
    feed: Callable[[BinaryIO], None],
    *,
    output: BinaryIO | None,
    timeout_s: float,
    env: Mapping[str, str],
) -> None:
    """Run a command whose standard input `feed` writes. `output` takes its standard output.

    Raises `CommandError` if it cannot start or fails. It is killed after `timeout_s`.
    """
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=output or subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=dict(env),
            bufsize=_PIPE_BYTES,
            pipesize=_PIPE_BYTES,
        )
    except OSError as error:
        raise _cannot_run(argv, error) from error
    end = threading.Timer(timeout_s, child.kill)
    end.daemon = True
    end.start()
    try:
        assert child.stdin is not None and child.stderr is not None
        with contextlib.suppress(BrokenPipeError), child.stdin:  # the command's message has the reason
            feed(cast(BinaryIO, child.stdin))
        text = child.stderr.read().decode(errors="replace").strip()
        code = child.wait()
    finally:
        end.cancel()
        child.kill()
        child.wait()
    if code != 0:
        message = f"{argv[0]}: {text[-500:] or f'exit code {code}'}"
        raise CommandError(message, argv=argv, code=code, output=text, hint="run the command by hand to see all of it")


def _cannot_run(argv: tuple[str, ...], error: OSError) -> CommandError:
    return CommandError(
        f"cannot run {argv[0]}: {error.strerror}",
        argv=argv,
        code=None,
        hint="install it or add it to PATH, e.g. with `module load`",
    )


def become(argv: tuple[str, ...], environ: Mapping[str, str]) -> NoReturn:
    """Replace this process with the command, which then owns the terminal, the signals and the exit code.

    Raises `CommandError` if the command cannot start.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    # Python ignores these two signals. A program that a shell starts inherits an ignored signal.
    for sig in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(sig, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], argv, dict(environ))
    except OSError as error:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        raise _cannot_run(argv, error) from error


def _end(child: subprocess.Popen[str], stop_with: signal.Signals | None) -> str:
    """Stop the command and its children. Returns what the command wrote to its standard output."""
    said = ""
    for sig, patience_s in ((stop_with, _STOP_S), (signal.SIGKILL, 1.0)):
        if sig is None:
            continue
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, sig)
        try:
            said, _ = child.communicate(timeout=patience_s)
            break
        except subprocess.TimeoutExpired as error:
            said = error.output.decode(errors="surrogateescape") if isinstance(error.output, bytes) else said
    _kill_group(child)
    return said


def _kill_group(child: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait(timeout=10)
    for stream in (child.stdin, child.stdout, child.stderr):
        if stream:
            stream.close()


def pdeathsig(sig: signal.Signals) -> Callable[[], None]:
    """Return a `preexec_fn` that asks the kernel to send `sig` to the child when its parent dies, even by SIGKILL.

    The library is loaded before the fork, so that the child executes only the system call.
    """
    import ctypes  # imported here: takes 10 ms, and `windlass plan` does not need it

    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()
    pr_set_pdeathsig = 1

    def ask() -> None:
        libc.prctl(pr_set_pdeathsig, int(sig), 0, 0, 0)
        if os.getppid() != parent:  # the parent died between fork and prctl
            os.kill(os.getpid(), sig)

    return ask


ZIP_MARK = "windlass-zipapp"
"""A file next to an unpacked zip application. Only the application's own `__main__.py` finds its modules."""


def own_argv(module: str = "windlass") -> tuple[str, ...]:
    """Return the argv that runs a module of windlass. The caller appends the arguments.

    Unlike `python -m`, this argv imports nothing from the current folder.
    """
    package = os.path.dirname(os.path.abspath(windlass.__file__))
    folder = os.path.dirname(package)
    if os.path.exists(os.path.join(folder, ZIP_MARK)):
        return (sys.executable, os.path.join(folder, "__main__.py"), "-m", module)
    return (sys.executable, os.path.join(package, "start.py"), module)
