"""Flux's `flux run` in the instance of a batch job. Binds to CPU lists and labels lines.

It does not use exit-on-error to end the other ranks when a rank fails. exit-on-error loses the last output of that
rank, and checks only the first rank that ends.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator

from windlass.backends.launchers.base import (
    PLACE_VARIABLE,
    RUN_MARK,
    Launcher,
    LaunchSpec,
    NodeStep,
    NodeStepSpec,
    RankVariables,
    own_message,
    parse_label,
    signal_number,
)
from windlass.base.notation.counts import counted, format_cpulist
from windlass.model.origin import Argument, with_site
from windlass.model.record import RankFailure
from windlass.model.site import LauncherSpec

_TASK = re.compile(
    r"task rank (?P<rank>\d{1,9}) on host (?P<host>\S{1,255}) (?:failed|exited) \((?P<how>[^)]{0,100})\)"
)
_START = re.compile(r"task (?P<rank>\d{1,9}) \(host (?P<host>[^)]{1,255})\): (?P<said>start failed: .*)")
_SHELL = re.compile(r"(?P<said>shell rank \d{1,9} \(on (?P<host>[^)]{1,255})\): .*|node failure on (?P<node>\S+).*)")
_EXCEPTION = re.compile(r"job\.exception \S+ type=(?P<type>\S+) severity=0 ?(?P<note>.*)")
_CODE = re.compile(r"\AExit (\d{1,9})\Z")
_STAMP = re.compile(r"\A\d+\.\d+s: (?:flux-shell\[|job\.)|\Aflux-(?:job|shell|run)\b")
_EXEC_LOST = re.compile(r"\Aflux-exec: Error: rank (\d{1,9}): ")
_STEP = "windlass-step"
_NOT_FOUND = 127
# `flux job attach`, which waits below `flux run`, forwards signals only since 0.73. A pending job has no tasks yet.
_SIGNAL_STEP = (
    'ids=$(flux jobs --no-header --filter=pending,running --format="{id}" --name="$1"); '
    'for id in $ids; do flux job kill --signal="$2" "$id" || [ "$2" != SIGTERM ] || flux cancel "$id"; done; '
    '[ -n "$ids" ] || [ "$2" != SIGTERM ] || kill -TERM "$3"'
)
# A task of `flux exec` knows only the rank of its broker. `$1` lists the brokers of the step in the order of its hosts.
_FIND_PLACE = (
    "r=$(flux getattr rank) || exit 3; n=0; IFS=,; "
    'for p in $1; do a=${p%-*} b=${p#*-}; [ "$r" -ge "$a" ] && [ "$r" -le "$b" ] && { n=$((n + r - a)); break; }; '
    "n=$((n + b - a + 1)); done; unset IFS; shift; "
    f'{PLACE_VARIABLE}=$n; export {PLACE_VARIABLE}; exec "$@"'
)


class FluxRun(Launcher):
    name = "flux"
    executable = "flux"
    variables = RankVariables(
        rank=("FLUX_TASK_RANK",),
        local_rank=("FLUX_TASK_LOCAL_ID",),
        world_size=("FLUX_JOB_SIZE",),
    )
    output = "stream"
    binds_lists = True
    names_failed_rank = False
    ends_others = False
    sends_alarm = True
    glues_last_lines = True
    unwatched = ("-o", "exit-on-error")
    reaches_groups = True

    def arguments(self, spec: LaunchSpec, site: LauncherSpec) -> tuple[Argument, ...]:
        whole = spec.cores_per_node is None
        own = tuple(argument for argument in site.arguments if whole or argument.words != ("--exclusive",))
        return with_site(_defaults(spec, site.executable or self.executable), own)

    def node_step(self, spec: NodeStepSpec) -> NodeStep:
        """`flux exec` on the brokers of the nodes.

        A `flux run` would wait for ever, because the ranks hold their nodes exclusively. Tasks have no standard input.
        SIGTERM ends them, and flux exec forwards it."""
        executable = spec.executable or self.executable
        return NodeStep(
            arguments=tuple(_node_step(spec, executable)),
            place=(PLACE_VARIABLE,),
            lookup_argv=(executable, "getattr", "hostlist") if spec.hosts else (),
            lookup_hosts=spec.hosts,
        )

    def parse_line(self, line: str) -> tuple[int | None, str]:
        """`3: text`. Lines of the shells and of flux-job start with a time or their name."""
        return own_message(line) if _STAMP.match(line) else parse_label(line)

    def signal_argv(self, step_name: str, sig: signal.Signals, pid: int) -> tuple[str, ...] | None:
        return ("sh", "-c", _SIGNAL_STEP, "sh", step_name, sig.name, str(pid))

    def lost_place(self, message: str, argv: tuple[str, ...]) -> int | None:
        """Parse `flux-exec: Error: rank 3: sh: No route to host`, which appears as soon as a broker is lost.

        The number is the rank of the broker."""
        found = _EXEC_LOST.match(message)
        if found is None or _STEP not in argv[:-1]:
            return None
        spans = (piece.partition("-") for piece in argv[argv.index(_STEP) + 1].split(","))
        order = [rank for low, _, high in spans for rank in range(int(low), int(high or low) + 1)]
        return order.index(int(found[1])) if int(found[1]) in order else None

    def parse_failure(self, messages: Iterable[str], exit_code: int) -> RankFailure | None:
        """The task that exit-on-error names, or otherwise the first exception.

        An exception is a lost shell or node, a time limit, or a request that cannot be met."""
        exception: RankFailure | None = None
        for message in messages:
            rank, text = self.parse_line(message)
            if rank is not None:
                continue
            task = _task_failure(text)
            if task:
                return task
            exception = exception or _exception(text)
        return exception


def _defaults(spec: LaunchSpec, executable: str) -> Iterator[Argument]:
    yield Argument(words=(executable,), because="the site's launcher")
    yield Argument(words=("run",), because="start ranks in this job's own Flux instance")
    yield Argument(words=(f"--nodes={spec.nodes}",), because=counted(spec.nodes, "node"))
    if spec.overcommit:
        yield Argument(
            words=(f"--tasks-per-node={spec.ranks_per_node}",),
            because="more ranks than cores on a node: some share one",
        )
    else:
        yield Argument(
            words=(f"--ntasks={spec.ranks}",), because=f"{spec.ranks_per_node} ranks on each node, in blocks"
        )
    if spec.cores_per_node is None:
        yield Argument(words=("--exclusive",), because="whole nodes: all cores and devices, not one core per rank")
    elif not spec.overcommit:
        each = max(1, spec.cores_per_node // spec.ranks_per_node)
        yield Argument(words=(f"--cores-per-task={each}",), because="the share of the node, next to other components")
    if spec.host_list is not None:
        yield Argument(words=(f"--requires=host:{spec.host_list}",), because="a part of the allocation")
    yield from _binding(spec)
    yield from _devices(spec)
    yield Argument(
        words=("-o", "exit-timeout=none"), because="Flux would end a healthy run 30 s after its first rank has finished"
    )
    if spec.time_limit is not None:
        yield Argument(words=(f"--time-limit={spec.time_limit}",), because="time limit of this step")
    yield Argument(
        words=(f"--job-name={spec.step_name}.{RUN_MARK}",),
        because="so that windlass can find and end exactly this step",
    )
    yield Argument(words=("--label-io",), because="every line begins with its rank")
    yield Argument(
        words=("-o", "output.stderr.buffer.type=line"),
        because="Flux would label every piece of a line that arrives on standard error",
    )


def _node_step(spec: NodeStepSpec, executable: str) -> Iterator[Argument]:
    first = f"0-{spec.nodes - 1}" if spec.nodes > 1 else "0"
    ranks, order = ("{broker_ranks}", "{broker_order}") if spec.hosts else (first, first)
    yield Argument(words=("stdbuf", "-oL"), because="flux exec buffers lines if its output is not a terminal")
    yield Argument(words=(executable, "exec"), because="runs next to the ranks, which have their nodes exclusively")
    yield Argument(words=("--noinput",), because="its tasks need no standard input")
    yield Argument(words=(f"--rank={ranks}",), because="one task on the broker of each node")
    yield Argument(words=("sh", "-c", _FIND_PLACE, _STEP, order), because="each task reads its index")


def _binding(spec: LaunchSpec) -> Iterator[Argument]:
    if spec.cpu_lists:
        lists = ";".join(format_cpulist(cpus) for cpus in spec.cpu_lists)
        yield Argument(
            words=("-o", f"cpu-affinity=map:{lists}"), because="one list of CPUs per local rank, from the binding map"
        )
    elif spec.unbound:
        yield Argument(words=("-o", "cpu-affinity=off"), because="Flux binds nothing")
    elif spec.cpus_per_rank is not None:
        yield Argument(words=("-o", "cpu-affinity=per-task"), because="each rank gets its share of the cores")
    if spec.cpu_lists or spec.unbound:
        yield Argument(
            words=("-o", "mpibind=off"),
            because="mpibind, at sites that have it, would override this binding; other sites ignore the option",
        )


def _devices(spec: LaunchSpec) -> Iterator[Argument]:
    if not spec.gpus_per_node or spec.gpu_request == "none":
        return
    if spec.gpus_per_node % spec.ranks_per_node == 0 and not spec.overcommit:
        yield Argument(
            words=(f"--gpus-per-task={spec.gpus_per_node // spec.ranks_per_node}",),
            because=f"{spec.gpus_per_node} devices per node",
        )
    if spec.devices == "one" and spec.device_by_launcher:
        yield Argument(words=("-o", "gpu-affinity=per-task"), because="Flux gives each rank its own device")
    else:
        yield Argument(
            words=("-o", "gpu-affinity=off"),
            because="every rank sees its node's devices: hiding the others breaks peer-to-peer copies",
        )


def _task_failure(text: str) -> RankFailure | None:
    started = _START.search(text)
    if started:
        return RankFailure(
            rank=int(started.group("rank")), host=started.group("host"), code=_NOT_FOUND, said=started.group("said")
        )
    task = _TASK.search(text)
    if not task:
        return None
    code = _CODE.match(task.group("how"))
    return RankFailure(
        rank=int(task.group("rank")),
        host=task.group("host"),
        code=int(code.group(1)) if code else None,
        signal=None if code else signal_number(task.group("how")),
        said=task.group("how"),
    )


def _exception(text: str) -> RankFailure | None:
    shell = _SHELL.search(text)
    if shell:
        return RankFailure(rank=None, host=shell.group("host") or shell.group("node"), said=shell.group("said"))
    raised = _EXCEPTION.search(text)
    if raised:
        return RankFailure(rank=None, said=f"{raised.group('type')}: {raised.group('note')}".strip())
    return None
