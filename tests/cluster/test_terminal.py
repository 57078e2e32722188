"""Ranks under srun, watched on a terminal: progress bars are seen while they grow, and nothing else changes."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.command import Allocation, allocated, only_run, windlass_argv
from cluster.slurm import SlurmCluster
from waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(180)]

_BAR = """
import os, pathlib, signal, subprocess, sys, time
helper = subprocess.Popen(["sleep", "600"])  # a data loader that is never ended holds the output
print("begins", flush=True)
step = 0
while not pathlib.Path("go").exists():
    step += 1
    sys.stderr.write(f"\\rstep {step} of many")
    sys.stderr.flush()
    time.sleep(0.1)
print("\\nthe end", flush=True)
if sys.argv[1] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(sys.argv[1]))
"""


class Screen:
    """What a terminal was told so far."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.text = ""

    def read(self) -> str:
        try:
            while data := os.read(self._descriptor, 65536):
                self.text += data.decode(errors="replace")
        except OSError:  # nothing more yet, or nobody writes any more
            pass
        return self.text


@contextmanager
def _on_terminal(job: Allocation, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], Screen]]:
    screen, terminal = pty.openpty()
    os.set_blocking(screen, False)
    argv = windlass_argv("run", "--python", sys.executable, *words)
    env = job.cluster.env(job.env)
    with subprocess.Popen(argv, env=env, cwd=job.folder, stdin=subprocess.DEVNULL, stdout=terminal) as child:
        os.close(terminal)
        try:
            yield child, Screen(screen)
        finally:
            child.kill()
            os.close(screen)


@pytest.mark.parametrize(
    ("how", "code", "supervised"),
    [("0", 0, ()), pytest.param("kill", 137, (), marks=pytest.mark.slow), ("5", 5, ("--hang-after", "600"))],
)
def test_a_progress_bar_is_seen_while_it_grows(
    slurm: SlurmCluster, tmp_path: Path, how: str, code: int, supervised: tuple[str, ...]
) -> None:
    script = tmp_path / "bar.py"
    script.write_text(_BAR)
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        with _on_terminal(job, "-r", "1", *supervised, str(script), how) as (child, screen):
            wait_until(lambda: "step 3 of many" in screen.read(), timeout_s=90, what="the bar is seen")
            (tmp_path / "go").touch()
            wait_until(lambda: screen.read() is not None and child.poll() is not None, timeout_s=60, what="the end")
            assert child.returncode == code, screen.read()
            assert "the end" in screen.read()
        kept = job.windlass("logs", str(only_run(tmp_path).path), "--rank", "0")
    assert [line for line in kept.stdout.splitlines() if line in {"begins", "the end"}] == ["begins", "the end"], (
        kept.text
    )
    assert not (only_run(tmp_path).path / "live").exists()
