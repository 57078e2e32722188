"""Nodes keep each other's newest snapshot: on a real Slurm, a node, a pair of nodes or a copy is lost before
the snapshot has reached the shared folder."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.command import allocated, windlass_argv
from cluster.slurm import Shape, SlurmCluster
from cluster.supervised import EVERY, Training, ended, reference, same
from cluster.test_supervise import lose_node
from requirements import require_slurm, require_torch
from waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def own_slurm() -> Iterator[SlurmCluster]:
    """A cluster that may lose nodes."""
    require_slurm()
    require_torch()
    with SlurmCluster(Shape(flavour="wide")) as cluster:
        yield cluster


@pytest.mark.parametrize(
    ("lost", "gone", "resumed"),
    [
        ("nid0002", "", "resuming after step 9 from "),
        ("nid0001", "", "resuming after step 9 from "),
        ("nid0002", "memory", "files are gone (both nodes of a pair were lost, or their memory)"),
        ("nid0002", "bytes", "__1_0.distcp does not match its checksum"),
    ],
    ids=["a node", "the first node", "a node and the memory of its partner", "a node, and its copy is damaged"],
)
def test_after_a_lost_node_the_run_goes_on_from_its_partners_copy_or_the_shared_folder(
    own_slurm: SlurmCluster, tmp_path: Path, lost: str, gone: str, resumed: str
) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    with allocated(own_slurm, tmp_path, "-N4", "--exclusive", "--no-kill") as job:
        training = Training(job=job, folder=tmp_path)
        words = (
            "-r",
            "1",
            "--spares",
            "1",
            "--grace",
            "1",
            *training.words("wait:13:1"),
            "--fast",
            f"{memory}",
        )
        child = own_slurm.popen(windlass_argv("run", "--python", sys.executable, *words), env=job.env, cwd=tmp_path)
        with ended(child):
            wait_until((tmp_path / "a.marks" / "0.wait").exists, timeout_s=240, what="rank 1 is at step 13")
            shared = tmp_path / "a.ckpt" / "step-000000009"
            assert shared.exists()
            shutil.rmtree(shared)  # as if it had not been drained yet
            if gone == "memory":
                shutil.rmtree(memory / "nid0001")
            for file in memory.glob("nid0001/*/step-000000009/__1_*.distcp") if gone == "bytes" else ():
                file.write_bytes(b"nonsense" + file.read_bytes()[8:])
            lose_node(own_slurm, lost)
            shutil.rmtree(memory / lost)
            out, told = child.communicate(timeout=240)
        assert child.returncode == 0, told
    assert resumed in out + told, out + told
    assert f"resuming after step {4 if gone else 9} from" in out + told
    assert training.losses() == reference(3, tmp_path)
    assert training.repeated() <= 2 * EVERY
    fault = f"{lost} lost before the drain" + (f", and the {gone} of its partner's copy" if gone else "")
    same(fault, training, 2 * EVERY)
