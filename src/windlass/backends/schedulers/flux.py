"""Flux: flux batch, flux jobs, flux cancel. Behaviour checked against the real output of flux-core 0.88.

A batch job is a separate Flux instance, in which `flux run` starts the ranks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from windlass.backends.schedulers.base import (
    JobSpec,
    JobState,
    JobStatus,
    NodeGroup,
    Scheduler,
    offers_of,
    one_line,
)
from windlass.backends.schedulers.queue_limits import parse_flux_queues
from windlass.backends.schedulers.walltime import parse_walltime, unit_text
from windlass.base.notation.hostlist import expand_hostlist, fold_hostlist
from windlass.errors import UsageError
from windlass.model.origin import Argument, with_site
from windlass.model.request import Allocation, PartitionOffer
from windlass.model.site import QueueSpec, SchedulerSpec

_PLAIN = re.compile(r"[A-Za-z0-9_./=:,@%+\-]+\Z")
_RESOURCES = re.compile(r"(?:free|allocated)\s+(\d+)\s+\d+\s+(\d+)\b")
_STATES = {
    "NEW": JobState.QUEUED,
    "DEPEND": JobState.QUEUED,
    "PRIORITY": JobState.QUEUED,
    "SCHED": JobState.QUEUED,
    "RUN": JobState.RUNNING,
    "CLEANUP": JobState.ENDING,
}
_RESULTS = {
    "COMPLETED": JobState.DONE,
    "FAILED": JobState.FAILED,
    "CANCELED": JobState.CANCELLED,
    "TIMEOUT": JobState.TIMEOUT,
}
_ALLOCATION = (
    'flux hostlist local && flux resource list --no-header --format="{state} {nnodes} {ncores} {ngpus}" && '
    'echo "now $(date +%s) left $(flux job timeleft 2>/dev/null)"'
)
_LEFT = re.compile(r"now (\d+) left (\d+)")
_LOST_NODE, _PROLOG = re.compile(r"node failure on |lost contact with "), re.compile(r"(?:job )?prolog")
_NO_LIMIT_S = 2**32 - 1
# SIGKILL first, because a cancel alone gives the tasks another five seconds.
_KILL_STEP = (
    'for id in $(flux jobs --no-header --format="{id}" --name="$1"); do '
    'flux job kill --signal=SIGKILL "$id"; flux cancel "$id"; done'
)


class Flux(Scheduler):
    name = "flux"
    directive = "# flux:"
    job_id_variable = "FLUX_ENCLOSING_ID"
    first_lines = (
        "# Flux before 0.71 does not set this.",
        'export FLUX_ENCLOSING_ID="${FLUX_ENCLOSING_ID:-$(flux getattr jobid 2>/dev/null)}"',
    )
    host_lines = "flux hostlist --expand local | tr ' ' '\\n' | awk 'NF && !seen[$1]++'"
    submit_command = ("flux", "batch")
    job_id = re.compile(r"([ƒf][1-9A-HJ-NP-Za-km-z]+|\d+)")  # `f2E1Wbrw` if the locale has no ƒ
    interactive_program = ("flux", "alloc")
    batch_options = frozenset({"--output", "--error"})
    nests = True

    def in_allocation(self, environ: Mapping[str, str]) -> bool:
        return bool(environ.get("FLUX_URI"))

    def allocation_argv(self, environ: Mapping[str, str]) -> tuple[str, ...] | None:
        return ("sh", "-c", _ALLOCATION)

    def parse_allocation(
        self, environ: Mapping[str, str], read_text: Callable[[str], str], output: str | None = None
    ) -> Allocation:
        """Parse `flux hostlist local` (first line), `flux resource list` and `flux job timeleft`."""
        lines = (output or "").strip().splitlines()
        if not lines:
            raise UsageError("flux hostlist printed no hosts", hint="check that FLUX_URI belongs to a running instance")
        try:
            hosts = tuple(dict.fromkeys(expand_hostlist(lines[0].strip())))
        except UsageError as error:
            raise UsageError(f"flux hostlist: {error.message}", hint=error.hint) from error
        found = [match for match in (_RESOURCES.match(line.strip()) for line in lines[1:]) if match]
        nodes, gpus = sum(int(match[1]) for match in found), sum(int(match[2]) for match in found)
        return Allocation(
            scheduler=self.name,
            job_id=environ.get("FLUX_JOB_ID") or environ.get("FLUX_ENCLOSING_ID") or "",
            hosts=hosts,
            gpus_per_node=gpus // nodes if gpus and nodes else None,
            end_time_s=_end_time_s(lines[-1]),
        )

    def directives(self, spec: JobSpec, site: SchedulerSpec) -> tuple[Argument, ...]:
        return with_site(_directives(spec), site.directives)

    def path_word(self, path: str) -> str:
        if "{{" in path:
            raise UsageError(
                f"Flux cannot write a log to {path!r}: it replaces text in double braces",
                hint="choose another folder with --run-dir",
            )
        return path

    def outside_argv(self, argv: tuple[str, ...], environ: Mapping[str, str]) -> tuple[str, ...]:
        """A batch job is a separate instance that ends with the job. The instance does not list the job itself."""
        inside = environ.get("FLUX_ENCLOSING_ID") and not environ.get("FLUX_JOB_ID")
        return (argv[0], "--parent", *argv[1:]) if inside else argv

    def directive_line(self, argument: Argument) -> str:
        """Quote in the form that Flux's lexer accepts.

        The lexer treats three quotes in a row as one, so it refuses the shell's form of a single quote. In double
        quotes only two characters are escaped."""
        return f"{self.directive} {' '.join(map(_directive_word, argument.words))}"

    def status_argv(self, job_id: str) -> tuple[str, ...]:
        return ("flux", "jobs", "--json", job_id)

    def parse_status(self, output: str, code: int, job_id: str) -> JobStatus:
        """Parse `flux jobs --json`, which prints one object for one job and a list in "jobs" for several."""
        job = _find_job(output)
        if job is None:
            lines = [line.strip() for line in output.splitlines() if line.strip()]
            return JobStatus(state=JobState.UNKNOWN, reason=lines[-1] if lines else "Flux has no such job")
        exception = job.get("exception")
        note = str(exception.get("note") or "") if isinstance(exception, dict) else ""
        # Flux accepts a request that no node can satisfy. The job then fails at once without a run.
        never = isinstance(exception, dict) and exception.get("type") == "alloc" and "t_run" not in job
        if job.get("state") == "INACTIVE":
            state = _RESULTS.get(str(job.get("result")), JobState.UNKNOWN)
            ended = _exit_code(job.get("returncode"))
            kind = exception.get("type") if isinstance(exception, dict) else None
            return JobStatus(
                state=state,
                exit_code=ended,
                reason=note,
                never=never,
                preempted=kind == "preempt",
                fault=_fault(exception),
            )
        state = _STATES.get(str(job.get("state")), JobState.UNKNOWN)
        if state is JobState.QUEUED and job.get("urgency") == 0:
            state = JobState.HELD
        return JobStatus(state=state, reason=note)

    def cancel_argv(self, job_id: str) -> tuple[str, ...]:
        return ("flux", "cancel", job_id)

    def offers_argv(self) -> tuple[str, ...]:
        columns = "{queue}|{nnodes}|{ncores}|{ngpus}|{propertiesx}"
        return ("flux", "resource", "list", "--states=free,down,allocated", "--no-header", f"--format={columns}")

    def parse_offers(self, output: str) -> tuple[PartitionOffer, ...]:
        return offers_of(_node_groups(output))

    def accounts_argv(self, user: str) -> tuple[str, ...]:
        return ("flux", "account", "view-user", user, "--list-banks")

    def parse_accounts(self, output: str) -> tuple[str, ...]:
        return tuple(output.split())

    def busy_argv(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        return ("flux", "jobs", "--no-header", "--filter=running", "--format={id} {nodelist}")

    def parse_busy(self, output: str, environ: Mapping[str, str]) -> tuple[str, ...]:
        own = environ.get("FLUX_JOB_ID", "")[1:]  # `ƒ2E1W`, or `f2E1W` if the locale has no ƒ
        found = (line.split() for line in output.splitlines())
        held = (fields[1] for fields in found if len(fields) == 2 and fields[0][1:] != own)
        return tuple(host for hosts in held for host in expand_hostlist(hosts))

    def queues_argv(self) -> tuple[tuple[str, ...], ...]:
        # In `flux alloc` the queues are those of the enclosing instance. Outside, --parent has no effect.
        columns = "{queuem}|{limits.timelimit}|{limits.min.nnodes}|{limits.max.nnodes}"
        return (("flux", "--parent", "queue", "list", "--no-header", f"--format={columns}"),)

    def parse_queues(self, output: str) -> tuple[QueueSpec, ...]:
        return parse_flux_queues(output)

    def kill_step_argv(self, environ: Mapping[str, str], step_name: str) -> tuple[str, ...] | None:
        return ("sh", "-c", _KILL_STEP, "sh", step_name) if environ.get("FLUX_URI") else None


def _end_time_s(line: str) -> float | None:
    found = _LEFT.match(line.strip())
    if found is None or int(found[2]) >= _NO_LIMIT_S:
        return None
    return float(int(found[1]) + int(found[2]))


def _node_groups(output: str) -> Iterator[NodeGroup]:
    """Parse `flux resource list`. Each line contains the sums of the nodes with the same queues and properties."""
    for line in output.splitlines():
        queues, *counts = line.strip().split("|")[:4]
        if len(counts) == 3 and all(count.isdecimal() for count in counts) and int(counts[0]):
            nodes, cores, gpus = (int(count) for count in counts)
            each = (("", gpus // nodes),) if gpus // nodes else ()
            for queue in queues.split(","):
                yield NodeGroup(partition=queue, nodes=nodes, cpus=cores // nodes, gpus=each, default=not queue)


def _directives(spec: JobSpec) -> Iterator[Argument]:
    def line(word: str, because: str) -> Argument:
        return Argument(words=(one_line(word, "a Flux directive"),), because=because)

    if spec.qos:
        raise UsageError("Flux has no quality of service", hint="give a queue, or use --directive")
    yield line(f"--job-name={one_line(spec.name, 'the name of a job')}", "the name in the queue")
    yield line(f"--nodes={spec.nodes}", "whole nodes, with all their cores and devices")
    yield line("--exclusive", "no other jobs on these nodes")
    if spec.time:
        yield line(f"--time-limit={unit_text(parse_walltime(spec.time))}", "time limit of the job")
    if spec.partition:
        yield line(f"--queue={spec.partition}", "where to run")
    if spec.account:
        yield line(f"--bank={spec.account}", "who pays")
    if spec.output:
        yield line(f"--output={spec.output}", "output of the batch script itself")
    if spec.exclude_hosts:
        yield line(f"--requires=-host:{fold_hostlist(spec.exclude_hosts)}", "nodes known to be bad")


def _directive_word(word: str) -> str:
    if _PLAIN.match(word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _find_job(output: str) -> Mapping[str, Any] | None:
    start, end = output.find("{"), output.rfind("}")
    try:
        answer = json.loads(output[start : end + 1])
    except ValueError:
        return None
    if isinstance(answer, dict) and isinstance(answer.get("jobs"), list):
        answer = answer["jobs"][0] if answer["jobs"] else None
    return answer if isinstance(answer, dict) and "state" in answer else None


def _fault(exception: object) -> Literal["", "node", "memory", "prologue"]:
    if not isinstance(exception, dict):
        return ""
    if exception.get("type") in {"prolog", "perilog", "job-prolog"} or _PROLOG.match(str(exception.get("note"))):
        return "prologue"
    return "node" if _LOST_NODE.match(str(exception.get("note"))) else ""


def _exit_code(code: object) -> int | None:
    """A negative code is a signal to the job's shell (-9), or -128 for a job that never ran."""
    if not isinstance(code, int) or code == -128:
        return None
    return 128 - code if code < 0 else code
