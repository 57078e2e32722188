"""The container example: the smoke test of an image on every node, and the binds of the sites' guides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster.command import allocated
from cluster.slurm import SlurmCluster
from containers.rootfs import make_rootfs, python_inside
from requirements import require_containers
from unit.cli.typed import in_process, windlass

SCRIPT = Path(__file__).parents[2] / "examples" / "containers" / "smoke.py"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_containers()
    return make_rootfs(tmp_path_factory.mktemp("image") / "root")


@pytest.mark.containers
@pytest.mark.timeout(120)
def test_a_path_that_is_not_bound_fails_the_smoke_test(image: Path, tmp_path: Path) -> None:
    (tmp_path / SCRIPT.name).write_text(SCRIPT.read_text())
    (tmp_path / "library").mkdir()
    words = ("run", "--site", "workstation", "--container", str(image), "--python", python_inside(), "--show", "all")
    done = windlass(*words, "--bind", f"{tmp_path}/library:/host/lib", SCRIPT.name, "/host/lib", cwd=tmp_path)
    assert done.code == 0, done.text
    assert "no torch in this image; 1 of 1 paths" in done.stdout
    bad = windlass(*words, SCRIPT.name, "/host/lib", "/nowhere", cwd=tmp_path)
    assert bad.code == 1, bad.text
    assert "1 of 2 paths, without /nowhere" in bad.stdout


@pytest.mark.containers
@pytest.mark.slurm
@pytest.mark.timeout(120)
def test_every_node_of_a_slurm_job_starts_the_image_with_the_binds_of_its_site(
    slurm: SlurmCluster, image: Path, tmp_path: Path
) -> None:
    """The entry of the site says what is bound across nodes, as LUMI's does; nobody types it."""
    (tmp_path / SCRIPT.name).write_text(SCRIPT.read_text())
    (tmp_path / "fabric").mkdir()
    (tmp_path / "fabric" / "libcxi.so.1").touch()
    site = tmp_path / "site.toml"
    site.write_text(
        'name = "mine"\nextends = "generic-slurm"\n[sources.mine]\nwhere = "test"\nchecked = "2026-11-15"\n'
        '[[containers]]\nruntime = "charliecloud"\ndefault = true\n'
        f'[[containers.binds]]\nsource_path = "{tmp_path}/fabric"\ntarget = "/mnt/0"\n'
        'because = "the library of the NIC; required across nodes"\nsource = "mine"\nwhen = { nodes_min = 2 }\n'
    )
    words = ("--site", str(site), "--container", str(image), "--python", python_inside(), "-r", "1")
    with allocated(slurm, tmp_path, "-N2", "--exclusive") as job:
        done = job.windlass("run", *words, "--show", "all", SCRIPT.name, "/mnt/0/libcxi.so.1")
        alone = job.windlass("run", *words, "-N", "1", SCRIPT.name, "/mnt/0/libcxi.so.1")
    assert done.code == 0, done.text
    assert sorted(line.split()[1] for line in done.stdout.splitlines()) == ["nid0001:", "nid0002:"], done.text
    assert done.stdout.count("1 of 1 paths") == 2
    assert alone.code == 1, "on one node the site binds none of it"


# Document and machine, nodes, what is bound there by hand.
BOUND_BY_HAND = [
    ("lumi", "2", {"/var/spool/slurmd", "/opt/cray", "/usr/lib64/libcxi.so.1", "/flash", "/pfs"}),
    ("lumi", "1", {"/flash", "/pfs"}),
]


@pytest.mark.parametrize(("site", "nodes", "by_hand"), BOUND_BY_HAND)
def test_a_plan_binds_what_the_guide_binds_by_hand(site: str, nodes: str, by_hand: set[str], tmp_path: Path) -> None:
    words = ("--site", site, "--nodes", nodes, "--account", "project_1", "--container", "/appl/x.sif", "train.py")
    done = in_process("plan", "--json", *words, cwd=tmp_path)
    assert done.code == 0, done.text
    mounts = json.loads(done.stdout)["container"]["mounts"]
    assert by_hand <= {mount["source"] for mount in mounts}
    assert str(tmp_path) in {mount["target"] for mount in mounts}, "the working folder, `-B .:/workdir` by hand"
    assert ("/opt/cray" in {mount["source"] for mount in mounts}) == (nodes == "2")
