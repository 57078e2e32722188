"""The example of staging: environment, data and compiled kernels on the nodes, here and under a real Slurm."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from cluster.command import allocated
from cluster.slurm import SlurmCluster
from requirements import require_fuse
from unit.cli.typed import windlass

EXAMPLE = Path(__file__).parents[2] / "examples" / "staging"
SCRIPT = str(EXAMPLE / "train.py")
pytestmark = [pytest.mark.fuse, pytest.mark.timeout(180)]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A folder with what the example's script makes."""
    require_fuse()
    subprocess.run(["sh", str(EXAMPLE / "make_env.sh")], cwd=tmp_path, check=True, timeout=60)
    return tmp_path


def told(text: str, what: str) -> list[str]:
    """What the ranks said of one thing."""
    return re.findall(rf"rank \d: {what} (.*)", text)


@pytest.mark.slow
def test_a_kernel_is_compiled_once_and_found_by_the_next_run(made: Path) -> None:
    words = ("run", "-r", "2", "--cache", f"{made}/env", "--keep-caches", "kept", "--show", "all", SCRIPT)
    first, second = (windlass(*words, "{view}" + f"{made}/data", cwd=made) for _ in range(2))
    assert first.code == second.code == 0, first.text + second.text
    assert "compiled now" in told(first.stdout, "kernel")
    assert [said.split()[0] for said in told(second.stdout, "kernel")] == ["found", "found"]
    assert all(f"/view{made}/env/" in path for path in told(first.stdout, "package")), first.text


@pytest.mark.slurm
def test_environment_and_data_are_unpacked_on_two_nodes_and_kernels_come_back(slurm: SlurmCluster, made: Path) -> None:
    local = made / "local"
    keep = ("--keep-caches", "kept", "--show", "all", SCRIPT)
    with allocated(slurm, made, "-N2", "--exclusive") as job:
        staged = job.windlass("stage", "env.tar.gz", "data.tar", "--to", str(local), "--extract")
        assert staged.code == 0, staged.text
        words = ("-r", "1", "--python", f"{local}/env/bin/python", *keep, f"{local}/data")
        first, second = (job.windlass("run", *words) for _ in range(2))
        cached = job.windlass("run", "-r", "1", "--cache", f"{made}/env", *keep, f"{made}/data")
    for done in (first, second, cached):
        assert done.code == 0, done.text
        assert [said.split()[:2] for said in told(done.stdout, "data")] == [["8", "files,"]] * 2, done.text
    assert told(first.stdout, "kernel") == ["compiled now"] * 2
    assert [said.split()[0] for said in told(second.stdout, "kernel")] == ["found"] * 2
    assert all(path.startswith(f"{local}/env/") for path in told(second.stdout, "package")), second.text
    assert all(f"/view{made}/env/" in path for path in told(cached.stdout, "package")), cached.text


@pytest.mark.slow
@pytest.mark.slurm
def test_caches_in_a_folder_of_the_first_node_alone_are_kept_from_where_salloc_leaves_people(
    slurm: SlurmCluster, made: Path
) -> None:
    """Each node has a local folder of its own, and so has the machine on which windlass runs."""
    for name in ("", "nid0001", "nid0002"):
        (made / f"local-{name}").mkdir()
    site, place = made / "site.toml", f"{made}/local-${{SLURMD_NODENAME}}"
    site.write_text(f'name = "mine"\nextends = "generic-slurm"\n[storage]\nlocal = "{place}"\n')
    words = ("--site", str(site), "-r", "1", "--keep-caches", "kept", "--show", "all", SCRIPT, "data")
    (packages,) = (made / "env/lib").glob("python3*/site-packages")
    with allocated(slurm, made, "-N2", "--exclusive") as job:
        env = {"PYTHONPATH": f"{job.env['PYTHONPATH']}:{packages}"}
        first, second = (job.run_python(*words, env=env) for _ in range(2))
    assert first.code == second.code == 0, first.text + second.text
    assert told(first.stdout, "kernel") == ["compiled now"] * 2
    assert [said.split()[0] for said in told(second.stdout, "kernel")] == ["found"] * 2, second.text
    assert list(made.glob("local-*/windlass-*")) == [], "nothing is left on the nodes"
