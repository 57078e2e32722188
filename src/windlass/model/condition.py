"""Conditions as data: "more than one node", "inside a container", "only if the plugin exists".

A condition is a set of tests that must all hold. `holds` decides the tests that can be decided during planning. The
tests that only the compute node can decide (`exists`, `found`) stay in the setting and become a test in the rank
script.

The module also defines `Table`, the base class of every table of a catalog file. Tables are frozen and refuse unknown
keys.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class When(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A set of tests that must all hold. An empty condition always holds."""

    nodes_min: int | None = None
    nodes_max: int | None = None
    ranks_per_node_min: int | None = None
    ranks_per_node_max: int | None = None
    container: bool | None = None
    runtime: tuple[str, ...] = ()
    scheduler: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    devices: Literal["all", "one"] | None = None
    device_unit: Literal["tile", "card"] | None = None
    preset: tuple[str, ...] = ()
    option: str | None = None
    """Holds only if the user requests it by name (`--with NAME`): for remedies and experiments."""
    module: str | None = None
    """Holds if the plan loads a module of this name (any version)."""
    exists: str | None = None
    """On the compute node: this path exists. `${NAME}` is expanded there."""
    found: str | None = None
    """On the compute node: a library of this name is in `LD_LIBRARY_PATH` or in `found_in`."""
    found_in: tuple[str, ...] = ()

    @property
    def at_run_time(self) -> bool:
        """True if the compute node makes the final decision."""
        return self.exists is not None or self.found is not None

    def text(self) -> str:
        """Return the condition as text for people."""
        parts: list[str] = []
        if self.nodes_min == 2 and self.nodes_max is None:
            parts.append("multi-node")
        elif self.nodes_min is not None:
            parts.append(f"{self.nodes_min} nodes or more")
        if self.nodes_max == 1:
            parts.append("single node")
        elif self.nodes_max is not None:
            parts.append(f"at most {self.nodes_max} nodes")
        if self.ranks_per_node_min is not None:
            parts.append(f"{self.ranks_per_node_min} ranks per node or more")
        if self.ranks_per_node_max is not None:
            parts.append(f"at most {self.ranks_per_node_max} ranks per node")
        if self.container is not None:
            parts.append("in a container" if self.container else "without a container")
        for label, names in (
            ("runtime", self.runtime),
            ("scheduler", self.scheduler),
            ("launcher", self.launcher),
            ("preset", self.preset),
        ):
            if names:
                parts.append(f"{label} {' or '.join(names)}")
        if self.devices is not None:
            parts.append("every rank sees all devices" if self.devices == "all" else "one device per rank")
        if self.device_unit is not None:
            parts.append(f"a device is a {self.device_unit}")
        if self.option is not None:
            parts.append(f"requested (--with {self.option})")
        if self.module is not None:
            parts.append(f"module {self.module}")
        if self.exists is not None:
            parts.append(f"{self.exists} exists on the node")
        if self.found is not None:
            parts.append(f"{self.found} found on the node")
        return ", ".join(parts) or "always"


ALWAYS = When()


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that planning uses to decide a condition."""

    nodes: int
    ranks_per_node: int
    scheduler: str
    launcher: str
    container: bool = False
    runtime: str = "none"
    devices: Literal["all", "one"] = "all"
    device_unit: Literal["tile", "card"] | None = None
    preset: str | None = None
    options: frozenset[str] = frozenset()
    modules: tuple[str, ...] = ()


def holds(when: When, facts: Facts) -> bool:
    """Return whether every test that planning can decide holds. Tests of the compute node are ignored here."""
    tests = (
        when.nodes_min is None or facts.nodes >= when.nodes_min,
        when.nodes_max is None or facts.nodes <= when.nodes_max,
        when.ranks_per_node_min is None or facts.ranks_per_node >= when.ranks_per_node_min,
        when.ranks_per_node_max is None or facts.ranks_per_node <= when.ranks_per_node_max,
        when.container is None or facts.container == when.container,
        not when.runtime or facts.runtime in when.runtime,
        not when.scheduler or facts.scheduler in when.scheduler,
        not when.launcher or facts.launcher in when.launcher,
        when.devices is None or facts.devices == when.devices,
        when.device_unit is None or facts.device_unit == when.device_unit,
        not when.preset or facts.preset in when.preset,
        when.option is None or when.option in facts.options,
        when.module is None or any(m.split("/", 1)[0] == when.module for m in facts.modules),
    )
    return all(tests)


class Table(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A TOML table that refuses unknown keys."""
