"""Node steps of Flux: which node a complaint of `flux exec` is about. The words are those of flux-core 0.88."""

from __future__ import annotations

from looping import each
from windlass.backends.launchers.base import NodeStepSpec
from windlass.backends.launchers.flux import FluxRun
from windlass.model.origin import argv_of

LOST = "flux-exec: Error: rank 3: sh: No route to host"


@each(("order", "place"), [("0-3", 3), ("3,1", 0), ("0,3", 1), ("0-2", None)])
def test_a_lost_broker_is_told_by_its_place_in_the_step(order: str, place: int | None) -> None:
    spec = NodeStepSpec(nodes=4, hosts=("d", "b"))
    argv = tuple(word.replace("{broker_order}", order) for word in argv_of(FluxRun().node_step(spec).arguments))
    assert FluxRun().lost_place(LOST, (*argv, "agent")) == place


@each("line", ["", "3: Killed", "[0-1]: Exit 1", "flux-exec: flux_reactor_run: No route to host", "Error: rank 3: x"])
def test_other_lines_are_about_no_node(line: str) -> None:
    argv = argv_of(FluxRun().node_step(NodeStepSpec(nodes=4)).arguments)
    assert FluxRun().lost_place(line, (*argv, "agent")) is None


def test_a_step_that_is_none_has_no_places() -> None:
    assert FluxRun().lost_place(LOST, ("flux", "exec", "true")) is None
