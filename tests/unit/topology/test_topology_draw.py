"""The map of a node as people see it."""

from __future__ import annotations

from textwrap import dedent

import msgspec

from looping import each
from unit.topology.nodes import AURORA_PRESETS, aurora, gh200, juwels, lumi, perlmutter, workstation
from windlass.base.notation.counts import parse_cpulist
from windlass.model.topology import Topology
from windlass.sites.topology.bind import bind
from windlass.sites.topology.binding_request import BindingRequest, effective_unit
from windlass.sites.topology.draw import draw_node
from windlass.sites.topology.split import in_unit


def drawn(topology: Topology, asked: BindingRequest, *, width: int = 100, color: bool = False) -> str:
    counted = in_unit(topology, effective_unit(asked, topology))
    return draw_node(bind(topology, asked), counted, width=width, color=color)


def page(text: str) -> str:
    return dedent(text).strip("\n")


def test_lumi_fits_one_line_per_domain() -> None:
    assert drawn(lumi(), BindingRequest(ranks_per_node=8, threads="first")) == page(
        """
        x86_64, 1 socket, 4 NUMA domains, 64 cores of 2 threads, 8 GCDs, 4 interfaces, 8 ranks
        cores of the L3 cache next to each rank's device

         NUMA 0  cores 0-15   |#4444444 #5555555|  GCD 4 5  hsn0
         NUMA 1  cores 16-31  |#2222222 #3333333|  GCD 2 3  hsn1
         NUMA 2  cores 32-47  |#6666666 #7777777|  GCD 6 7  hsn2
         NUMA 3  cores 48-63  |#0000000 #1111111|  GCD 0 1  hsn3

         0-7 local rank   # reserved by the system   one cell: one core, 1 of 2 threads

         rank  cpus   GCD  numa  nic
            0  49-55  0    3     hsn3
            1  57-63  1    3     hsn3
            2  17-23  2    1     hsn1
            3  25-31  3    1     hsn1
            4  1-7    4    0     hsn0
            5  9-15   5    0     hsn0
            6  33-39  6    2     hsn2
            7  41-47  7    2     hsn2
        """
    )


def test_aurora_shows_ranks_workers_agent_and_reserved_cores() -> None:
    text = drawn(aurora(), BindingRequest(ranks_per_node=12, presets=AURORA_PRESETS, agent_cpus=(48, 49, 50, 51)))
    assert text.startswith(
        page(
            """
            x86_64, 2 sockets, 2 NUMA domains, 104 cores of 2 threads, 12 tiles, 8 interfaces, 12 ranks
            preset ai: four cores per rank, away from the workers of oneCCL

             socket 0, NUMA 0  cores 0-51  tile 0-5  hsn0..hsn3
                0 |#...0000 11112222 33334444 5555.... ........ ..~~~~~~ @@@@|
             socket 1, NUMA 1  cores 52-103  tile 6-11  hsn4..hsn7
               52 |#...6666 77778888 9999aaaa bbbb.... ........ ..~~~~~~ ....|

             0-b local rank (a is 10)   # reserved by the system   @ agent   ~ communication   . idle
             one cell: one core, 1 of 2 threads

             rank  cpus   tile  numa  nic
                0  4-7    0     0     hsn0
            """
        )
    )


def test_forty_eight_ranks_make_a_table_in_two_halves() -> None:
    lines = drawn(aurora(), BindingRequest(ranks_per_node=48, presets=AURORA_PRESETS, cpu_bind="ccs4")).splitlines()
    assert "    0 |#01.2.3. 4.5.6.7. 8.9.a.b. c.d.e.f. g.h.i.j. k.l.m.n. ....|" in lines
    assert "   52 |#op.q.r. s.t.u.v. w.x.y.z. A.B.C.D. E.F.G.H. I.J.K.L. ....|" in lines
    assert len(lines) < 40
    assert lines[-1] == "   23  46    5     0     hsn2      47  98    11    1     hsn6"


def test_a_map_in_cards_may_be_drawn_over_a_node_in_tiles() -> None:
    asked = BindingRequest(ranks_per_node=6, presets=AURORA_PRESETS, cpu_bind="composite")
    binding = bind(aurora(), asked)
    assert binding.device_unit == "card"
    assert draw_node(binding, aurora()) == draw_node(binding, in_unit(aurora(), "card"))
    assert "card 0-2" in draw_node(binding, aurora())


def test_gh200_has_a_line_of_72_cells_per_superchip() -> None:
    lines = drawn(gh200(), BindingRequest(ranks_per_node=4)).splitlines()
    assert "  216 |" + " ".join(["33333333"] * 9) + "|" in lines


def test_perlmutter_says_in_which_order_devices_are_seen() -> None:
    text = drawn(perlmutter(), BindingRequest(ranks_per_node=4, order="core"))
    assert text.endswith("every rank sees the devices in the order 3 2 1 0, so that rank i has number i")
    assert " NUMA 0  cores 0-15   |00000000 00000000|  GPU 3  hsn0" in text.splitlines()


def test_workstation_is_a_few_lines() -> None:
    assert drawn(workstation(), BindingRequest(ranks_per_node=2)) == page(
        """
        x86_64, 1 socket, 1 NUMA domain, 2 cores, 2 ranks
        no devices: usable cores in equal shares

         NUMA 0  cores 0-1  |01|

         0-1 local rank   one cell: one core

         rank  cpus  numa
            0  0     0
            1  1     0
        """
    )


def test_domains_of_several_sockets_stand_under_their_socket() -> None:
    lines = drawn(juwels(), BindingRequest(ranks_per_node=4, threads="first")).splitlines()
    assert lines.index("socket 0") < lines.index(" NUMA 1  cores 6-11   |111111|  GPU 1") < lines.index("socket 1")
    assert " domain not known: ib0..ib3" in lines


def test_cores_of_other_jobs_are_told_from_idle_ones() -> None:
    node = msgspec.structs.replace(lumi(), allowed=parse_cpulist("1-7,9-15"), devices=lumi().devices[4:6])
    lines = drawn(node, BindingRequest(ranks_per_node=1, devices="one")).splitlines()
    assert " NUMA 0  cores 0-15   |#0000000 #.......|  GCD 4 5  hsn0" in lines
    assert " NUMA 1  cores 16-31  |#------- #-------|           hsn1" in lines
    assert any("- not this job's" in line for line in lines)


def test_unbound_ranks_and_unknown_nodes_can_be_drawn() -> None:
    text = drawn(workstation(), BindingRequest(ranks_per_node=3))
    assert "not bound: 3 ranks, 2 usable cores" in text
    empty = drawn(Topology(arch="", cores=()), BindingRequest(ranks_per_node=1))
    assert empty.splitlines()[0] == "node, 1 rank"


def test_a_core_that_two_ranks_share_stands_out() -> None:
    text = drawn(workstation(), BindingRequest(ranks_per_node=2, cpu_bind="0:0-1"))
    assert "|!1|" in text
    assert "! shared by ranks" in text


def test_more_ranks_than_letters_still_fit() -> None:
    asked = BindingRequest(ranks_per_node=72, ranks_per_device=18)
    lines = drawn(gh200(), asked).splitlines()
    assert any("* a later rank" in line for line in lines)
    assert len(lines) < 60


def test_colour_changes_no_letter() -> None:
    asked = BindingRequest(ranks_per_node=12, presets=AURORA_PRESETS)
    plain = drawn(aurora(), asked)
    coloured = drawn(aurora(), asked, color=True)
    assert coloured != plain
    for code in {part.split("m")[0] for part in coloured.split("\x1b[")[1:]}:
        coloured = coloured.replace(f"\x1b[{code}m", "")
    assert coloured == plain


@each("width", [50, 72, 100, 200])
def test_lines_keep_within_the_width(width: int) -> None:
    for node, ranks in ((aurora(), 12), (lumi(), 8), (gh200(), 4), (juwels(), 4)):
        text = drawn(node, BindingRequest(ranks_per_node=ranks), width=width)
        assert max(len(line) for line in text.splitlines()) <= width
