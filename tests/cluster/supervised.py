"""A small deterministic training that tests keep alive on a real Slurm, and what to compare it with."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.command import REPO, Allocation, Run, only_run, windlass_argv
from cluster.faults import tell_fault

SCRIPT = REPO / "tests" / "unit" / "supervise" / "training.py"
STEPS = 30
EVERY = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """A training in an allocation; `folder` holds its snapshots, losses and marks of faults."""

    job: Allocation
    folder: Path
    name: str = "a"
    disk: Path | None = None
    """Where the snapshots are, if not in `folder`."""

    def words(self, *faults: str, steps: int = STEPS, pause: float = 0.15) -> tuple[str, ...]:
        marks = self.folder / f"{self.name}.marks"
        marks.mkdir(exist_ok=True)
        made = (
            str(SCRIPT),
            str((self.disk or self.folder) / f"{self.name}.ckpt"),
            str(steps),
            "--losses",
            str(self.losses_file),
        )
        made += ("--marks", str(marks), "--every-steps", str(EVERY), "--pause", str(pause))
        return (*made, *(word for fault in faults for word in ("--fault", fault)))

    @property
    def losses_file(self) -> Path:
        return self.folder / f"{self.name}.losses"

    def losses(self) -> dict[int, str]:
        """The loss of each step, the last one where a step was done twice; both must be the same."""
        found: dict[int, str] = {}
        for line in self.losses_file.read_text().splitlines():
            step, loss, _ = line.split()
            assert found.get(int(step), loss) == loss, f"step {step} was not the same the second time"
            found[int(step)] = loss
        return found

    def repeated(self) -> int:
        """Steps that were done more than once: what the faults have cost."""
        lines = self.losses_file.read_text().splitlines()
        return len(lines) - len({line.split()[0] for line in lines})


def reference(ranks: int, folder: Path) -> dict[int, str]:
    """Losses of an undisturbed run with so many ranks, on this machine, computed once per session."""
    if ranks not in _REFERENCE:
        losses = folder / f"reference-{ranks}"
        words = (str(SCRIPT), str(folder / f"reference-{ranks}.ckpt"), str(STEPS), "--losses", str(losses))
        argv = windlass_argv("run", "--scheduler", "none", "-r", str(ranks), "--python", sys.executable, *words)
        env = {**os.environ, "PYTHONPATH": str(REPO / "src"), "WINDLASS_RUNS": str(folder / "reference-runs")}
        subprocess.run(argv, check=True, timeout=120, env=env, capture_output=True)
        _REFERENCE[ranks] = {int(line.split()[0]): line.split()[1] for line in losses.read_text().splitlines()}
    return _REFERENCE[ranks]


_REFERENCE: dict[int, dict[int, str]] = {}


def same(fault: str, training: Training, allowed: int = EVERY, seen: str | None = None) -> None:
    """For the table: this fault cost so many steps, and the losses were the same."""
    path = only_run(training.folder).path
    tell_fault(fault, path, repeated=training.repeated(), losses="bit for bit", allowed=allowed, seen=seen)


def verdict(run: Run, attempt: int = 1) -> dict[str, Any]:
    return dict(json.loads((run.path / f"attempt-{attempt}" / "verdict.json").read_text()))


@contextlib.contextmanager
def ended(child: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        child.kill()
        child.communicate(timeout=20)


def steps_done(training: Training) -> int:
    try:
        return len(training.losses_file.read_text().splitlines())
    except FileNotFoundError:
        return 0
