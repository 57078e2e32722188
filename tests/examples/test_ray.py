"""examples/ray with the real Ray, on one machine and on a real Slurm of four nodes, and what happens when parts die."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.command import allocated, windlass_argv
from cluster.slurm import SlurmCluster
from looping import each
from requirements import examples_python, require_examples
from unit.cli.typed import windlass
from waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
RAY = EXAMPLES / "ray"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]
SMALL = {"RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "100000000", "RAY_object_store_minimum_memory_bytes": "1"}


def _words(script: str) -> tuple[str, ...]:
    return ("run", "--python", str(examples_python()), "-q", str(RAY / script))


def ray_processes(host: str = "") -> dict[int, str]:
    """Processes of the Rays that windlass started on this machine, or on one node, with their arguments."""
    found, node = {}, f"\0SLURMD_NODENAME={host}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environ = (process / "environ").read_bytes()
            if b"\0WINDLASS_RAY=" in environ and (not host or node in environ):
                found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def _left() -> list[str]:
    return [*map(str, Path("/tmp").glob("windlass-ray-*")), *ray_processes().values()]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    require_examples()
    before = Path("/tmp/ray").exists()
    yield
    wait_until(
        lambda: not _left(), timeout_s=30, what="Ray's processes and folders are gone", state=lambda: str(_left())
    )
    assert Path("/tmp/ray").exists() == before


def test_a_script_with_ray_needs_no_flag_on_this_machine(tmp_path: Path) -> None:
    done = windlass(*_words("tasks.py"), cwd=tmp_path, timeout_s=200, env=SMALL)
    assert done.code == 0, done.text
    assert "1000 tasks, sum 332833500, on 1 of 1 nodes" in done.stdout


@pytest.mark.slurm
def test_tasks_and_a_training_on_four_nodes_of_a_real_slurm(slurm: SlurmCluster, tmp_path: Path) -> None:
    with allocated(slurm, tmp_path, "-N4", "--exclusive") as job:
        done = job.windlass(*_words("tasks.py"), timeout_s=200, env=SMALL)
        assert done.code == 0, done.text
        assert re.search(r"1000 tasks, sum 332833500, on [234] of 4 nodes", done.stdout), done.text
        done = job.windlass(*_words("train.py"), timeout_s=250, env=SMALL)
    assert done.code == 0, done.text
    assert "4 workers on 4 nodes have trained" in done.stdout, done.text


WAYS = {
    "worker killed": (71, ("rank 2 on nid0003 exited with code 71", "Ray on nid0003: the worker has failed")),
    "head killed": (71, ("rank 0 on nid0001 exited with code 71", "Ray on nid0001: the head has failed")),
    "Ctrl-C": (130, ("SIGINT, stopping all ranks",)),
    "windlass killed": (-9, ()),
}


@pytest.mark.slurm
@each("way", [*WAYS])
def test_the_end_of_one_part_ends_all_of_ray(slurm: SlurmCluster, tmp_path: Path, way: str) -> None:
    code, said = WAYS[way]
    words = [str(RAY / "tasks.py"), "--tasks", "20", "--seconds", "300"]
    with allocated(slurm, tmp_path, "-N3", "--exclusive") as job:
        small = [word for name, value in SMALL.items() for word in ("--env", f"{name}={value}")]
        run = job.popen("--python", str(examples_python()), *small, *words)
        wait_until(
            lambda: "20 tasks" in _output(tmp_path), timeout_s=150, what="tasks run", state=lambda: _output(tmp_path)
        )
        if way == "Ctrl-C":
            run.send_signal(signal.SIGINT)
        elif way == "windlass killed":
            run.kill()
        else:
            program, host = ("raylet", "nid0003") if way == "worker killed" else ("gcs_server", "nid0001")
            os.kill(next(pid for pid, argv in ray_processes(host).items() if f"/{program} " in argv), signal.SIGKILL)
        out, err = run.communicate(timeout=100)
    assert run.returncode == code, out + err
    assert not [text for text in said if text not in out + err], out + err


def _job_file(tmp_path: Path, *keys: str) -> str:
    """Copy the job file with Ray as a component, with these keys for the component. Returns its path."""
    shutil.copytree(EXAMPLES / "components", tmp_path / "components")
    path = tmp_path / "components" / "ray" / "ray.toml"
    more = "\n".join((f'python = "{examples_python()}"', *keys))
    path.write_text(path.read_text().replace('script = "score.py"', f'script = "score.py"\n{more}'))
    return str(path)


def test_ray_is_a_component_without_a_flag_on_this_machine(tmp_path: Path) -> None:
    done = windlass("run", _job_file(tmp_path), cwd=tmp_path, timeout_s=200, env=SMALL)
    assert done.code == 0, done.text
    assert "[driver 0] 1487 of 2000 texts have a reward, scored on 1 of 1 nodes" in done.stdout


@pytest.mark.slurm
def test_ray_is_a_component_on_two_of_three_nodes_of_a_real_slurm(slurm: SlurmCluster, tmp_path: Path) -> None:
    with allocated(slurm, tmp_path, "-N3", "--exclusive") as job:
        done = job.windlass("run", _job_file(tmp_path, "nodes = 2"), timeout_s=200, env=SMALL)
    assert done.code == 0, done.text
    assert re.search(r"\[driver 0\] 1487 of 2000 texts .* scored on [12] of 2 nodes", done.stdout), done.text


@pytest.mark.slurm
def test_the_component_whose_ray_dies_is_named_with_its_node(slurm: SlurmCluster, tmp_path: Path) -> None:
    path = _job_file(tmp_path, "nodes = 2")
    Path(path).write_text(Path(path).read_text().replace('{reward.port}"]\nneeds', '{reward.port}", "100000"]\nneeds'))
    with allocated(slurm, tmp_path, "-N3", "--exclusive") as job:
        run = slurm.popen(windlass_argv("run", path), env={**job.env, **SMALL}, cwd=tmp_path)
        wait_until(lambda: "2000 texts" in _output(tmp_path), timeout_s=150, what="tasks run")
        raylets = (pid for pid, argv in ray_processes("nid0003").items() if "/raylet " in argv)
        os.kill(next(raylets), signal.SIGKILL)
        out, err = run.communicate(timeout=100)
    assert run.returncode == 71, out + err
    assert "driver failed: rank 1 on nid0003 exited with code 71" in err, out + err


@pytest.mark.slurm
def test_another_version_of_ray_on_one_node_is_named(slurm: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "sitecustomize.py").write_text("import ray\nray.__version__ = '2.52.0'\n")
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$SLURM_NODEID" != 1 ] || export PYTHONPATH={tmp_path}/old\nexec {examples_python()} "$@"\n'
    )
    python.chmod(0o755)
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        done = job.windlass("run", "--python", str(python), str(RAY / "tasks.py"), timeout_s=150, env=SMALL)
    assert done.code == 71, done.text
    assert "rank 1 on nid0002 exited with code 71" in done.text
    assert "Ray on nid0002: the start of Ray has failed" in done.text
    assert "Ray: 2.52.0" in done.text


def _output(folder: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in folder.glob("runs/**/out/*"))
