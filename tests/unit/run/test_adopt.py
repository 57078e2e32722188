"""Measuring a cluster from a login node, with commands that say what the real ones said."""

from __future__ import annotations

from pathlib import Path

import pytest

from captured import FOLDER
from windlass.model.topology import Nic
from windlass.run.adopt import ask_cluster, fabric_of, measurements


def commands(folder: Path, **texts: str) -> dict[str, str]:
    """An environment in which each command prints a text; `sh` and `cat` are there too, nothing else."""
    folder.mkdir()
    for name, text in texts.items():
        (folder / f"{name}.said").write_text(text)
        (folder / name).write_text(f'#!/bin/sh\nexec /bin/cat "{folder / name}.said"\n')
        (folder / name).chmod(0o755)
    return {"PATH": str(folder), "HOME": str(folder)}


def said(path: str) -> str:
    return (FOLDER / path).read_text()


def test_a_pbs_cluster_is_measured_with_the_mpi_that_is_there(tmp_path: Path) -> None:
    answers = f"{said('openpbs/qstat_Q_f_json.out')}\n{said('openpbs/qstat_B_f_json.out')}"
    environ = commands(
        tmp_path / "bin",
        qsub="",
        qstat=answers,
        pbsnodes=said("openpbs/pbsnodes_a_json.out"),
        mpiexec="HYDRA build details:\n    Version: 4.2\n",
    )
    seen = measurements(
        "bluebox", ask_cluster({**environ, "PBS_CONF_FILE": "/dev/null", "LOADEDMODULES": "gcc/13:cuda/12"})
    )
    assert (seen.scheduler, seen.extends, seen.launcher) == ("pbs", "generic-pbs", "hydra")
    assert [queue.name for queue in seen.queues] == ["workq", "debug"]
    assert seen.offers and seen.modules == ("gcc/13", "cuda/12")
    assert seen.node is None and "inside an allocation" in seen.node_missing


def test_a_flux_cluster_is_measured(tmp_path: Path) -> None:
    seen = measurements("bluebox", ask_cluster(commands(tmp_path / "bin", flux=said("flux/queue-list.stdout"))))
    assert (seen.scheduler, seen.extends, seen.launcher) == ("flux", "generic-flux", "flux")
    assert [(queue.name, queue.time_max) for queue in seen.queues] == [("batch", "08:00:00"), ("debug", "00:30:00")]
    assert seen.node is None


def test_a_scheduler_that_does_not_answer_leaves_its_facts_out(tmp_path: Path) -> None:
    environ = commands(tmp_path / "bin", qsub="", qstat="")
    (tmp_path / "bin" / "qstat").write_text("#!/bin/sh\necho cannot connect >&2\nexit 15\n")
    seen = measurements("bluebox", ask_cluster({**environ, "PBS_CONF_FILE": "/dev/null"}))
    assert (seen.scheduler, seen.queues, seen.offers, seen.launcher) == ("pbs", (), (), None)


@pytest.mark.parametrize(
    ("nics", "network"),
    [
        ((Nic(name="hsn0", device="cxi0"),), "slingshot-11"),
        ((Nic(name="ib0", device="mlx5_0"), Nic(name="eth0")), "infiniband"),
        ((Nic(name="ens1", device="mlx5_0"),), None),
        ((Nic(name="eth0"),), None),
    ],
)
def test_a_fabric_is_told_by_its_devices_or_left_open(nics: tuple[Nic, ...], network: str | None) -> None:
    assert fabric_of(nics) == network
