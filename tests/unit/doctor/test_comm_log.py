"""Logs of NCCL: plugin found and not found, the way that was really taken, and whether it is quick enough."""

from __future__ import annotations

import pytest

from planning import plan_for
from windlass.diagnose.doctor.bandwidth import check_all_reduce, expected_gbs, judge_bandwidth, judge_transport
from windlass.diagnose.doctor.comm_log import Transport, parse_comm_log, transport_text
from windlass.sites.catalog import load_site

HEAD = "nid001:4101:4101 [0] NCCL INFO "
FOUND = [
    HEAD + "Bootstrap : Using hsn0:10.120.96.1<0>",
    HEAD + "NET/Plugin: Loaded net plugin AWS Libfabric (v8)",
    "NCCL version 2.20.5+cuda12.4",
    HEAD + "NET/OFI Initializing aws-ofi-nccl 1.9.1",
    HEAD + "NET/OFI Selected Provider is cxi (found 4 nics)",
    HEAD + "Using network AWS Libfabric",
    HEAD + "Channel 00/0 : 7[3] -> 0[0] [receive] via NET/AWS Libfabric/0/GDRDMA",
    HEAD + "Channel 00/0 : 3[3] -> 4[0] [send] via NET/AWS Libfabric/3/GDRDMA",
]
NOT_FOUND = [
    HEAD + "Bootstrap : Using eth0:172.16.1.56<0>",
    HEAD + "NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: cannot open shared object file: "
    "No such file or directory",
    HEAD + "NET/Plugin : No plugin found, using internal implementation",
    HEAD + "NET/IB : No device found.",
    HEAD + "NET/Socket : Using [0]eth0:172.16.1.56<0> [1]hsn0:10.120.96.1<0>",
    HEAD + "Using network Socket",
    HEAD + "Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0",
]
INFINIBAND = [
    HEAD + "Bootstrap : Using ib0:10.0.0.5<0>",
    HEAD + "NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.",
    HEAD + "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ib0:10.0.0.5<0>",
    HEAD + "Using network IB",
    HEAD + "Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0",
]
NEWER = [HEAD + "Initialized NET plugin Socket", HEAD + "Assigned NET plugin Socket to comm 0x55d2"]
FORCED = [HEAD.replace("INFO", "WARN") + "Error: network AWS Libfabric not found."]
LOOPBACK = [HEAD + "NET/Socket : Using [0]lo:127.0.0.1<0>", HEAD + "Using network Socket"]


def test_a_plugin_that_was_found_is_read() -> None:
    way = parse_comm_log(FOUND)
    assert (way.network, way.plugin, way.provider) == ("AWS Libfabric", "aws-ofi-nccl 1.9.1", "cxi")
    assert way.direct and way.bootstrap == "hsn0" and way.library == "NCCL 2.20.5+cuda12.4" and not way.plugin_missing
    assert transport_text(way) == "AWS Libfabric, aws-ofi-nccl 1.9.1, provider cxi, GPUDirect"
    assert judge_transport(way, 2, "slingshot-11").severity == "ok"


def test_a_plugin_that_was_not_found_is_a_fall_back_to_tcp() -> None:
    way = parse_comm_log(NOT_FOUND)
    assert way.is_tcp and way.plugin_missing and way.interfaces == ("eth0", "hsn0") and way.direct is False
    found = judge_transport(way, 2, "slingshot-11")
    assert found.severity == "error" and found.evidence == "TCP sockets on slingshot-11: no network plugin was found"
    assert judge_transport(way, 2, "ethernet").severity == "ok"
    assert judge_transport(way, 1, "slingshot-11").severity == "skipped"


def test_infiniband_needs_no_plugin_but_direct_access_to_device_memory() -> None:
    way = parse_comm_log(INFINIBAND)
    assert (way.network, way.interfaces, way.direct) == ("IB", ("mlx5_0", "mlx5_1"), False)
    found = judge_transport(way, 2, "infiniband")
    assert found.severity == "warning" and "no GPUDirect" in found.evidence


def test_other_ways_to_go_wrong() -> None:
    assert parse_comm_log(NEWER).network == "Socket"
    assert judge_transport(parse_comm_log(FORCED), 2, "slingshot-11").evidence.startswith(
        "NCCL_NET forces AWS Libfabric"
    )
    assert "lo does not reach other nodes" in judge_transport(parse_comm_log(LOOPBACK), 2, "ethernet").evidence
    assert parse_comm_log(["step 1 loss 2.5", ""]) == Transport()


@pytest.mark.parametrize(("got", "severity"), [(5.4, "error"), (13.0, "error"), (50.0, "warning"), (122.6, "ok")])
def test_bandwidth_has_a_floor(got: float, severity: str) -> None:
    found = judge_bandwidth(got, (123.0, "the site's own 123 GB/s"), "nccl", 2)
    assert found.severity == severity and f"{got:.3g} GB/s" in found.evidence


def test_what_is_expected_comes_from_the_site_or_its_line_rate() -> None:
    plan, _ = plan_for("clariden", "train.py", nodes=2, account="A")
    assert expected_gbs(plan, load_site("clariden")) == (123.0, "the site's own 123 GB/s")
    four, _ = plan_for("clariden", "train.py", nodes=4, account="A")
    line = expected_gbs(four, load_site("clariden"))
    assert line is not None and line[0] == 100.0
    assert judge_bandwidth(0.4, None, "gloo", 2).severity == "ok"


def test_wrong_sums_and_broken_collectives_fail() -> None:
    plan, _ = plan_for("clariden", "train.py", nodes=2, account="A")
    site = load_site("clariden")
    good = {"backend": "nccl", "all_reduce_right": True, "busbw_gbs": 120.0}
    found = check_all_reduce(plan, site, dict.fromkeys(range(8), good), parse_comm_log(FOUND))
    assert [(f.kind, f.severity) for f in found] == [("all-reduce", "ok"), ("transport", "ok")]
    wrong = {0: good, 1: {**good, "all_reduce_right": False}}
    assert "wrong sums on ranks 1" in check_all_reduce(plan, site, wrong, Transport())[0].evidence
    broken = check_all_reduce(plan, site, {0: {"all_reduce_error": "DistBackendError: no"}}, Transport())
    assert broken[0].severity == "error"
    assert check_all_reduce(plan, site, {0: {}}, Transport())[0].severity == "skipped"
