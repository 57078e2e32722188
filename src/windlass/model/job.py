"""The schema of a job file: several programs in one job."""

from __future__ import annotations

from windlass.model.condition import Table
from windlass.model.request import ComponentEnd, Ready


class ComponentTable(Table, frozen=True, kw_only=True):
    """`[components.NAME]`: one program. Exactly one of `script` and `command` is given."""

    script: str = ""
    """Python script. It gets one rank per device, or `ranks_per_node`."""
    args: tuple[str, ...] = ()
    """Arguments of the script."""
    command: tuple[str, ...] = ()
    """Any other program with its arguments."""
    nodes: int | None = None
    """Number of nodes (default 1)."""
    ranks_per_node: int | None = None
    gpus_per_node: int | None = None
    cores_per_node: int | None = None
    """Share of each node. A component with neither of the two takes whole nodes. On a machine without a scheduler it
    takes an equal part of what is left."""
    needs: tuple[str, ...] = ()
    """Components that must be ready before this one starts."""
    ready: Ready | None = None
    """When this component is ready (default: as soon as it has started)."""
    port: int | None = None
    """The value of `{NAME.port}` (default: a free port)."""
    end: ComponentEnd = "wait"
    """What its end means. `wait`: the job waits for it. `job`: the job ends with it. `service`: it runs until the
    others have finished, and an earlier end is a failure. `ignore`: the job neither waits for it nor fails with it.
    A failure of the first three ends the job."""
    container: str | None = None
    bind: tuple[str, ...] = ()
    env: dict[str, str] = {}
    """Variables."""
    module: tuple[str, ...] = ()
    activate: str | None = None
    python: str | None = None
    restarts: int | None = None
    """How often this component alone is restarted after a failure."""
    hang_after: float | None = None
    options: tuple[str, ...] = ()
    """Other options of `windlass run`, as in `["--cpu-bind", "none"]`."""


class JobTable(Table, frozen=True, kw_only=True):
    """A job file. Options of the command line override its keys."""

    name: str | None = None
    """Name of the job (default: that of the file)."""
    site: str | None = None
    nodes: int | None = None
    """Number of nodes (default: as many as the components need)."""
    partition: str | None = None
    qos: str | None = None
    account: str | None = None
    time: str | None = None
    directive: tuple[str, ...] = ()
    components: dict[str, ComponentTable]
