"""A standalone job of PBS under launchers that leave much to the script: hydra and Open MPI, the real ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from planning import plan_for
from requirements import hydra_mpiexec, require, require_mpi
from windlass.plan.render.batch_script import standalone_script

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]


def _environment(launcher: str, folder: Path) -> dict[str, str]:
    """As inside a job of PBS on this machine, with the launcher first in PATH."""
    program = shutil.which("mpirun.openmpi")
    if launcher == "hydra":
        require_mpi()
        program = str(hydra_mpiexec())
    else:
        require("openmpi", program is not None, "no mpirun.openmpi in PATH (Debian's openmpi-bin)")
    assert program is not None
    (folder / "bin").mkdir()
    # Not a link: hydra looks for its proxy in the folder that it was started from.
    first = folder / "bin" / ("mpiexec" if launcher == "hydra" else "mpirun")
    first.write_text(f'#!/bin/sh\nexec "{program}" "$@"\n')
    first.chmod(0o755)
    (folder / "nodes").write_text("localhost\n")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "PMI", "OMPI", "PBS"))}
    return kept | {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PBS_JOBID": "4711.server",
        "PBS_NODEFILE": str(folder / "nodes"),
        "HYDRA_LAUNCHER": "fork",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


@pytest.mark.parametrize("launcher", ["hydra", "openmpi"])
@pytest.mark.parametrize(("ends", "code"), [("sys.exit(7)", 7), ("sys.exit(0)", 0)], ids=["fails", "finishes"])
def test_a_failing_rank_ends_the_others_and_the_job_has_its_code(
    tmp_path: Path, launcher: str, ends: str, code: int
) -> None:
    env = _environment(launcher, tmp_path)
    script = tmp_path / "rank.py"
    wait = "time.sleep(600)" if code else "sys.exit(0)"
    script.write_text(
        "import os, sys, time\n"
        "print('port', os.environ['MASTER_PORT'], flush=True)\n"
        f"if os.environ['RANK'] == '1': {ends}\n{wait}\n"
    )
    plan, _ = plan_for("generic-pbs", sys.executable, str(script), ranks_per_node=2, launcher=launcher, grace_s=2)
    plan = msgspec.structs.replace(plan, request=msgspec.structs.replace(plan.request, cwd=str(tmp_path)))
    job = tmp_path / "job.sh"
    job.write_text(standalone_script(plan, str(tmp_path / "run")))
    done = subprocess.run(["bash", str(job)], env=env, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.returncode == code, done.stdout + done.stderr
    assert (tmp_path / "run" / "exit_code").read_text() == f"{code}\n"
    assert str(20000 + 4711) in done.stdout, "the port comes from the job's number"
