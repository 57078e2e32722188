"""Which node a plan is made for: the catalog's, or the one that was looked at."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from looping import each
from windlass.model.request import Request
from windlass.model.topology import Topology
from windlass.run.context import with_seen_mpi
from windlass.sites.catalog import load_site
from windlass.sites.topology.described import choose_topology, topology_from_spec


def seen_with(name: str, numas: dict[int, int]) -> Topology:
    """The site's node as a probe would show it, with some devices in other domains."""
    file = load_site(name).file
    node = topology_from_spec(file.node, file.devices)
    devices = tuple(
        msgspec.structs.replace(device, numa=numas.get(device.index, device.numa), l3=None) for device in node.devices
    )
    return msgspec.structs.replace(node, devices=devices, reserved=(), allowed=node.cpus, probed=True)


def test_a_map_that_is_not_confirmed_gives_way_to_what_the_node_shows() -> None:
    site = load_site("juwels-booster")
    assert site.origin_of("node.domains").grade == "unconfirmed"
    chosen, remarks = choose_topology(site, seen_with("juwels-booster", {2: 5, 3: 7}))
    assert {device.index: device.numa for device in chosen.devices} == {0: 3, 1: 1, 2: 5, 3: 7}
    assert [(remark.severity, remark.evidence) for remark in remarks] == [
        (
            "note",
            "juwels-booster's map of devices and NUMA domains is not confirmed; "
            "as seen on this node: device 2 in 5, 3 in 7",
        )
    ]


@pytest.mark.parametrize("name", ["perlmutter", "leonardo", "sophia"])
def test_maps_that_only_users_or_we_have_drawn_give_way_too(name: str) -> None:
    first = topology_from_spec(load_site(name).file.node, load_site(name).file.devices).devices
    other = next(device.numa for device in reversed(first) if device.numa != first[0].numa) if name != "leonardo" else 1
    assert other is not None
    chosen, remarks = choose_topology(load_site(name), seen_with(name, {0: other}))
    assert next(device.numa for device in chosen.devices if device.index == 0) == other
    assert f"device 0 in {other}" in remarks[0].evidence


def test_nothing_is_said_where_the_node_confirms_the_map() -> None:
    chosen, remarks = choose_topology(load_site("juwels-booster"), seen_with("juwels-booster", {}))
    assert {device.index: device.numa for device in chosen.devices} == {0: 3, 1: 1, 2: 7, 3: 5}
    assert remarks == [] and chosen.probed


def test_a_confirmed_map_stays_with_its_reserved_cores() -> None:
    chosen, remarks = choose_topology(load_site("frontier"), seen_with("frontier", {0: 0}))
    described = topology_from_spec(load_site("frontier").file.node, load_site("frontier").file.devices)
    assert chosen.devices == described.devices and chosen.reserved == described.reserved
    assert remarks == []


MPIEXECS = [
    ("bin", "mpiexec (OpenRTE) 4.1.4", "openmpi"),
    ("bin", "mpirun (Open MPI) 5.0.6", "openmpi"),
    ("bin", "HYDRA build details:\n    Version: 4.2.0", "hydra"),
    ("bin", "Intel(R) MPI Library for Linux* OS, Version 2021.11", "hydra"),
    ("opt/cray/pals/1.4/bin", "mpiexec version 1.4", "pals"),
    ("bin", "something else", None),
]


@each(("folder", "version", "kind"), MPIEXECS)
def test_the_mpiexec_of_a_pbs_cluster_that_nobody_described_is_asked_whose_it_is(
    tmp_path: Path, folder: str, version: str, kind: str | None
) -> None:
    place = tmp_path / str(len(version)) / folder
    place.mkdir(parents=True)
    (place / "mpiexec").write_text(f"#!/bin/sh\n[ \"$1\" = --version ] && echo '{version}'\n")
    (place / "mpiexec").chmod(0o755)
    environ, site = {"PATH": f"{place}:/usr/bin:/bin"}, load_site("generic-pbs")
    found, note = with_seen_mpi(Request(command=()), site, environ)
    assert note is not None
    assert (found.file.launcher.kind, note.kind) == (kind or "hydra", "mpi-seen" if kind else "mpi-unknown")
    asked = Request(command=(), launcher="pals")
    assert with_seen_mpi(asked, site, environ) == (site, None), "the user said it"
    aurora = load_site("aurora")
    assert with_seen_mpi(Request(command=()), aurora, environ) == (aurora, None), "the catalog says it"


def test_no_mpiexec_is_told() -> None:
    found, note = with_seen_mpi(Request(command=()), load_site("generic-pbs"), {"PATH": "/nowhere"})
    assert note is not None
    assert (found.file.launcher.kind, note.kind) == ("hydra", "mpi-unknown")
