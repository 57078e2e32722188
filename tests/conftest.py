"""Fixtures for every test: folder names that break careless quoting, and a check that nothing is left behind."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import leftovers
from cluster.fixtures import _bound_cluster, _wide_cluster, slurm, slurm_bound

__all__ = ["_bound_cluster", "_wide_cluster", "slurm", "slurm_bound"]

# Tests under these marks start real processes, so what they leave behind is looked for.
_REAL = ("slurm", "mpi", "fuse", "containers", "torch", "modules")
_SHARED = ("_bound_cluster", "_wide_cluster")
# About what a test with such a mark takes, in tenths of a second; one without takes 1. Only their order matters.
_COST = {"slurm": 30, "mpi": 20, "fuse": 10, "containers": 20, "torch": 40, "modules": 10, "apart": 100}

# On a busy machine an example, or the making of one, takes as long as it takes: that says nothing about the code.
settings.register_profile("any-pace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-pace")


def pytest_configure() -> None:
    """A shell starts what it puts into the background with SIGINT and SIGQUIT ignored, nohup with SIGHUP, and children
    inherit that: tests that send them would wait for ever. Here they mean what they mean at a terminal."""
    for sig, usual in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGQUIT, signal.SIG_DFL),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(sig) is signal.SIG_IGN:
            signal.signal(sig, usual)


@pytest.hookimpl(tryfirst=True)  # xdist reads the marks in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where tests run in parallel, those of one shared cluster stay on one worker, so that it starts once; those that
    are marked `apart` go wherever there is room; all others stay with their file. What takes longest starts first, so
    that no worker is left alone with it at the end: `scripts/run_tests.py` has xdist keep this order."""
    cost: Counter[str] = Counter()
    group: dict[pytest.Item, str] = {}
    for number, item in enumerate(items):
        shared = [name for name in _SHARED if name in getattr(item, "fixturenames", ())]
        file = item.nodeid.split("::", 1)[0]
        own = f"{file} {number}" if item.get_closest_marker("apart") else file
        group[item] = shared[0] if shared else own
        cost[group[item]] += max((_COST.get(mark.name, 1) for mark in item.iter_markers()), default=1)
        item.add_marker(pytest.mark.xdist_group(group[item]))
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: (-cost[group[item]], group[item]))


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Secrets and bad nodes of the tests are not kept in the home of the user who runs them."""
    os.environ["WINDLASS_STATE"] = str(tmp_path_factory.getbasetemp() / "state")


HOSTILE_NAME = """run 1's "$HOME" $(touch x) `id` [a]*? ünï;&|#%"""


@pytest.fixture
def hostile_dir(tmp_path: Path) -> Path:
    """A folder whose name has spaces, quotes, shell syntax, glob characters and non-ASCII letters."""
    folder = tmp_path / HOSTILE_NAME
    folder.mkdir()
    return folder


@pytest.fixture
def mark() -> str:
    """This test's mark: put it into names of network namespaces and interfaces, so that leaks are found."""
    return os.environ[leftovers.MARK_VARIABLE]


@pytest.fixture(autouse=True)
def _no_leftovers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test of real parts that leaves a process, mount or namespace behind, and clears it away."""
    mark = leftovers.new_mark()
    os.environ[leftovers.MARK_VARIABLE] = mark
    real = any(request.node.get_closest_marker(name) for name in _REAL)
    if not real:
        yield
        return
    base = request.getfixturevalue("tmp_path_factory").getbasetemp()
    before = frozenset(leftovers.mounts_under(base))
    yield
    found = leftovers.look_until_clean(mark, base, patience_s=20, ignore_mounts=before)
    if found:
        text = found.text()
        leftovers.remove(found)
        pytest.fail(f"the test left behind:\n{text}", pytrace=False)
