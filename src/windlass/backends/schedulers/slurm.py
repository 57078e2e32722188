"""Slurm: sbatch, squeue, scontrol, scancel. One allocation is a job, and its processes run in steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import msgspec

from windlass.backends.schedulers.base import (
    JobSpec,
    JobState,
    JobStatus,
    NodeGroup,
    Scheduler,
    offers_of,
    one_line,
)
from windlass.backends.schedulers.queue_limits import parse_slurm_partitions
from windlass.backends.schedulers.walltime import day_clock_text, parse_walltime
from windlass.base.notation.counts import counted, parse_counts
from windlass.base.notation.hostlist import expand_hostlist, fold_hostlist, gpu_option, log_path
from windlass.errors import UsageError
from windlass.model.origin import Argument, with_site
from windlass.model.request import Allocation, PartitionOffer
from windlass.model.site import QueueSpec, SchedulerSpec

_STATES = {
    name: state
    for state, names in {
        JobState.FAILED: "BOOT_FAIL FAILED NODE_FAIL OUT_OF_MEMORY",
        JobState.CANCELLED: "CANCELLED PREEMPTED REVOKED",
        JobState.DONE: "COMPLETED",
        JobState.ENDING: "COMPLETING STAGE_OUT",
        JobState.QUEUED: "CONFIGURING PENDING REQUEUED REQUEUE_FED",
        JobState.TIMEOUT: "DEADLINE TIMEOUT",
        JobState.HELD: "REQUEUE_HOLD SPECIAL_EXIT",
        JobState.RUNNING: "RESIZING RUNNING SIGNALING STOPPED SUSPENDED",
    }.items()
    for name in names.split()
}
_HELD = ("JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue")
# Pending reasons that do not end without a change. A limit on all jobs of a user ends when another job ends.
_NEVER = re.compile(
    r"Partition(?:Node|Time)Limit|BadConstraints|DependencyNeverSatisfied|InvalidAccount|InvalidQOS|ReservationDeleted|"
    r"(?:Account|QOS)NotAllowed|(?:Assoc|QOS)Max\w+Per(?:Job|Node)(?:Limit)?|QOSMin\w+|MaxMemPerLimit"
)
_QUIET_REASONS = {"None", "(null)", ""}
_LAUNCH_FAILED = re.compile(r"launch[_ ]failed[_ ]requeued[_ ]held|Prolog", re.IGNORECASE)
_FAULTS: dict[str, Literal["node", "memory", "prologue"]] = {
    "BOOT_FAIL": "node",
    "LAUNCH_FAILED": "prologue",
    "NODE_FAIL": "node",
    "OUT_OF_MEMORY": "memory",
}

# scontrol forgets a job some minutes after its end. sacct keeps it if the site has accounting.
_STATUS = (
    'w_said=$(scontrol --oneliner show job "$1" 2>&1) && exec printf "%s\\n" "$w_said"; printf "%s\\n" "$w_said" >&2; '
    'exec sacct --noheader --parsable2 --allocations --jobs="$1" --format=JobIDRaw,State,ExitCode'
)
_KILL_STEP = (
    'squeue --noheader --steps --jobs="$1" --format="%i %j" | '
    'while read -r id name; do if [ "$name" = "$2" ]; then scancel "$id"; fi; done'
)


_FIRST_RESERVED_STEP = 0xFFFFFFF0


class Slurm(Scheduler):
    name = "slurm"
    directive = "#SBATCH"
    job_id_variable = "SLURM_JOB_ID"
    host_lines = 'scontrol show hostnames "$SLURM_JOB_NODELIST"'
    submit_command = ("sbatch",)
    job_id = re.compile(r"(?:Submitted batch job )?(\d+)(?:;[^\s;]+)?")  # with --parsable `123` or `123;cluster`
    interactive_program = ("salloc",)
    batch_options = frozenset({"--output", "--error", "--open-mode", "--requeue"})

    def in_allocation(self, environ: Mapping[str, str]) -> bool:
        return bool(environ.get("SLURM_JOB_ID"))

    def parse_allocation(
        self, environ: Mapping[str, str], read_text: Callable[[str], str], output: str | None = None
    ) -> Allocation:
        """Use only the variables, because scontrol does not exist in a container."""
        names = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST") or ""
        try:
            hosts = expand_hostlist(names)
        except UsageError as error:
            raise UsageError(f"SLURM_JOB_NODELIST: {error.message}", hint=error.hint) from error
        count = environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES")
        if count and count.isdecimal() and int(count) != len(hosts):
            raise UsageError(
                f"SLURM_JOB_NODELIST names {len(hosts)} hosts but the job has {count} nodes: {names!r}",
                hint="one of these variables may have been changed in the shell",
            )
        end = environ.get("SLURM_JOB_END_TIME", "")
        step = _step_tasks(environ)
        return Allocation(
            scheduler=self.name,
            job_id=environ.get("SLURM_JOB_ID", ""),
            hosts=hosts,
            cpus_per_node=_least(environ.get("SLURM_JOB_CPUS_PER_NODE"), "SLURM_JOB_CPUS_PER_NODE"),
            tasks_per_node=_tasks_per_node(environ) if step is None else None,
            uneven_tasks=_uneven_tasks(environ) if step is None else (),
            step_tasks=step,
            gpus_per_node=_gpus_per_node(environ),
            end_time_s=float(end) if end.isdecimal() else None,
            partition=environ.get("SLURM_JOB_PARTITION"),
            account=environ.get("SLURM_JOB_ACCOUNT"),
        )

    def directives(self, spec: JobSpec, site: SchedulerSpec) -> tuple[Argument, ...]:
        return with_site(_directives(spec, site), site.directives)

    def path_word(self, path: str) -> str:
        return log_path(path)

    def submit_argv(self, script: str) -> tuple[str, ...]:
        return ("sbatch", "--parsable", script)

    def status_argv(self, job_id: str) -> tuple[str, ...]:
        return ("sh", "-c", _STATUS, "sh", job_id)

    def parse_status(self, output: str, code: int, job_id: str) -> JobStatus:
        """Parse `scontrol --oneliner show job` or `sacct --parsable2`.

        Other text is UNKNOWN with its last line as the reason. If the controller has forgotten the job, its answer
        contains that."""
        for line in output.splitlines():
            if "JobState=" in line:
                return _from_scontrol(dict(re.findall(r"(\w+)=(\S*)", line)))
            fields = line.split("|")
            if len(fields) == 3 and fields[0].split(".")[0].split("_")[0] == job_id.split("_")[0]:
                return _status(fields[1], fields[2], "")
        lines = [line for line in output.splitlines() if line.strip()]
        reason = lines[-1].strip() if lines else "Slurm does not answer"
        return JobStatus(state=JobState.UNKNOWN, reason=reason, gone="Invalid job id specified" in output)

    def cancel_argv(self, job_id: str) -> tuple[str, ...]:
        return ("scancel", job_id)

    def restarts(self, environ: Mapping[str, str]) -> int:
        count = environ.get("SLURM_RESTART_COUNT", "")
        return int(count) if count.isdecimal() else 0

    def addresses_argv(self, hosts: tuple[str, ...]) -> tuple[str, ...] | None:
        return ("scontrol", "--oneliner", "show", "node", fold_hostlist(hosts))

    def parse_addresses(self, output: str) -> dict[str, str]:
        return dict(re.findall(r"^NodeName=(\S+) .*\bNodeAddr=(\S+)", output, re.MULTILINE))

    def offers_argv(self) -> tuple[str, ...]:
        return ("sinfo", "--noheader", "--format=%P|%D|%c|%G|%f")

    def parse_offers(self, output: str) -> tuple[PartitionOffer, ...]:
        return offers_of(_node_groups(output))

    def accounts_argv(self, user: str) -> tuple[str, ...]:
        return ("sacctmgr", "--noheader", "--parsable2", "show", "associations", f"user={user}", "format=account")

    def parse_accounts(self, output: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(line.strip() for line in output.splitlines() if line.strip()))

    def busy_argv(self, environ: Mapping[str, str]) -> tuple[str, ...] | None:
        job_id = environ.get("SLURM_JOB_ID")
        return ("squeue", "--noheader", "--steps", f"--jobs={job_id}", "--format=%i %N") if job_id else None

    def parse_busy(self, output: str, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Numbered steps hold nodes. `1234.batch`, `1234.extern` and `1234.interactive` do not."""
        own = environ.get("SLURM_STEP_ID")
        found = [line.split() for line in output.splitlines()]
        steps = [(fields[0].rpartition(".")[2], fields[1]) for fields in found if len(fields) == 2]
        return tuple(host for step, hosts in steps if step.isdecimal() and step != own for host in _hosts(hosts))

    def queues_argv(self) -> tuple[tuple[str, ...], ...]:
        return (("scontrol", "--oneliner", "show", "partition"),)

    def parse_queues(self, output: str) -> tuple[QueueSpec, ...]:
        return parse_slurm_partitions(output)

    def job_environ(self, job_id: str) -> Mapping[str, str] | None:
        return {"SLURM_JOB_ID": job_id, "SLURM_JOBID": job_id}

    def kill_step_argv(self, environ: Mapping[str, str], step_name: str) -> tuple[str, ...] | None:
        job_id = environ.get("SLURM_JOB_ID")
        return ("sh", "-c", _KILL_STEP, "sh", job_id, step_name) if job_id else None


def _hosts(text: str) -> tuple[str, ...]:
    """The hosts of a step, empty if the text is not a list of hosts (`(null)`)."""
    try:
        return expand_hostlist(text)
    except UsageError:
        return ()


def _node_groups(output: str) -> Iterator[NodeGroup]:
    """Parse sinfo: partition (`*` at the default), nodes, CPUs (`64+` if they differ), generic resources, features."""
    for line in output.splitlines():
        fields = line.strip().split("|")
        if len(fields) not in {4, 5} or not fields[1].isdecimal() or not fields[2].rstrip("+").isdecimal():
            continue
        name, nodes, cpus, gres, *features = fields
        yield NodeGroup(
            partition=name.rstrip("*"),
            nodes=int(nodes),
            cpus=int(cpus.rstrip("+")),
            gpus=_gres_gpus(gres),
            default=name.endswith("*"),
            features=tuple(feature for feature in ",".join(features).split(",") if feature and feature != "(null)"),
        )


def _gres_gpus(text: str) -> tuple[tuple[str, int], ...]:
    """GPUs in a list of generic resources, by type.

    Examples: `gpu:4`, `gpu:a100:4(S:0-1)`, `gpu:a100:2,gpu:v100:2,nvme:1`, `(null)`. Slices of a GPU (MIG) are a
    separate type."""
    counts: dict[str, int] = {}
    for kind, count in re.findall(r"(?:\A|,)gpu(?::([^:,()]+))?:(\d+)(?=\Z|,|\()", text):
        counts[kind] = counts.get(kind, 0) + int(count)
    return tuple(counts.items())


def _directives(spec: JobSpec, site: SchedulerSpec) -> Iterator[Argument]:
    def line(word: str, because: str) -> Argument:
        return Argument(words=(one_line(word, "a Slurm directive"),), because=because)

    yield line(f"--job-name={one_line(spec.name, 'the name of a job')}", "the name in the queue")
    yield line(f"--nodes={spec.nodes}", counted(spec.nodes, "node"))
    yield line(f"--ntasks-per-node={spec.ranks_per_node}", "one task per rank")
    if spec.cpus_per_rank is not None:
        yield line(f"--cpus-per-task={spec.cpus_per_rank}", "CPUs for each rank")
    if spec.gpus_per_node and site.gpu_request != "none":
        gpus = gpu_option(
            site.gpu_request,
            gpus_per_node=spec.gpus_per_node,
            gpu_type=spec.gpu_type,
            nodes=spec.nodes,
            ranks_per_node=spec.ranks_per_node,
        )
        yield line(gpus, "devices, requested in the site's form")
    if spec.partition:
        yield line(f"--partition={spec.partition}", "where to run")
    if spec.qos:
        yield line(f"--qos={spec.qos}", "quality of service")
    if spec.account:
        yield line(f"--account={spec.account}", "who pays")
    if spec.time:
        yield line(f"--time={day_clock_text(parse_walltime(spec.time))}", "time limit of the job")
    if spec.output:
        yield line(f"--output={spec.output}", "output of the batch script itself")
    if spec.exclude_hosts:
        yield line(f"--exclude={fold_hostlist(spec.exclude_hosts)}", "nodes known to be bad")
    if spec.outlives_nodes:
        yield line("--no-kill", "the job continues if a node is lost, because it has spare nodes")
    if spec.requeue:
        yield line("--requeue", "Slurm may restart it after preemption, or if its first node is lost")
        yield line("--open-mode=append", "a restarted job keeps the log of its earlier start")


def _least(text: str | None, what: str) -> int | None:
    """The minimum over all nodes."""
    return min(parse_counts(text, what)) if text else None


def _step_tasks(environ: Mapping[str, str]) -> int | None:
    """Tasks of the step of this process, or None in a batch script and in salloc's shell.

    Those two are steps with reserved numbers that hold no CPUs. In a step the task counts are the step's, not the
    job's."""
    step = environ.get("SLURM_STEP_ID", "")
    if not step.isdecimal() or int(step) >= _FIRST_RESERVED_STEP:
        return None
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "")
    return int(tasks) if tasks.isdecimal() else 1


def _tasks_per_node(environ: Mapping[str, str]) -> int | None:
    """Only a requested number, because without --ntasks Slurm sets SLURM_TASKS_PER_NODE to the number of CPUs."""
    if environ.get("SLURM_NTASKS_PER_NODE", "").isdecimal():
        return int(environ["SLURM_NTASKS_PER_NODE"])
    if environ.get("SLURM_NTASKS"):
        return _least(environ.get("SLURM_TASKS_PER_NODE"), "SLURM_TASKS_PER_NODE")
    return None


def _uneven_tasks(environ: Mapping[str, str]) -> tuple[int, ...]:
    """Tasks of each node, if the requested number cannot be shared evenly between the nodes."""
    if environ.get("SLURM_NTASKS_PER_NODE", "").isdecimal() or not environ.get("SLURM_NTASKS"):
        return ()
    counts = tuple(parse_counts(environ.get("SLURM_TASKS_PER_NODE", "1"), "SLURM_TASKS_PER_NODE"))
    return counts if len(set(counts)) > 1 else ()


def _gpus_per_node(environ: Mapping[str, str]) -> int | None:
    """SLURM_GPUS_ON_NODE (of this node) or SLURM_GPUS_PER_NODE, which may contain a type: `a100:4`."""
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):
        counts = re.findall(r"(?:\A|,|:)(\d+)(?=\Z|,|\()", environ.get(name, ""))
        if counts:
            return sum(int(count) for count in counts)
    return None


def _from_scontrol(fields: Mapping[str, str]) -> JobStatus:
    reason = fields.get("Reason", "")
    found = _status(fields.get("JobState", ""), fields.get("ExitCode", ""), "" if reason in _QUIET_REASONS else reason)
    restarts = fields.get("Restarts", "")
    # The state of a job that ends is COMPLETING for any reason. The grace time before preemption is RUNNING.
    never = found.state is JobState.QUEUED and _NEVER.fullmatch(reason) is not None
    preempted = found.preempted or fields.get("PreemptTime", "None") not in {"None", "Unknown", ""}
    count = int(restarts) if restarts.isdecimal() else 0
    return msgspec.structs.replace(found, preempted=preempted, never=never, restarts=count)


def _status(word: str, exit_code: str, reason: str) -> JobStatus:
    name = re.split(r"[\s+]", word.strip(), maxsplit=1)[0]
    state = _STATES.get(name, JobState.UNKNOWN)
    if state is JobState.QUEUED and (reason in _HELD or _LAUNCH_FAILED.search(reason)):
        state = JobState.HELD
    ended = state in {JobState.DONE, JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT}
    if not reason and (state is JobState.UNKNOWN or name in {"NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "BOOT_FAIL"}):
        reason = name
    code = _exit_code(exit_code) if ended else None
    # A cancelled job and a job that reached its time limit may still show a code of 0.
    return JobStatus(
        state=state,
        exit_code=code if state is JobState.DONE else code or None,
        reason=reason,
        preempted=name == "PREEMPTED",
        fault="prologue" if _LAUNCH_FAILED.search(reason) else _FAULTS.get(name, ""),
    )


def _exit_code(text: str) -> int | None:
    """`3:0` is code 3, `0:9` signal 9."""
    code, _, number = text.partition(":")
    if not code.isdecimal():
        return None
    return 128 + int(number) if number.isdecimal() and int(number) else int(code)
