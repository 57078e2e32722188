"""Invariants of computed bindings over random nodes: whole and partial, with and without devices and second threads."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.model.plan import Binding
from windlass.model.topology import Core, Device, Nic, Topology
from windlass.sites.topology.bind import bind
from windlass.sites.topology.binding_request import BindingRequest
from windlass.sites.topology.check import problems_of
from windlass.sites.topology.draw import draw_node
from windlass.sites.topology.split import in_unit


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Sockets of domains of caches of cores; devices anywhere; some CPUs reserved, some not allowed."""
    sockets = draw(st.integers(1, 3))
    domains = draw(st.integers(1, 3))
    caches = draw(st.integers(1, 2))
    per_cache = draw(st.integers(1, 6))
    threads = draw(st.sampled_from([1, 2]))
    total = sockets * domains * caches * per_cache
    cores = tuple(
        Core(
            cpus=tuple(core + total * thread for thread in range(threads)),
            socket=core // (domains * caches * per_cache),
            numa=core // (caches * per_cache),
            l3=core // per_cache,
        )
        for core in range(total)
    )
    cpus = sorted(cpu for core in cores for cpu in core.cpus)
    tiles = draw(st.sampled_from([1, 2]))
    count = draw(st.integers(0, 4)) * tiles
    numas = sockets * domains
    homes = draw(st.lists(st.integers(0, numas - 1), min_size=count // tiles, max_size=count // tiles))
    told = draw(st.booleans())
    near_cache = draw(st.booleans())
    devices = tuple(
        Device(
            index=index,
            vendor="amd",
            card=index // tiles,
            tile=index % tiles if tiles > 1 else None,
            numa=homes[index // tiles] if told else None,
            l3=homes[index // tiles] * caches + index % caches if told and near_cache else None,
        )
        for index in range(count)
    )
    missing = draw(st.sets(st.integers(0, max(0, count - 1)), max_size=2))
    return Topology(
        arch="x86_64",
        cores=cores,
        devices=tuple(device for device in devices if device.index not in missing),
        nics=tuple(Nic(name=f"hsn{i}", numa=i % numas) for i in range(draw(st.integers(0, 4)))),
        allowed=tuple(sorted(draw(st.sets(st.sampled_from(cpus), min_size=1)))) if draw(st.booleans()) else (),
        reserved=tuple(sorted(draw(st.sets(st.sampled_from(cpus), max_size=3)))),
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[Topology, BindingRequest]:
    topology = draw(topologies())
    unit = draw(st.sampled_from(["tile", "card"]))
    counted = in_unit(topology, "card" if unit == "card" else None)
    share = draw(st.integers(1, 3))
    most = len(counted.devices) * share if counted.devices else 6
    aside = st.sets(st.sampled_from(topology.cpus), max_size=2)
    asked = BindingRequest(
        ranks_per_node=draw(st.integers(1, most)),
        ranks_per_device=share if counted.devices and share > 1 else None,
        device_unit="card" if unit == "card" else "tile",
        devices=draw(st.sampled_from(["all", "one"])),
        order=draw(st.sampled_from(["device", "core"])),
        threads=draw(st.sampled_from(["first", "all"])),
        agent_cpus=tuple(sorted(draw(aside))),
        comm_cpus=tuple(sorted(draw(aside))),
        cores_per_rank_max=draw(st.sampled_from([None, 1, 4])),
    )
    return counted, asked


def bound(binding: Binding) -> bool:
    return any(rank.cpus for rank in binding.ranks)


@settings(max_examples=400, deadline=None)
@given(cases())
def test_computed_bindings_keep_every_invariant(case: tuple[Topology, BindingRequest]) -> None:
    topology, asked = case
    binding = bind(topology, asked)
    assert problems_of(binding, topology) == ()


@settings(max_examples=300, deadline=None)
@given(cases())
def test_either_every_rank_has_a_core_of_its_own_or_none_is_bound(case: tuple[Topology, BindingRequest]) -> None:
    topology, asked = case
    binding = bind(topology, asked)
    owners: dict[int, int] = {}
    for rank in binding.ranks:
        assert bool(rank.cpus) == bound(binding)
        for cpu in rank.cpus:
            core = topology.core_of(cpu)
            assert core is not None
            assert owners.setdefault(core.id, rank.local_rank) == rank.local_rank
    if not bound(binding):
        taken = {*asked.agent_cpus, *asked.comm_cpus}
        whole = {core.id: core for core in topology.cores}
        usable = [
            core
            for core in topology.usable_cores()
            if not taken.intersection(next(c for c in whole.values() if core.id in c.cpus).cpus)
        ]
        shares = min(asked.ranks_per_device or 1, asked.ranks_per_node)
        used = -(-asked.ranks_per_node // shares) * shares if topology.devices else asked.ranks_per_node
        assert len(usable) < used


@settings(max_examples=200, deadline=None)
@given(cases())
def test_every_rank_finds_its_device_under_its_own_number(case: tuple[Topology, BindingRequest]) -> None:
    """With all devices visible and one rank per device, device number local_rank is the rank's own."""
    topology, asked = case
    binding = bind(topology, asked)
    if asked.devices == "all" and topology.devices and (asked.ranks_per_device or 1) == 1 and asked.ranks_per_node > 1:
        seen = binding.visible or tuple(range(len(topology.devices)))
        assert [rank.devices[0] for rank in binding.ranks] == list(seen[: asked.ranks_per_node])


@settings(max_examples=200, deadline=None)
@given(cases())
def test_the_same_node_and_wish_give_the_same_map(case: tuple[Topology, BindingRequest]) -> None:
    topology, asked = case
    assert bind(topology, asked) == bind(topology, asked)


@settings(max_examples=150, deadline=None)
@given(cases(), st.integers(40, 160))
def test_every_binding_can_be_drawn_within_the_width(case: tuple[Topology, BindingRequest], width: int) -> None:
    topology, asked = case
    text = draw_node(bind(topology, asked), topology, width=width)
    assert max(len(line) for line in text.splitlines()) <= width
