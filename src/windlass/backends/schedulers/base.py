"""The interface of a scheduler: small hooks that build arguments or text and parse output. All pure.

`run/` runs the commands. There are two kinds of error: a wrong request (`UsageError`) and a scheduler that cannot
answer now (`transient`). A state that a backend does not know is UNKNOWN, never an exception.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import ClassVar, Literal, NamedTuple

import msgspec

from windlass.base.notation.shell import quote_words
from windlass.base.tables import packaged_table
from windlass.errors import CommandError, MachineError, UsageError, WindlassError
from windlass.model.origin import Argument
from windlass.model.request import Allocation, NodeOffer, PartitionOffer
from windlass.model.site import QueueSpec, SchedulerSpec


class SchedulerBusyError(MachineError):
    """The scheduler cannot answer or accept the request now. The same request may succeed later."""

    transient = True


class Refusal(msgspec.Struct, frozen=True):
    """One kind of refused submission: a pattern of the scheduler's message, its meaning, and what to do."""

    pattern: str
    means: str
    transient: bool = False
    hint: str | None = None
    codes: tuple[int, ...] = ()
    """Exit codes with the same meaning, for a scheduler whose codes do not depend on the language."""


def refusals_of(scheduler: str) -> tuple[Refusal, ...]:
    """The kinds of refusal of a scheduler, from the table `data/refusals.toml`."""
    return msgspec.convert(packaged_table(__file__, "refusals.toml").get(scheduler, ()), tuple[Refusal, ...])


class JobState(Enum):
    QUEUED = "queued"
    HELD = "held"
    RUNNING = "running"
    ENDING = "ending"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    UNKNOWN = "unknown"


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The request to the scheduler."""

    name: str
    nodes: int
    ranks_per_node: int
    cpus_per_rank: int | None = None
    gpus_per_node: int | None = None
    gpu_type: str | None = None
    gpu_chunks: bool = False
    """The queue counts the GPUs of one node instead of nodes (PBS)."""
    partition: str | None = None
    qos: str | None = None
    account: str | None = None
    time: str | None = None
    """As the user wrote it: `30` (minutes), `1:30:00`, `2h`, `1-12:00:00`. Each backend converts it to its form."""
    output: str | None = None
    """Path of the job's log. `{run_dir}` is replaced later, in the form that `path_word` returns."""
    exclude_hosts: tuple[str, ...] = ()
    outlives_nodes: bool = False
    """The job continues if one of its nodes is lost, if the scheduler supports that."""
    requeue: bool = False
    """The scheduler may restart the job from its beginning, after preemption or the loss of its first node."""


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    state: JobState
    exit_code: int | None = None
    reason: str = ""
    """The scheduler's message, if it has one ("Can Never Run")."""
    never: bool = False
    """It will never start, because its request does not fit the nodes or exceeds a limit."""
    preempted: bool = False
    """The scheduler takes, or took, its nodes for another job."""
    fault: Literal["", "node", "memory", "prologue"] = ""
    """The scheduler's reason for the end: a lost node, memory, or a failed prologue or launch."""
    restarts: int = 0
    """How often the scheduler has put it back into the queue, if the scheduler reports that."""
    gone: bool = False
    """The scheduler answered that it has no such job, so the job is neither pending nor running.

    UNKNOWN without this means that the scheduler did not answer. The job may still exist."""


class Scheduler(ABC):
    """Base class of the backends."""

    name: ClassVar[str]
    directive: ClassVar[str]
    """Prefix of a directive line, `#SBATCH`."""
    job_id_variable: ClassVar[str]
    shebang: ClassVar[str] = "#!/bin/bash"
    first_lines: ClassVar[tuple[str, ...]] = ()
    """Shell lines at the start of every batch script."""
    host_lines: ClassVar[str]
    """A shell command that prints the hosts of the job, one per line, rank 0's first, without duplicates."""
    submit_command: ClassVar[tuple[str, ...]]
    job_id: ClassVar[re.Pattern[str]]
    """Matches the line with the job id, which is the first group."""
    interactive_program: ClassVar[tuple[str, ...]] = ()
    """The command that allocates nodes to a terminal instead of `submit_command`. It accepts directives as options."""
    batch_options: ClassVar[frozenset[str]] = frozenset()
    """Directives that have no effect in `interactive_program`, or that it does not accept."""
    nests: ClassVar[bool] = False
    """A job may request an allocation from its own nodes."""
    carries_environment: ClassVar[bool] = True
    """A job gets the variables of the shell that submits it."""
    can_exclude: ClassVar[bool] = True
    """Accepts `exclude_hosts`. Otherwise a job must request spare nodes and leave the bad nodes out itself."""

    @abstractmethod
    def in_allocation(self, environ: Mapping[str, str]) -> bool:
        """Whether this process runs inside a job (batch script, interactive allocation or a step)."""

    def allocation_argv(self, environ: Mapping[str, str]) -> tuple[str, ...] | None:
        """A command whose output `parse_allocation` needs, or None if the environment and files suffice."""
        return None

    def program_folder(self, environ: Mapping[str, str], read_text: Callable[[str], str]) -> str | None:
        """The directory of its commands if they are not in PATH, or None if it is unknown."""
        return None

    @abstractmethod
    def parse_allocation(
        self, environ: Mapping[str, str], read_text: Callable[[str], str], output: str | None = None
    ) -> Allocation:
        """The resources of the job. A malformed host list or node file raises a `UsageError` that names it."""

    @abstractmethod
    def directives(self, spec: JobSpec, site: SchedulerSpec) -> tuple[Argument, ...]:
        """Directive arguments for the batch script, each with its reason. The site's directives come last."""

    def path_word(self, path: str) -> str:
        """Write a path for this scheduler's directives. Raises `UsageError` if that is not possible."""
        return path

    def directive_line(self, argument: Argument) -> str:
        """The line of a batch script for one directive. The scheduler receives the value unchanged.

        Raises `UsageError` for a line break in the value. The scheduler reads line by line, and the shell would run the
        text after the line break."""
        broken = next((word for word in argument.words if re.search(r"[\r\n\0]", word)), None)
        if broken is not None:
            raise UsageError(f"directive {broken[:80]!r} contains a line break", hint="a directive is one line")
        return f"{self.directive} {quote_words(argument.words)}"

    def submit_argv(self, script: str) -> tuple[str, ...]:
        return (*self.submit_command, script)

    def interactive_arguments(self, directives: tuple[Argument, ...]) -> tuple[Argument, ...]:
        """The command that gives a terminal the same nodes as a batch job with these directives.

        It keeps every directive that the user requested."""
        kept = (a for a in directives if a.name not in self.batch_options or a.origin.scope == "flag")
        return (Argument(words=self.interactive_program, because="an allocation for this terminal"), *kept)

    def interactive_command(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """The arguments that run this command instead of a shell. Raises `UsageError` if that is not possible."""
        return command

    def parse_submit(self, output: str) -> str:
        """The last job id that the submit command printed. Raises `CommandError` if it printed none."""
        for line in reversed(output.strip().splitlines()):
            if match := self.job_id.fullmatch(line.strip()):
                return match.group(1)
        program = self.submit_command
        raise CommandError(
            f"{' '.join(program)} printed no job id",
            argv=program,
            code=0,
            output=output,
            hint="check in the queue whether it was submitted (squeue, qstat, flux jobs)",
        )

    def explain_refusal(self, code: int, output: str) -> WindlassError:
        """The error for a refused submission, with a hint. It is `transient` if a retry may succeed.

        The first refusal that matches decides. An unknown message is shown unchanged."""
        program = self.submit_command
        name, said = " ".join(program), " ".join(output.split()) or "no message"
        for refusal in refusals_of(self.name):
            if code in refusal.codes or re.search(refusal.pattern, output):
                kind = SchedulerBusyError if refusal.transient else UsageError
                return kind(f"{name} refused the job: {refusal.means} (it said: {said})", hint=refusal.hint)
        return CommandError(
            f"{name} failed with code {code}: {said}",
            argv=program,
            code=code,
            output=output,
            hint="this is the scheduler's message; `windlass submit --dry-run` prints the submitted script",
        )

    @abstractmethod
    def status_argv(self, job_id: str) -> tuple[str, ...]: ...

    @abstractmethod
    def parse_status(self, output: str, code: int, job_id: str) -> JobStatus: ...

    @abstractmethod
    def cancel_argv(self, job_id: str) -> tuple[str, ...]: ...

    def offers_argv(self) -> tuple[str, ...] | None:
        """A command that lists the resources of each partition's nodes from outside a job, or None."""
        return None

    def parse_offers(self, output: str) -> tuple[PartitionOffer, ...]:
        """One offer per partition. Lines that cannot be parsed are left out."""
        return ()

    def busy_argv(self, environ: Mapping[str, str]) -> tuple[str, ...] | None:
        """A command that lists the busy nodes of the job, or None."""
        return None

    def parse_busy(self, output: str, environ: Mapping[str, str]) -> tuple[str, ...]:
        """The nodes that a step of the job holds. The step of this process is left out."""
        return ()

    def queues_argv(self) -> tuple[tuple[str, ...], ...]:
        """Commands that list the limits of each partition or queue. `parse_queues` reads their joined outputs."""
        return ()

    def parse_queues(self, output: str) -> tuple[QueueSpec, ...]:
        """The partitions or queues that users may submit to. Limits that the output does not contain are absent."""
        return ()

    def accounts_argv(self, user: str) -> tuple[str, ...] | None:
        """A command that lists the accounts that a user may use, or None."""
        return None

    def parse_accounts(self, output: str) -> tuple[str, ...]:
        """The accounts, empty if the scheduler has no accounts."""
        return ()

    def outside_argv(self, argv: tuple[str, ...], environ: Mapping[str, str]) -> tuple[str, ...]:
        """The form of a command for use in a job, so that the scheduler that runs this job answers."""
        return argv

    def restarts(self, environ: Mapping[str, str]) -> int:
        """How often this job had been requeued when it started this time. For use in the job."""
        return 0

    def addresses_argv(self, hosts: tuple[str, ...]) -> tuple[str, ...] | None:
        """A command that prints the network addresses of nodes whose names do not resolve, or None."""
        return None

    def parse_addresses(self, output: str) -> dict[str, str]:
        """The address of each node in the output."""
        return {}

    def job_environ(self, job_id: str) -> Mapping[str, str] | None:
        """Variables with which a launcher outside a running job starts a step in it. None if only the job can."""
        return None

    def kill_step_argv(self, environ: Mapping[str, str], step_name: str) -> tuple[str, ...] | None:
        """A command that immediately kills the launcher's step of this name on all nodes, or None."""
        return None


class NodeGroup(NamedTuple):
    """Identical nodes of one partition."""

    partition: str
    nodes: int
    cpus: int
    gpus: tuple[tuple[str, int], ...] = ()
    default: bool = False
    features: tuple[str, ...] = ()


def offers_of(groups: Iterable[NodeGroup]) -> tuple[PartitionOffer, ...]:
    """One offer per partition, with its kinds of nodes."""
    kinds: dict[str, dict[NodeGroup, int]] = {}
    for group in groups:
        if group.nodes > 0:
            counts = kinds.setdefault(group.partition, {})
            kind = group._replace(nodes=0)
            counts[kind] = counts.get(kind, 0) + group.nodes
    return tuple(
        PartitionOffer(
            name=name,
            default=any(kind.default for kind in counts),
            kinds=tuple(
                NodeOffer(nodes=count, cpus=kind.cpus, gpus=kind.gpus, features=kind.features)
                for kind, count in counts.items()
            ),
        )
        for name, counts in kinds.items()
    )


def one_line(text: str, what: str) -> str:
    """Return the text if it fits into one line of a batch script, or raise a `UsageError`.

    A control character in the text would start a new line, and the job would execute that line."""
    if not text or not text.isprintable():
        raise UsageError(f"{what} cannot be {text!r}", hint="use printable characters on one line")
    return text
