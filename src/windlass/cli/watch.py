"""What is the job doing: the worst thing first and what to do about it, then busy, power, memory and step times.

Without RUN the last run. It needs a run that was started with --watch; of others it says what there is. q ends it."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from windlass.base.notation.style import for_terminal, in_colour
from windlass.base.settings import current_environ, read_settings
from windlass.cli import terminal
from windlass.cli.show import Result
from windlass.diagnose.watch.demo import demo_job
from windlass.diagnose.watch.findings import find
from windlass.diagnose.watch.job import Job
from windlass.diagnose.watch.prometheus import MetricsPort, exposition_text
from windlass.diagnose.watch.screen import screen_text
from windlass.errors import MachineError, UsageError
from windlass.model.finding import Finding
from windlass.node.sys.atomic import replace_text
from windlass.run.supervise.runs import find_run
from windlass.run.supervise.watched import watched

_MAX_DEMO_NODES = 100_000
Seen = tuple[Job, tuple[Finding, ...]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run folder or its name (default: the last run)")
    parser.add_argument("--once", action="store_true", help="print the state once and exit")
    parser.add_argument("--json", action="store_true", help="print findings and all rows, once")
    parser.add_argument(
        "--every", type=float, metavar="S", help="seconds between updates (default: when samples arrive)"
    )
    parser.add_argument("--demo", nargs="?", const="8", metavar="NODES", help="show an example job")
    parser.add_argument(
        "--prometheus", metavar="FILE|PORT", help="write the figures to a text file, or serve them on a local port"
    )


def main(args: argparse.Namespace) -> Result:
    environ = current_environ()
    look = _look(args, environ)
    _check(args)
    if args.once or args.json:
        job, findings = look()
        _export(args, job, findings)
        width, _ = terminal.size(sys.stdout) if sys.stdout.isatty() else (80, 24)
        colour = in_colour(sys.stdout.isatty(), environ)
        text = screen_text(job, findings, width=width, colour=colour)
        return Result(text=text, data={"worst": findings[0], "findings": findings, "job": job}, coloured=True)
    return _follow(args, look, environ)


def _look(args: argparse.Namespace, environ: Mapping[str, str]) -> Callable[[], Seen]:
    if args.demo is not None:
        if args.run is not None:
            raise UsageError("--demo and a run were given", hint="leave one of them out")
        if not re.fullmatch(r"\d{1,6}", args.demo) or not 1 <= int(args.demo) <= _MAX_DEMO_NODES:
            raise UsageError(f"--demo {args.demo}", hint=f"give a number of nodes, up to {_MAX_DEMO_NODES}")
        nodes = int(args.demo)

        def demo() -> Seen:
            job = demo_job(nodes, time.time())
            return job, find(job)

        return demo
    folder = find_run(args.run, read_settings(environ).runs_dir)
    return lambda: watched(folder, environ)


def _check(args: argparse.Namespace) -> None:
    if args.every is not None and not 0.2 <= args.every <= 3600:
        raise UsageError(f"--every {args.every:g}", hint="give seconds, from 0.2 to 3600")
    port = _port(args)
    if port is not None and not 0 < port < 65536:
        raise UsageError(f"--prometheus {port}", hint="give a port from 1 to 65535, or a file")
    if port is not None and (args.once or args.json):
        raise UsageError(
            "--prometheus PORT with --once", hint="leave --once out: the port is open while windlass watch runs"
        )


def _port(args: argparse.Namespace) -> int | None:
    """The port of --prometheus PORT, or None for a file."""
    return int(args.prometheus) if re.fullmatch(r"\d{1,9}", args.prometheus or "") else None


def _follow(args: argparse.Namespace, look: Callable[[], Seen], environ: Mapping[str, str]) -> Result:
    """Draw until the run has ended or the user leaves. A pipe gets one frame after another."""
    screen = terminal.Screen(sys.stdout) if sys.stdout.isatty() else None
    colour = in_colour(sys.stdout.isatty(), environ)
    served: list[str] = [""]
    with MetricsPort(_port(args), lambda: served[0]), terminal.keys():
        try:
            while True:
                job, findings = look()
                served[0] = _export(args, job, findings)
                width, height = terminal.size(sys.stdout)
                if screen is not None:
                    text = screen_text(job, findings, width=width, height=height, colour=colour)
                    screen.draw(for_terminal(text, coloured=True))
                else:
                    sys.stdout.write(screen_text(job, findings) + "\n")
                    sys.stdout.flush()
                if job.ended or terminal.wait(args.every or max(1.0, job.interval_s), sys.stdout):
                    break
        except BrokenPipeError:
            return Result(exit_code=terminal.gone(sys.stdout))
        except KeyboardInterrupt as interrupt:
            if hasattr(interrupt, "signal"):  # a signal other than Ctrl-C, which users press to leave
                raise
        finally:
            if screen is not None:
                screen.leave()
    return Result(text=screen_text(job, findings, width=width, colour=colour) if screen else "", coloured=True)


def _export(args: argparse.Namespace, job: Job, findings: tuple[Finding, ...]) -> str:
    if args.prometheus is None:
        return ""
    text = exposition_text(job, findings)
    if _port(args) is None:
        path = Path(args.prometheus).expanduser()
        try:
            replace_text(path, text, 0o644)
        except OSError as error:
            raise MachineError(
                f"cannot write {path}: {error.strerror}", hint="give --prometheus another file"
            ) from error
    return text
