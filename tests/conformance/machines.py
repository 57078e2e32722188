"""A PBS machine with PALS and a Flux machine, both pretended, and the windlass of a user who logs in there."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import leftovers
import windlass
from standins.sites import Site, flux_site, pbs_site
from waiting import wait_until
from windlass.backends.schedulers import get_scheduler
from windlass.backends.schedulers.base import JobState
from windlass.run.failure.rank_logs import rank_logs
from windlass.run.folder import read_plan

SOURCE = str(Path(windlass.__file__).parents[1])
OVER = {JobState.DONE, JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT}


@dataclass(frozen=True)
class Machine:
    scheduler: str
    words: tuple[str, ...]
    site: Site

    def windlass(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "windlass", *words], env=self.site.env, cwd=self.site.home, text=True, timeout=60,
            capture_output=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def submit(self, *words: str, options: tuple[str, ...] = ()) -> str:
        asked = ("--nodes", "2", "--ranks-per-node", "2", "--time", "5", "--run-dir", "run", *options)
        done = self.windlass("submit", *self.words, *asked, "--", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()[-1]

    def state(self, job_id: str) -> tuple[JobState, int | None]:
        scheduler = get_scheduler(self.scheduler)
        argv = scheduler.status_argv(job_id)
        done = subprocess.run(argv, env=self.site.env, capture_output=True, text=True, timeout=30)
        status = scheduler.parse_status(done.stdout, done.returncode, job_id)
        return status.state, status.exit_code

    def wait(self, job_id: str, states: set[JobState]) -> tuple[JobState, int | None]:
        wait_until(
            lambda: self.state(job_id)[0] in states,
            timeout_s=200,
            what=f"{job_id} is {states}",
            every_s=0.2,
            state=self.log,
        )
        return self.state(job_id)

    def log(self) -> str:
        path = self.site.home / "run" / "job.log"
        return path.read_text() if path.exists() else "no log"

    def lines(self, rank: int) -> list[str]:
        """As `windlass logs run --rank RANK` shows them."""
        folder = self.site.home / "run"
        return [text for who, text in rank_logs(read_plan(folder), folder).lines() if who == rank]


@contextlib.contextmanager
def machine_of(name: str, folder: Path) -> Iterator[Machine]:
    if name == "pbs":
        with pbs_site(folder) as site:
            profile = site.home / ".bash_profile"
            profile.write_text(profile.read_text() + f"export PYTHONPATH={shlex.quote(SOURCE)}\n")
            site.env["PYTHONPATH"] = SOURCE
            yield Machine("pbs", ("--site", "generic-pbs", "--launcher", "pals"), site)
    else:
        with flux_site(folder, cores=4) as site:
            site.env["PYTHONPATH"] = SOURCE
            yield Machine("flux", ("--site", "generic-flux"), site)


@pytest.fixture(params=["pbs", "flux"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    with machine_of(request.param, tmp_path / "site") as found:
        yield found
        wait_until(
            lambda: not found.site.mounts(),
            timeout_s=20,
            what="nothing is mounted on the nodes",
            state=lambda: str(found.site.mounts()),
        )
    left = leftovers.look_until_clean(os.environ[leftovers.MARK_VARIABLE], tmp_path, patience_s=20)
    if left:
        text = left.text()
        leftovers.remove(left)
        pytest.fail(f"windlass left behind:\n{text}", pytrace=False)
