"""The rules for a slow or broken run, shared by all commands, and the evidence that each rule needs.

A rule without its evidence reports nothing and is listed as not checked. Rules about steps (`step_rules`) use only
ranks with enough steps, and only the time in which they take steps. `node_rules` has the rules about memory, cores,
devices and files. `findings` has the rules for a running job. `thresholds` has the limits and their reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from windlass.diagnose.watch import node_rules, step_rules, thresholds
from windlass.diagnose.watch.figures import ENOUGH_STEPS, is_uneven, oversubscribed, pace, wait_share
from windlass.diagnose.watch.job import Job
from windlass.model.finding import Finding


class Rule(NamedTuple):
    """`lacks` returns why the rule cannot be checked, or an empty string."""

    kind: str
    lacks: Callable[[Job], str]
    judge: Callable[[Job], Finding | None]


class Checked(NamedTuple):
    findings: tuple[Finding, ...]
    not_checked: tuple[str, ...]
    """`straggler: all ranks share one node`, one entry for each rule without its evidence."""


def check(job: Job) -> Checked:
    """Apply every rule that has its evidence."""
    lacking = {rule.kind: why for rule in RULES if (why := rule.lacks(job))}
    found = [rule.judge(job) for rule in RULES if rule.kind not in lacking]
    return Checked(
        tuple(finding for finding in found if finding is not None),
        tuple(f"{kind}: {why}" for kind, why in lacking.items()),
    )


# Evidence that the rules need


def _no_steps(job: Job) -> str:
    most = max((rank.steps for rank in job.ranks), default=0)
    if not most:
        return "no step was seen"
    return "" if most >= ENOUGH_STEPS else f"fewer than {ENOUGH_STEPS} steps were seen"


def _no_comparison(job: Job) -> str:
    if len(job.nodes) < 2:
        return "all ranks share one node"
    if oversubscribed(job):
        return "a node has more ranks than cores"
    few = f"fewer than {thresholds.SLOW_SAMPLES} samples compare the ranks"
    return _no_steps(job) or ("" if job.compared >= thresholds.SLOW_SAMPLES else few)


def _no_network(job: Job) -> str:
    if is_uneven(job):
        return "ranks wait for slower ones"
    return _no_comparison(job) or _unmeasured("communication", [rank.comm_share for rank in job.ranks])


def _no_wait(job: Job) -> str:
    return _no_steps(job) or _unmeasured("waiting for data", [wait_share(job, rank) for rank in job.ranks])


def _no_phases(job: Job) -> str:
    return _no_steps(job) or _unmeasured("time between steps", [rank.phases_s for rank in job.ranks])


def _no_gil(job: Job) -> str:
    return _no_steps(job) or _unmeasured("Python's lock", [rank.gil_us for rank in job.ranks])


def _no_delay(job: Job) -> str:
    if oversubscribed(job):
        return "a node has more ranks than cores"
    return _no_steps(job) or _unmeasured("waiting for a core", [rank.run_delay for rank in job.ranks])


def _no_devices(job: Job) -> str:
    return "" if any(device.worked is not None for device in job.devices) else "no device was sampled during steps"


def _no_clocks(job: Job) -> str:
    known = any(device.throttled_share is not None for device in job.devices)
    return "" if known else "no device reported its clock during steps"


def _no_cores(job: Job) -> str:
    return "" if job.cores else "the cores of a node are not known"


def _no_binding(job: Job) -> str:
    return "" if job.about.cpus_per_rank else "ranks are not bound to cores"


def _no_start(job: Job) -> str:
    return "" if pace(job).startup_s is not None else "no first step was seen"


def _no_memory(job: Job) -> str:
    return _unmeasured("the memory of the nodes", [node.memory_limit_bytes for node in job.nodes])


def _nothing(_: Job) -> str:
    return ""


def _unmeasured(what: str, values: Sequence[object]) -> str:
    return "" if any(value is not None for value in values) else f"{what} was not measured"


RULES = (
    Rule("nan", _no_steps, step_rules.not_a_number),
    Rule("shared-file", _nothing, node_rules.shared_file),
    Rule("oversubscribed", _no_cores, node_rules.more_ranks_than_cores),
    Rule("memory-pressure", _no_memory, node_rules.memory_pressure),
    Rule("memory-growth", _no_steps, node_rules.memory_growth),
    Rule("input-bound", _no_wait, step_rules.input_bound),
    Rule("input-straggler", _no_wait, step_rules.input_straggler),
    Rule("straggler", _no_comparison, step_rules.straggler),
    Rule("noise", _no_comparison, step_rules.noise),
    Rule("profiled", _no_comparison, step_rules.profiled),
    Rule("gil-held", _no_gil, step_rules.gil_held),
    Rule("tcp-fallback", _nothing, step_rules.tcp_fallback),
    Rule("network-bound", _no_network, step_rules.network_bound),
    Rule("idle-devices", _no_devices, node_rules.idle_devices),
    Rule("throttled-devices", _no_clocks, node_rules.throttled_devices),
    Rule("busy-node", _no_delay, node_rules.busy_node),
    Rule("cpu-binding", _no_binding, node_rules.cpu_binding),
    Rule("slow-save", _no_phases, step_rules.slow_save),
    Rule("slow-evaluation", _no_phases, step_rules.slow_evaluation),
    Rule("pauses", _no_phases, step_rules.pauses),
    Rule("slow-start", _no_start, step_rules.slow_start),
    Rule("device-memory", _nothing, node_rules.device_memory),
)
