"""`windlass.init` under real launchers, alone, and where the ranks do not meet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.slurm import SlurmCluster
from forking import Forked
from requirements import hydra_mpiexec, require_mpi, require_torch
from unit.runtime.ranks import environment, free_port

require_torch()
pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]
SCRIPT = Path(__file__).with_name("meeting.py")


def clean_environment(**extra: str) -> dict[str, str]:
    """No launcher's variables at all."""
    env = environment(0, 1, 1)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        del env[name]
    return {**env, **extra}


def answers(*argv: object, env: dict[str, str] | None = None) -> tuple[list[dict[str, Any]], str]:
    done = subprocess.run(
        list(map(str, argv)), env=env or clean_environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return sorted(lines, key=lambda a: int(a["rank"])), done.stderr


def test_alone_it_is_one_rank_with_a_working_group_and_no_port() -> None:
    (answer,), said = answers(sys.executable, SCRIPT)
    assert (answer["rank"], answer["world_size"], answer["launcher"], answer["sum"]) == (0, 1, "alone", 1.0)
    assert answer["recorder"] == "2000"
    assert said.count("windlass: ") == 1 and "1 rank(s) on 1 node(s) from alone, device cpu" in said


def test_under_torchrun_the_ranks_meet_and_one_line_is_said() -> None:
    port = free_port()
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}")
    found, said = answers(*torchrun, SCRIPT)
    assert [(a["rank"], a["local_rank"], a["local_world_size"], a["sum"]) for a in found] == [
        (0, 0, 2, 3),
        (1, 1, 2, 3),
    ]
    assert said.count("windlass: ") == 1


@pytest.mark.mpi
def test_under_hydras_mpiexec_the_ranks_meet() -> None:
    require_mpi()
    found, said = answers(hydra_mpiexec(), "-n", 3, sys.executable, SCRIPT)
    assert [(a["rank"], a["local_rank"], a["launcher"], a["sum"]) for a in found] == [
        (0, 0, "hydra", 6),
        (1, 1, "hydra", 6),
        (2, 2, "hydra", 6),
    ]
    assert said.count("windlass: ") == 1


@pytest.mark.slurm
def test_under_a_real_srun_over_two_nodes_the_ranks_meet_without_any_torch_variable(slurm: SlurmCluster) -> None:
    path = f"PYTHONPATH={os.pathsep.join(p for p in sys.path if p)}"
    argv = ["srun", "-N2", "-n2", "--ntasks-per-node=1", "env", path, sys.executable, str(SCRIPT)]
    done = slurm.run(argv, check=True, timeout_s=120).stdout
    found = sorted((json.loads(line) for line in done.splitlines() if line.startswith("{")), key=lambda a: a["rank"])
    assert [(a["rank"], a["local_rank"], a["node_rank"], a["sum"]) for a in found] == [(0, 0, 0, 3), (1, 0, 1, 3)]
    assert all(a["launcher"] == "srun" for a in found)


def test_a_rank_that_waits_in_vain_says_where_and_for_how_long() -> None:
    port = free_port()
    rank = Forked([str(SCRIPT), "3"], environment(1, 2, port))
    said, _ = rank.communicate(timeout=150)
    assert rank.returncode == 1
    assert f"did not meet the other 1 ranks at 127.0.0.1:{port} within 3 s" in said


def test_importing_windlass_and_its_runtime_loads_no_torch_and_starts_nothing() -> None:
    code = (
        "import sys, threading, signal, os\n"
        "before = dict(os.environ)\n"
        "import windlass\n"
        "assert 'windlass.runtime' not in sys.modules\n"
        "windlass.init, windlass.Snapshot\n"
        "third = {m.split('.')[0] for m in sys.modules} - set(sys.stdlib_module_names) - {'windlass', '__main__'}\n"
        "third = {m for m in third if not m.startswith(('_', 'distutils', 'sitecustomize'))}\n"
        "assert not third, third\n"
        "assert threading.active_count() == 1 and dict(os.environ) == before\n"
        "assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=clean_environment())


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    import windlass

    with pytest.raises(AttributeError, match="nothing_like_this"):
        windlass.nothing_like_this  # noqa: B018


def test_a_barrier_that_is_not_reached_by_all_names_who_is_missing(tmp_path: Path) -> None:
    script = tmp_path / "barrier.py"
    script.write_text(
        "import sys, time, windlass\n"
        "run = windlass.init(timeout_s=60)\n"
        "if run.rank == 0: run.barrier(timeout_s=2)\n"
        "else: time.sleep(60)\n"
    )
    port = free_port()
    ranks = [Forked([str(script)], environment(r, 2, port)) for r in range(2)]
    try:
        said, _ = ranks[0].communicate(timeout=60)
        assert ranks[0].returncode == 1
        assert "rank 0: not every rank reached the barrier within 2 s" in said and "Rank 1" in said
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
