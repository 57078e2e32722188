"""The picture of a node shows what the binding says."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from planning import plan_for
from windlass.model.plan import Binding
from windlass.model.topology import Topology
from windlass.sites.topology.picture import node_picture

SVG = "{http://www.w3.org/2000/svg}"


def said(picture: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(picture).iter(f"{SVG}title")]


def test_cores_and_devices_say_their_rank() -> None:
    plan, _ = plan_for("lumi", nodes=2)
    titles = said(node_picture(plan.binding, plan.topology, "LUMI <G>"))
    assert "core 49 (CPUs 49,113): local rank 0" in titles
    assert "core 48 (CPUs 48,112): reserved by the system" in titles
    assert "GCD 4: local rank 4" in titles


def test_a_title_is_text_and_not_markup() -> None:
    plan, _ = plan_for("lumi")
    picture = node_picture(plan.binding, plan.topology, '<script>&"')
    assert next(ET.fromstring(picture).iter(f"{SVG}text")).text == '<script>&"'


def test_ranks_that_share_a_core_are_shown_as_an_alarm() -> None:
    plan, _ = plan_for("generic-slurm", ranks_per_node=2, cpu_bind="0-1:1-2")
    assert "core 1 (CPUs 1): shared by ranks" in said(node_picture(plan.binding, plan.topology, "shared"))


def test_cards_are_counted_where_ranks_use_cards() -> None:
    plan, _ = plan_for("aurora", device_unit="card")
    titles = said(node_picture(plan.binding, plan.topology, "cards"))
    assert sum(title.startswith("card ") for title in titles) == 6


def test_a_node_that_nobody_described_has_no_picture() -> None:
    assert node_picture(Binding(ranks=(), because=""), Topology(arch="", cores=()), "nothing") == ""
