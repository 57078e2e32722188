"""Trials: each is one run of the user's command, or one benchmark of collectives, with a choice of settings."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from windlass.base.procs.command import own_argv, run_command
from windlass.bench.reading import read_record
from windlass.bench.tune.search import Trial
from windlass.bench.tune.space import UNSET, Choice, TunedSetting
from windlass.diagnose.watch.job import read_job
from windlass.errors import CommandError, DeadlineError, WindlassError

Objective = Literal["step", "seconds", "busbw"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trials:
    """The parameters of trials. `options` are those of `windlass run`, `command` is the command that it runs."""

    objective: Objective
    space: tuple[TunedSetting, ...]
    options: tuple[str, ...]
    command: tuple[str, ...]
    folder: Path
    environ: Mapping[str, str]
    timeout_s: float

    def measure(self, choice: Choice) -> Trial:
        """Make one trial. An error in the trial becomes its result."""
        folder = self.folder / f"trial-{sum(1 for _ in self.folder.glob('trial-*')):03d}"
        start = time.monotonic()
        value, failure = None, ""
        try:
            run_command(
                self.argv(choice, folder),
                timeout_s=self.timeout_s,
                env=self.environ,
                stop_with=signal.SIGTERM,
            )
            value = self._value(folder, time.monotonic() - start)
        except DeadlineError:
            failure = f"not done after {self.timeout_s:g} s"
        except CommandError as error:
            failure = _reason(error)
        except WindlassError as error:
            failure = error.message
        if value is None and not failure:
            failure = "no step was recorded" if self.objective == "step" else "nothing was measured"
        return Trial(choice=dict(choice), value=value, failure=failure, seconds=round(time.monotonic() - start, 3))

    def argv(self, choice: Choice, folder: Path) -> tuple[str, ...]:
        """Return the windlass command of a trial."""
        words: list[str] = []
        command = list(self.command)
        for setting in self.space:
            value = choice[setting.name]
            if setting.argument is not None:
                command += [setting.argument.replace("{value}", value)] if value != UNSET else []
            else:
                words += ["--env", f"~{setting.name}" if value == UNSET else f"{setting.name}={value}"]
        head = own_argv()
        if self.objective == "busbw":
            out = ("--op", "all_reduce", "--output", str(folder.with_suffix(".json")))
            return (*head, "bench", "collectives", *self.options, *words, "--run-dir", str(folder), *out)
        watch = ("--watch",) if self.objective == "step" else ()
        shown = ("--show", "none", "--quiet")
        return (*head, "run", *self.options, *words, *watch, *shown, "--run-dir", str(folder), *command)

    def _value(self, folder: Path, seconds: float) -> float | None:
        """Return ms of a step, seconds of the run, or the time of a byte on the bus. Smaller is better."""
        if self.objective == "seconds":
            return seconds
        if self.objective == "step":
            job = read_job(folder)
            return _middle([row.all_ms for row in job.ranks if row.all_ms is not None]) if job else None
        rows = read_record(folder.with_suffix(".json")).rows
        rates = [row.figures["busbw"].value for row in rows if "busbw" in row.figures]
        return 1 / max(rates) if rates and max(rates) > 0 else None


def _reason(error: CommandError) -> str:
    """Return the message of windlass about the run, with the last line of the rank that it shows."""
    lines = error.output.splitlines()
    said = next((line.removeprefix("windlass: ") for line in lines if line.startswith("windlass: ")), error.message)
    last = next((line.removeprefix("  | ") for line in reversed(lines) if line.startswith("  | ")), "")
    return f"{said}: {last}"[:200] if last else said[:200]


def _middle(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
