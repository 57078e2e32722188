"""The clusters that tests share. Each is started once per session, in well under a second, and must be quiet again
after every test: no job, no step, no orphan of a rank."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.slurm import Flavour, Shape, SlurmCluster
from requirements import require_slurm


def _session_cluster(flavour: Flavour) -> Iterator[SlurmCluster]:
    require_slurm()
    with SlurmCluster(Shape(flavour=flavour)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def _bound_cluster() -> Iterator[SlurmCluster]:
    yield from _session_cluster("bound")


@pytest.fixture(scope="session")
def _wide_cluster() -> Iterator[SlurmCluster]:
    yield from _session_cluster("wide")


def _quiet_after(cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    yield cluster
    try:
        cluster.wait_quiet(timeout_s=20)
    except AssertionError as error:
        cluster.clear()
        pytest.fail(f"the test left something running in the cluster: {error}", pytrace=False)


@pytest.fixture
def slurm(_wide_cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    """Four nodes that say they have 16 CPUs each; nobody binds."""
    yield from _quiet_after(_wide_cluster)


@pytest.fixture
def slurm_bound(_bound_cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    """Four nodes that each have this machine's cores; ranks are really bound."""
    yield from _quiet_after(_bound_cluster)
