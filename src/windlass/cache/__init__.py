"""The cooperative cache: N nodes read an environment from a shared file system, which sees the work of about one.

`plan` decides, `service` acts on a node, `traces` keeps what was recorded, `bundle` packs the code for the nodes;
`node/` is what runs there. The cache knows hosts and paths, nothing of schedulers.
"""

from windlass.cache.bundle import write_bundle
from windlass.cache.node.config import NodeConfig
from windlass.cache.plan import CacheOptions, plan_cache, view_path, write_key, write_plan
from windlass.cache.service import Totals, node_status, start_node, stop_job, stop_node, sweep, totals, wait_ready
from windlass.cache.traces import (
    TraceSummary,
    drop_trace,
    environment_identity,
    list_traces,
    show_trace,
    trace_path,
)

__all__ = [
    "CacheOptions",
    "NodeConfig",
    "Totals",
    "TraceSummary",
    "drop_trace",
    "environment_identity",
    "list_traces",
    "node_status",
    "plan_cache",
    "show_trace",
    "start_node",
    "stop_job",
    "stop_node",
    "sweep",
    "totals",
    "trace_path",
    "view_path",
    "wait_ready",
    "write_bundle",
    "write_key",
    "write_plan",
]
