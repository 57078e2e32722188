"""What the agents of a job do on a PBS machine with PALS and on a Flux machine: cache, and nodes that are replaced."""

from __future__ import annotations

import json
import re

import pytest

from conformance.machines import OVER, Machine, machine
from requirements import require_fuse
from standins.sites import real
from waiting import wait_until
from windlass.backends.schedulers.base import JobState

__all__ = ["machine"]

pytestmark = pytest.mark.apart


def hosts(machine: Machine) -> str:
    return str(json.loads((machine.site.home / "run" / "result.json").read_text())["hosts"])


@pytest.mark.fuse
def test_ranks_read_through_the_cache_and_one_node_reads_for_all(machine: Machine) -> None:
    require_fuse()
    packages = machine.site.home / "packages"
    packages.mkdir()
    (packages / "plain.py").write_text("WORD = 'ahoy'\n")
    code = "import plain; print(plain.WORD, plain.__file__)"
    options = ("--cache", str(packages), "--env-prepend", f"PYTHONPATH={packages}")
    job_id = machine.submit("/usr/bin/python3", "-c", code, options=options)
    assert machine.wait(job_id, OVER) == (JobState.DONE, 0), machine.log()
    for rank in range(4):
        assert re.match(rf"ahoy .+/view{packages}/plain.py\Z", machine.lines(rank)[-1]), machine.log()
    nodes = json.loads((machine.site.home / "run" / "cache.json").read_text())["nodes"]
    assert [node["errors"] for node in nodes] == [0, 0]
    assert nodes[0]["source_bytes"] and not nodes[1]["source_bytes"], nodes


def test_a_node_on_which_ranks_die_twice_is_replaced_by_a_spare(machine: Machine) -> None:
    script = (
        "[ $(uname -n) = node2 ] && kill -9 $$; while [ $RANK -lt 2 ] && [ ! -e there ]; do sleep 0.1; done; "
        "touch there; uname -n"
    )
    job_id = machine.submit("sh", "-c", script, options=("--restarts", "2", "--spares", "1"))
    assert machine.wait(job_id, OVER) == (JobState.DONE, 0), machine.log()
    assert "a spare node replaces node2" in machine.log()
    assert [machine.lines(rank)[-1] for rank in range(4)] == ["node1", "node1", "node3", "node3"], machine.log()


@pytest.mark.skipif(bool(real()), reason="the nodes of the real one share their kernel: none can be lost")
def test_a_lost_node_is_replaced_by_a_spare(machine: Machine) -> None:
    script = "touch started.$RANK; [ -e lost ] || exec sleep 100; uname -n"
    home = machine.site.home
    job_id = machine.submit("sh", "-c", script, options=("--restarts", "1", "--spares", "1", "--grace", "1"))
    wait_until(lambda: len(list(home.glob("started.*"))) == 4, timeout_s=60, what="all run", state=machine.log)
    (home / "lost").touch()
    machine.site.lose(machine.site.nodes[1])
    assert machine.wait(job_id, OVER) == (JobState.DONE, 0), machine.log()
    assert re.search(r"node node2\S* no longer responds", machine.log()), machine.log()
    assert [machine.lines(rank)[-1] for rank in range(4)] == ["node1", "node1", "node3", "node3"], machine.log()
