"""The windlass command as a user types it, and allocations to type it in."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.slurm import Ended, SlurmCluster
from waiting import wait_until

REPO = Path(__file__).parents[2]
SHOW = REPO / "examples" / "args" / "show.py"
HELLO = REPO / "examples" / "hello" / "hello.py"
TRAIN = REPO / "examples" / "ddp" / "train.py"


def windlass_argv(command: str, *words: str) -> list[str]:
    """`windlass COMMAND`, with the interpreter of the tests for the ranks' scripts too."""
    return [sys.executable, "-m", "windlass", command, *words]


def windlass_env(folder: Path) -> dict[str, str]:
    """Runs go below `folder`; no file of the user who runs the tests has a say."""
    return {
        "PYTHONPATH": str(REPO / "src"),
        "WINDLASS_RUNS": str(folder / "runs"),
        "WINDLASS_CONFIG": str(folder / "no-config"),
        "WINDLASS_STATE": str(folder / "state"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A run folder after the run."""

    path: Path

    @property
    def plan(self) -> dict[str, Any]:
        return dict(json.loads((self.path / "plan.json").read_text()))

    @property
    def result(self) -> dict[str, Any]:
        return dict(json.loads((self.path / "result.json").read_text()))


def only_run(folder: Path) -> Run:
    """The one run that was made below `folder`."""
    (path,) = (folder / "runs").iterdir()
    return Run(path=path)


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """A job that waits for commands: what a shell inside `salloc` is."""

    cluster: SlurmCluster
    folder: Path
    job_env: Mapping[str, str]

    @property
    def env(self) -> dict[str, str]:
        return {**windlass_env(self.folder), **self.job_env}

    def windlass(self, command: str, *words: str, timeout_s: float = 90, env: Mapping[str, str] | None = None) -> Ended:
        """Run `windlass COMMAND WORDS` in this job, to its end."""
        full = {**self.env, **(env or {})}
        return self.cluster.run(windlass_argv(command, *words), timeout_s=timeout_s, env=full, cwd=self.folder)

    def run_python(self, *words: str, timeout_s: float = 90, env: Mapping[str, str] | None = None) -> Ended:
        """`windlass run` with the interpreter of the tests."""
        return self.windlass("run", "--python", sys.executable, *words, timeout_s=timeout_s, env=env)

    def popen(self, *words: str) -> subprocess.Popen[str]:
        """`windlass run`, going on while the test watches."""
        argv = windlass_argv("run", "--python", sys.executable, *words)
        return self.cluster.popen(argv, env=self.env, cwd=self.folder)


@contextlib.contextmanager
def allocated(cluster: SlurmCluster, folder: Path, *words: str) -> Iterator[Allocation]:
    """`salloc WORDS`, held until the block ends."""
    dump = folder / "job-environment"
    keeper = "import os, sys; open(sys.argv[1] + '.part', 'wb').write(b'\\0'.join(k + b'=' + v for k, v in "
    keeper += "os.environb.items() if k.startswith(b'SLURM'))); os.rename(sys.argv[1] + '.part', sys.argv[1]); "
    keeper += "sys.stdin.read()"
    with subprocess.Popen(
        ["salloc", "--quiet", *words, sys.executable, "-c", keeper, str(dump)],
        stdin=subprocess.PIPE,
        env=cluster.env(),
    ) as held:
        try:
            wait_until(dump.exists, timeout_s=30, what="the allocation is granted", state=cluster.state)
            pairs = [pair.partition(b"=") for pair in dump.read_bytes().split(b"\0")]
            dump.unlink()
            job_env = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
            yield Allocation(cluster=cluster, folder=folder, job_env=job_env)
        finally:
            assert held.stdin
            held.stdin.close()
            held.wait(timeout=30)


def json_lines(text: str) -> list[dict[str, Any]]:
    """The lines that `show.py` printed, whatever stands before them on the line."""
    return [json.loads(line[line.index("{") :]) for line in text.splitlines() if "{" in line]


def rank_lines(job: Allocation, run: Path, words: Sequence[str] = ("--rank", "all")) -> list[dict[str, Any]]:
    """What all ranks of a run printed, by `windlass logs`."""
    said = job.windlass("logs", str(run), *words)
    assert said.code == 0, said.text
    return json_lines(said.stdout)
