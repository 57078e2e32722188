"""Conditions are data: planning decides what it can, the compute node the rest, and people can read both."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from looping import each
from windlass.model.condition import ALWAYS, Facts, When, holds

_FACTS: dict[str, Any] = {"nodes": 4, "ranks_per_node": 8, "scheduler": "slurm", "launcher": "srun"}


@each(
    ("when", "facts", "expected"),
    [
        ({"nodes_min": 2}, {"nodes": 2}, True),
        ({"nodes_min": 2}, {"nodes": 1}, False),
        ({"nodes_max": 1}, {"nodes": 1}, True),
        ({"nodes_max": 1}, {"nodes": 2}, False),
        ({"ranks_per_node_min": 8}, {"ranks_per_node": 7}, False),
        ({"ranks_per_node_max": 8}, {"ranks_per_node": 9}, False),
        ({"container": True}, {}, False),
        ({"container": False}, {}, True),
        ({"container": True, "runtime": ("apptainer",)}, {"container": True, "runtime": "apptainer"}, True),
        ({"runtime": ("apptainer", "singularity")}, {"container": True, "runtime": "shifter"}, False),
        ({"scheduler": ("pbs",)}, {}, False),
        ({"launcher": ("srun", "flux")}, {}, True),
        ({"devices": "one"}, {"devices": "all"}, False),
        ({"device_unit": "tile"}, {"device_unit": "tile"}, True),
        ({"preset": ("cores12",)}, {}, False),
        ({"option": "fallback"}, {"options": frozenset({"fallback"})}, True),
        ({"option": "fallback"}, {}, False),
        ({"module": "frameworks"}, {"modules": ("frameworks/2025.1",)}, True),
        ({"module": "frame"}, {"modules": ("frameworks/2025.1",)}, False),
        ({"nodes_min": 2, "scheduler": ("pbs",)}, {"nodes": 4}, False),
    ],
)
def test_every_given_test_must_hold(when: dict[str, Any], facts: dict[str, Any], expected: bool) -> None:
    assert holds(When(**when), Facts(**{**_FACTS, **facts})) is expected


def test_an_empty_condition_always_holds() -> None:
    assert holds(ALWAYS, Facts(**_FACTS))
    assert ALWAYS.text() == "always"
    assert not ALWAYS.at_run_time


@each("test", [{"exists": "/opt/x"}, {"found": "libnccl-net.so"}])
def test_what_only_the_node_can_know_is_left_to_it(test: dict[str, str]) -> None:
    when = When(nodes_min=2, **test)
    assert when.at_run_time
    assert holds(when, Facts(**_FACTS))
    assert next(iter(test.values())) in when.text()


def test_every_field_of_a_condition_shows_in_its_text() -> None:
    values: dict[str, Any] = {"nodes_min": 3, "nodes_max": 9, "ranks_per_node_min": 2, "ranks_per_node_max": 4}
    values |= {"container": True, "runtime": ("a",), "scheduler": ("b",), "launcher": ("c",), "devices": "one"}
    values |= {"device_unit": "tile", "preset": ("d",), "option": "e", "module": "f", "exists": "/g", "found": "h"}
    silent = {"found_in"}
    assert set(values) | silent == {field.name for field in msgspec.structs.fields(When)}
    whole = When(**values).text()
    for name in values:
        without = {key: value for key, value in values.items() if key != name}
        assert When(**without).text() != whole, name


def test_an_unknown_test_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="nodes_minimum"):
        msgspec.json.decode(b'{"nodes_minimum": 2}', type=When)
