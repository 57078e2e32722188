"""PBS Pro and OpenPBS: qsub, qstat, qdel. Behaviour checked against the real output of OpenPBS 23.06."""

from __future__ import annotations

import json
import re
import time
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
from windlass.backends.schedulers.queue_limits import parse_pbs_queues
from windlass.backends.schedulers.walltime import clock_text, parse_walltime
from windlass.base.notation.counts import counted
from windlass.errors import UsageError, os_errors
from windlass.model.origin import Argument, with_site
from windlass.model.request import Allocation, PartitionOffer
from windlass.model.site import QueueSpec, SchedulerSpec

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]*\Z")
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./+=@%~\-]+\Z")
_LONGEST_NAME = 230
_STATES = {
    "B": JobState.RUNNING,
    "E": JobState.ENDING,
    "H": JobState.HELD,
    "Q": JobState.QUEUED,
    "R": JobState.RUNNING,
    "S": JobState.HELD,
    "T": JobState.QUEUED,
    "U": JobState.RUNNING,
    "W": JobState.QUEUED,
}
_FINISHED = ("F", "X")
_DELETED, _FAILED = 91, 93
_SUSPENDED_BY_SCHEDULER = 45
"""How PBS preempts by default. A job that an operator suspended has substate 43."""
_WALLTIME = -29
# JOB_EXEC_* of PBS's job.h: a failed prologue or a failed hook before the job, memory limits, a node that did not join.
_FAULTS: dict[int, Literal["node", "memory", "prologue"]] = {
    **dict.fromkeys((-1, -2, -3, -16, -17, -18, -19, -22), "prologue"),
    **dict.fromkeys((-26, -27), "memory"),
    **dict.fromkeys((-20, -30), "node"),
}
_NO_SUCH_JOB = re.compile(r"^qstat: (?:Unknown Job Id|\S+ Job has finished)", re.MULTILINE)

# Ask without -x first. If the server keeps no history (PBS's default), `qstat -x` does not list even running jobs. The
# history is read only for a job that is not live. Without a history the first answer counts.
_STATUS = """
w_said=$(qstat -f -F json "$1" 2>&1); w_code=$?
if [ $w_code -ne 0 ]; then
  w_past=$(qstat -x -f -F json "$1" 2>/dev/null) || w_past=
  case $w_past in *'"Jobs"'*) w_said=$w_past; w_code=0 ;; esac
fi
printf '%s\\n' "$w_said"
exit $w_code
"""

# Prints nothing if the server does not answer in time. The job then runs, and only its end time is unknown.
_ALLOCATION = 'timeout 10 qstat -f -F json "$1" 2>/dev/null || :'


class Pbs(Scheduler):
    name = "pbs"
    directive = "#PBS"
    job_id_variable = "PBS_JOBID"
    host_lines = "awk 'NF && !seen[$1]++ { print $1 }' \"$PBS_NODEFILE\""
    submit_command = ("qsub",)
    job_id = re.compile(r"(\d+(?:\[\])?(?:\.[\w.\-]+)?)")
    interactive_program = ("qsub", "-I")
    batch_options = frozenset({"-j", "-k", "-o", "-e"})
    can_exclude = False
    carries_environment = False  # -V damages values: see the captured output

    def in_allocation(self, environ: Mapping[str, str]) -> bool:
        return bool(environ.get("PBS_JOBID"))

    def allocation_argv(self, environ: Mapping[str, str]) -> tuple[str, ...] | None:
        return ("sh", "-c", _ALLOCATION, "sh", environ.get("PBS_JOBID", ""))

    def program_folder(self, environ: Mapping[str, str], read_text: Callable[[str], str]) -> str | None:
        """`bin` of the installation that PBS's configuration names. The default is /opt/pbs."""
        try:
            text = read_text(environ.get("PBS_CONF_FILE") or "/etc/pbs.conf")
        except (OSError, UsageError):
            text = ""
        named = re.findall(r"^[ \t]*PBS_EXEC=[\"']?(/[^\s\"']*)", text, re.MULTILINE)
        return f"{named[-1] if named else '/opt/pbs'}/bin"

    def parse_allocation(
        self, environ: Mapping[str, str], read_text: Callable[[str], str], output: str | None = None
    ) -> Allocation:
        """Parse the node file, and take the end of the job from `qstat -f` if it answered.

        The file lists a host once per requested rank (mpiprocs) or once per chunk of the host. So repeated lines are
        not an error, and the order is kept. The allocation contains no number of CPUs. Without cgroups PBS counts CPUs
        but does not bind, so only the CPU mask on the node is correct."""
        path = environ.get("PBS_NODEFILE", "")
        if not path:
            raise UsageError("PBS_NODEFILE is not set although PBS_JOBID is", hint="run inside the job's own shell")
        hint = "run this in a shell inside the job: PBS_NODEFILE is a file on the first node"
        with os_errors(f"read the node file {path}", hint=hint, kind=UsageError):
            text = read_text(path)
        counts = _parse_nodefile(text, path)
        each = min(counts.values())
        job_id = environ.get("PBS_JOBID", "")
        return Allocation(
            scheduler=self.name,
            job_id=job_id,
            hosts=tuple(counts),
            tasks_per_node=each if max(counts.values()) > 1 else None,
            end_time_s=_end_time_s(_find_job(output or "", job_id) or {}),
            partition=environ.get("PBS_QUEUE") or environ.get("PBS_O_QUEUE"),
            account=environ.get("PBS_ACCOUNT"),
        )

    def directives(self, spec: JobSpec, site: SchedulerSpec) -> tuple[Argument, ...]:
        own = tuple(a for a in site.directives if not (spec.gpu_chunks and a.key == "-l place"))
        return with_site(_directives(spec, site), own)

    def path_word(self, path: str) -> str:
        if not _PLAIN_PATH.match(path):
            raise UsageError(
                f"PBS cannot write a log to {path!r}: it interprets colons, commas, quotes and spaces",
                hint="choose a folder with a plain name with --run-dir",
            )
        return path

    def interactive_command(self, command: tuple[str, ...]) -> tuple[str, ...]:
        if command:
            raise UsageError(
                f"qsub -I gives a shell on the first node, it does not run {command[0]}",
                hint="type the command in that shell, or use `windlass submit`",
            )
        return ()

    def status_argv(self, job_id: str) -> tuple[str, ...]:
        return ("sh", "-c", _STATUS, "sh", job_id)

    def parse_status(self, output: str, code: int, job_id: str) -> JobStatus:
        """Parse `qstat -f -F json` of a live job, or with -x of a finished job.

        A server without a history answers -x with code 0 and without a job. A server that cannot answer does the same,
        so this answer does not describe the job."""
        job = _find_job(output, job_id)
        if job is None:
            last = [line.strip() for line in output.splitlines() if line.strip().startswith("qstat:")]
            gone = _NO_SUCH_JOB.search(output) is not None
            return JobStatus(state=JobState.UNKNOWN, reason=last[-1] if last else "PBS does not answer", gone=gone)
        comment = str(job.get("comment") or "")
        letter = str(job.get("job_state") or "")
        if letter in _FINISHED:
            return _ended(job, comment)
        never = letter == "Q" and comment.startswith("Can Never Run")
        preempted = letter == "S" and job.get("substate") == _SUSPENDED_BY_SCHEDULER
        state = _STATES.get(letter, JobState.UNKNOWN)
        return JobStatus(state=state, reason=comment, never=never, preempted=preempted)

    def cancel_argv(self, job_id: str) -> tuple[str, ...]:
        """One job per command, because an unknown id among several ids has crashed a server."""
        return ("qdel", job_id)

    def offers_argv(self) -> tuple[str, ...]:
        return ("pbsnodes", "-a", "-F", "json")

    def parse_offers(self, output: str) -> tuple[PartitionOffer, ...]:
        """Nodes with the attribute `queue` accept only jobs of that queue. The others are one offer without a name."""
        return offers_of(_node_groups(output))

    def queues_argv(self) -> tuple[tuple[str, ...], ...]:
        return (("qstat", "-Q", "-f", "-F", "json"), ("qstat", "-B", "-f", "-F", "json"))

    def parse_queues(self, output: str) -> tuple[QueueSpec, ...]:
        return parse_pbs_queues(output)


def _parse_nodefile(text: str, path: str) -> dict[str, int]:
    """Map each host to the number of its lines, in the file's order."""
    counts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        host = line.strip()
        if not host:
            continue
        if not _HOST.match(host):
            raise UsageError(f"{path}, line {number}: not a host name: {host!r}", hint="PBS writes one name per line")
        counts[host] = counts.get(host, 0) + 1
    if not counts:
        raise UsageError(f"the node file {path} is empty", hint="check the job's chunks: they may all have mpiprocs=0")
    return counts


def _node_groups(output: str) -> Iterator[NodeGroup]:
    start, end = output.find("{"), output.rfind("}")
    try:
        nodes = json.loads(output[start : end + 1])["nodes"].values()
    except (ValueError, KeyError, AttributeError, TypeError):
        return
    hosts: dict[
        tuple[str, str], tuple[int, int]
    ] = {}  # several entries may be parts of one host, which PBS calls vnodes
    for number, node in enumerate(nodes):
        has = node.get("resources_available") if isinstance(node, dict) else None
        cpus, gpus = (has.get("ncpus"), has.get("ngpus", 0)) if isinstance(has, dict) else (None, 0)
        if isinstance(has, dict) and isinstance(cpus, int) and isinstance(gpus, int):
            key = str(node.get("queue") or ""), str(has.get("host") or number)
            before = hosts.get(key, (0, 0))
            hosts[key] = (before[0] + cpus, before[1] + gpus)
    for (queue, _), (cpus, gpus) in hosts.items():
        if cpus:
            each = (("", gpus),) if gpus else ()
            yield NodeGroup(partition=queue, nodes=1, cpus=cpus, gpus=each, default=not queue)


def _directives(spec: JobSpec, site: SchedulerSpec) -> Iterator[Argument]:
    if spec.qos:
        raise UsageError("PBS has no quality of service", hint="give a queue, or use --directive")
    yield Argument(words=("-N", _job_name(spec.name)), because="the name in the queue")
    if spec.gpu_chunks:
        yield Argument(
            words=("-l", f"select={spec.gpus_per_node}"), because="this queue gives GPUs of one node, a chunk for each"
        )
    else:
        chunks = f"{counted(spec.nodes, 'node')}, one chunk on each"
        yield Argument(words=("-l", f"select={_select(spec, site)}"), because=chunks)
        because = "chunks on different hosts; without it they may share a host"
        yield Argument(words=("-l", "place=scatter"), because=because)
    if spec.time:
        yield Argument(
            words=("-l", f"walltime={clock_text(parse_walltime(spec.time))}"),
            because="time limit of the job",
        )
    if spec.partition:
        yield Argument(words=("-q", one_line(spec.partition, "a queue")), because="where to run")
    if spec.account:
        yield Argument(words=("-A", one_line(spec.account, "an account")), because="who pays")
    yield Argument(words=("-j", "oe"), because="one log for output and errors")
    if spec.output:
        yield Argument(words=("-k", "doe"), because="the log is written while the job runs, not at its end")
        yield Argument(
            words=("-o", one_line(spec.output, "the path of a log")), because="output of the batch script itself"
        )
    if spec.outlives_nodes:
        yield Argument(
            words=("-W", "tolerate_node_failures=all"),
            because="the job continues if a node is lost, because it has spare nodes (since PBS 18.2)",
        )


def _select(spec: JobSpec, site: SchedulerSpec) -> str:
    parts = [str(spec.nodes)]
    if spec.cpus_per_rank is not None:
        parts.append(f"ncpus={spec.cpus_per_rank * spec.ranks_per_node}")
        parts.append(f"mpiprocs={spec.ranks_per_node}")
    if spec.gpus_per_node and site.gpu_request != "none":
        parts.append(f"ngpus={spec.gpus_per_node}")
    return ":".join(parts)


def _job_name(name: str) -> str:
    """Replace and cut, because PBS refuses names with spaces and long names."""
    return re.sub(r"[^A-Za-z0-9_.+\-]", "_", name)[:_LONGEST_NAME] or "windlass"


def _find_job(output: str, job_id: str) -> Mapping[str, Any] | None:
    """The job's attributes. PBS converts values (a name 1e5 becomes a number), so any value may not be a string."""
    start, end = output.find("{"), output.rfind("}")
    try:
        answer = json.loads(output[start : end + 1])
    except ValueError:
        return None
    jobs = answer.get("Jobs") if isinstance(answer, dict) else None
    if not isinstance(jobs, dict):
        return None
    number = job_id.split(".", 1)[0]
    for name, job in jobs.items():
        if isinstance(job, dict) and name.split(".", 1)[0] == number:
            return job
    return None


def _end_time_s(job: Mapping[str, Any]) -> float | None:
    """The end of its walltime, counted from its start. qstat prints the start in this machine's local time."""
    asked = job.get("Resource_List")
    walltime = asked.get("walltime") if isinstance(asked, dict) else None
    try:
        began = time.mktime(time.strptime(str(job.get("stime")), "%a %b %d %H:%M:%S %Y"))
        return began + parse_walltime(str(walltime))
    except (ValueError, OverflowError, UsageError):
        return None


def _ended(job: Mapping[str, Any], comment: str) -> JobStatus:
    """The status of a finished job, from exit status and substate. Neither is reliable alone.

    A job that lost a node ended with status 0 and substate 93."""
    status, substate = job.get("Exit_status"), job.get("substate")
    code = _exit_code(status) if isinstance(status, int) else None
    if status == _WALLTIME or "exceeded resource walltime" in comment:
        return JobStatus(state=JobState.TIMEOUT, exit_code=code, reason=comment)
    if substate == _DELETED or not isinstance(status, int):
        return JobStatus(state=JobState.CANCELLED, exit_code=code, reason=comment)
    if status == 0 and substate != _FAILED:
        return JobStatus(state=JobState.DONE, exit_code=0, reason="")
    lost = status == 0
    return JobStatus(
        state=JobState.FAILED,
        exit_code=code or None,
        reason=comment,
        fault="node" if lost else _FAULTS.get(status, ""),
    )


def _exit_code(status: int) -> int | None:
    """256 + signal for a killed top process. Negative numbers are PBS's reasons, not the job's code."""
    if status < 0:
        return None
    return 128 + status - 256 if status > 256 else status
