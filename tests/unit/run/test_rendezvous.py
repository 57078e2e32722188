"""An address that resolves and a port that is free, settled before the ranks start."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from planning import plan_for
from windlass.errors import MachineError
from windlass.node.probe.main import taken_ports
from windlass.run.rendezvous import (
    host_addresses,
    interface_address,
    is_free,
    is_this_host,
    master_address,
    master_port,
    resolves,
)


def test_one_node_meets_on_the_loopback() -> None:
    plan, _ = plan_for("frontier")
    assert master_address(plan, ("frontier00001",), {}) == "127.0.0.1"


def test_a_first_host_that_does_not_resolve_is_an_error_with_its_name() -> None:
    plan, _ = plan_for("generic-slurm", nodes=2)
    with pytest.raises(MachineError, match="no-such-host"):
        master_address(plan, ("no-such-host.invalid", "b"), {"PATH": ""})


def test_a_first_host_that_resolves_is_taken_by_its_short_name_or_else_by_its_full_one() -> None:
    plan, _ = plan_for("generic-slurm", nodes=2)
    assert master_address(plan, ("localhost", "b"), {}) == "localhost"
    assert master_address(plan, ("localhost.localdomain", "b"), {}) == "localhost"
    assert master_address(plan, ("10.1.2.3", "10.1.2.4"), {}) == "10.1.2.3"


@pytest.mark.parametrize("name", ["", "a..b", "x" * 300, "ünï.invalid", "-"])
def test_names_that_cannot_be_do_not_resolve(name: str) -> None:
    if name:
        assert not resolves(name)


def test_the_loopback_has_an_address_and_a_missing_interface_none() -> None:
    assert interface_address("lo") == "127.0.0.1"
    assert interface_address("nothere0") is None
    assert interface_address("a-name-longer-than-any-interface") is None


def test_a_host_is_this_one_by_its_short_name_or_by_slurms() -> None:
    me = socket.gethostname().split(".")[0]
    assert is_this_host(me, {}) and is_this_host(f"{me}.some.domain", {})
    assert is_this_host("nid001", {"SLURMD_NODENAME": "nid001"})
    assert not is_this_host("nid001", {})


def test_jobs_get_ports_of_their_own_in_the_sites_range() -> None:
    plan, _ = plan_for("lumi", nodes=2)
    rule = plan.rendezvous
    ports = [master_port(plan, str(job), "run", lambda _: True) for job in range(1000, 1100)]
    assert len(set(ports)) == 100
    assert all(rule.port_base <= port < rule.port_base + rule.port_span for port in ports)


def test_two_runs_of_one_job_meet_at_different_ports() -> None:
    plan, _ = plan_for("lumi")
    assert master_port(plan, "77", "first", lambda _: True) != master_port(plan, "77", "second", lambda _: True)


def test_a_taken_port_is_passed_over() -> None:
    plan, _ = plan_for("lumi")
    first = master_port(plan, "77", "run", lambda _: True)
    assert master_port(plan, "77", "run", lambda port: port != first) == first + 1


@pytest.mark.parametrize("job_id", [None, "", "1234567.server.example.org", "ƒABCDE", "12[].pbs"])
def test_any_kind_of_job_id_gives_a_port(job_id: str | None) -> None:
    plan, _ = plan_for("lumi")
    assert 0 < master_port(plan, job_id, "run", lambda _: True) < 65536


def test_no_free_port_and_a_wished_one_that_is_taken_are_errors() -> None:
    plan, _ = plan_for("lumi")
    with pytest.raises(MachineError, match="no free port"):
        master_port(plan, "77", "run", lambda _: False)
    fixed, _ = plan_for("lumi", master_port=29500)
    with pytest.raises(MachineError, match="29500 is in use"):
        master_port(fixed, "77", "run", lambda _: False)
    assert master_port(fixed, "77", "run", lambda _: True) == 29500


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1"])
def test_a_port_on_which_somebody_listens_is_not_free(address: str) -> None:
    with socket.socket() as listener:
        listener.bind((address, 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert not is_free(port)
        assert port in taken_ports()
    assert is_free(port)


def test_agents_find_each_other_as_ranks_do_where_names_do_not_resolve(tmp_path: Path) -> None:
    """Slurm knows addresses of nodes that no name service knows."""
    hosts = ("nid0001.invalid", "nid0002.invalid")
    lines = [
        f"NodeName={host} Arch=x86_64 NodeAddr=127.0.0.{at} NodeHostName={host}" for at, host in enumerate(hosts, 11)
    ]
    program = tmp_path / "scontrol"
    program.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    program.chmod(0o755)
    plan, _ = plan_for("generic-slurm", "true", nodes=2, ranks_per_node=1)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert master_address(plan, hosts, environ) == "127.0.0.11"
    assert host_addresses(plan, hosts, environ) == ("127.0.0.11", "127.0.0.12")
    assert host_addresses(plan, ("localhost", "b"), {"PATH": ""}) == ("localhost", "b")
    assert host_addresses(plan, hosts, {"PATH": ""}) == ("nid0001", "nid0002"), "by the rule, where nobody knows better"
