"""What a scheduler is to the rest of windlass: small hooks that build words or text and parse output. All pure.

`run/` runs the commands. Errors are split in two: a request that is wrong (`UsageError`) and a scheduler that cannot
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
    """The scheduler cannot answer or accept now; the same request may do later."""

    transient = True


class Refusal(msgspec.Struct, frozen=True):
    """One way in which a submission is refused: a pattern of the scheduler's words, what it means, what to do."""

    pattern: str
    means: str
    transient: bool = False
    hint: str | None = None
    codes: tuple[int, ...] = ()
    """Exit codes that mean the same, for a scheduler whose codes do not depend on the language."""


def refusals_of(scheduler: str) -> tuple[Refusal, ...]:
    """Ways in which a scheduler refuses a submission: its part of the table `data/refusals.toml`."""
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
    """What to ask the scheduler for."""

    name: str
    nodes: int
    ranks_per_node: int
    cpus_per_rank: int | None = None
    gpus_per_node: int | None = None
    gpu_type: str | None = None
    gpu_chunks: bool = False
    """The queue counts GPUs of one node and not nodes (PBS)."""
    partition: str | None = None
    qos: str | None = None
    account: str | None = None
    time: str | None = None
    """As the user wrote it: `30` (minutes), `1:30:00`, `2h`, `1-12:00:00`; backends write their own form."""
    output: str | None = None
    """Path of the job's own log. `{run_dir}` in it is filled in later, as `path_word` writes it."""
    exclude_hosts: tuple[str, ...] = ()
    outlives_nodes: bool = False
    """The job goes on when one of its nodes is lost, where the scheduler can do that."""
    requeue: bool = False
    """The scheduler may start the job again from its beginning: after preemption, or the loss of its first node."""


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    state: JobState
    exit_code: int | None = None
    reason: str = ""
    """The scheduler's own words where it has any ("Can Never Run")."""
    never: bool = False
    """It will not start, however long it waits: its request does not fit the nodes, or breaks a limit."""
    preempted: bool = False
    """The scheduler takes, or took, its nodes back for another job."""
    fault: Literal["", "node", "memory", "prologue"] = ""
    """What the scheduler blames for the end: a lost node, memory, or a prologue or launch that failed."""
    restarts: int = 0
    """How often the scheduler has put it back into the queue, where it says so."""
    gone: bool = False
    """The scheduler answered and knows no such job any more: it does not wait and does not run. UNKNOWN without this
    is no answer, and the job may live."""


class Scheduler(ABC):
    """Base of the backends."""

    name: ClassVar[str]
    directive: ClassVar[str]
    """Prefix of a directive line, `#SBATCH`."""
    job_id_variable: ClassVar[str]
    shebang: ClassVar[str] = "#!/bin/bash"
    first_lines: ClassVar[tuple[str, ...]] = ()
    """Lines of shell with which every batch script begins."""
    host_lines: ClassVar[str]
    """A shell command that prints the hosts of the job, one per line, rank 0's first, each once."""
    submit_command: ClassVar[tuple[str, ...]]
    job_id: ClassVar[re.Pattern[str]]
    """The line in which it prints a job's id, which is the first group."""
    interactive_program: ClassVar[tuple[str, ...]] = ()
    """The command that gives nodes to a terminal, in the place of `submit_command`; it takes directives as options."""
    batch_options: ClassVar[frozenset[str]] = frozenset()
    """Directives that mean nothing to `interactive_program`, or that it does not know."""
    nests: ClassVar[bool] = False
    """A job may ask for an allocation out of its own nodes."""
    carries_environment: ClassVar[bool] = True
    """A job gets the variables of the shell that submits it."""
    can_exclude: ClassVar[bool] = True
    """Takes `exclude_hosts`. Otherwise a job has to ask for spare nodes and leave the bad ones out itself."""

    @abstractmethod
    def in_allocation(self, environ: Mapping[str, str]) -> bool:
        """Whether this process runs inside a job (batch script, interactive allocation or a step)."""

    def allocation_argv(self, environ: Mapping[str, str]) -> tuple[str, ...] | None:
        """A command whose output `parse_allocation` needs, or None where the environment and files suffice."""
        return None

    def program_folder(self, environ: Mapping[str, str], read_text: Callable[[str], str]) -> str | None:
        """Where its commands are when PATH does not lead to them, or None where nobody can tell."""
        return None

    @abstractmethod
    def parse_allocation(
        self, environ: Mapping[str, str], read_text: Callable[[str], str], output: str | None = None
    ) -> Allocation:
        """What the job was given. A malformed host list or node file is a `UsageError` that names it."""

    @abstractmethod
    def directives(self, spec: JobSpec, site: SchedulerSpec) -> tuple[Argument, ...]:
        """Directive words for the batch script, each with its reason; the site's own come last."""

    def path_word(self, path: str) -> str:
        """A path as it must be written inside this scheduler's directives; raises `UsageError` where it cannot be."""
        return path

    def directive_line(self, argument: Argument) -> str:
        """The line of a batch script for one directive; its value arrives unchanged. `UsageError` for a line break in
        it: the scheduler reads line by line, and the shell would run what follows."""
        broken = next((word for word in argument.words if re.search(r"[\r\n\0]", word)), None)
        if broken is not None:
            raise UsageError(f"directive {broken[:80]!r} holds a line break", hint="a directive is one line")
        return f"{self.directive} {quote_words(argument.words)}"

    def submit_argv(self, script: str) -> tuple[str, ...]:
        return (*self.submit_command, script)

    def interactive_arguments(self, directives: tuple[Argument, ...]) -> tuple[Argument, ...]:
        """The command that gives a terminal the nodes that a batch job with these directives would get. What the user
        asked for stays, whatever it is."""
        kept = (a for a in directives if a.name not in self.batch_options or a.origin.scope == "flag")
        return (Argument(words=self.interactive_program, because="an allocation for this terminal"), *kept)

    def interactive_command(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """What follows the arguments to run this command in the place of a shell; `UsageError` where it cannot."""
        return command

    def parse_submit(self, output: str) -> str:
        """The job id that the submit command printed, last of all; `CommandError` where it printed none."""
        for line in reversed(output.strip().splitlines()):
            if match := self.job_id.fullmatch(line.strip()):
                return match.group(1)
        program = self.submit_command
        raise CommandError(
            f"{' '.join(program)} printed no job id",
            argv=program,
            code=0,
            output=output,
            hint="was it submitted? the queue says so (squeue, qstat, flux jobs)",
        )

    def explain_refusal(self, code: int, output: str) -> WindlassError:
        """The error for a refused submission, in words and with a hint; `transient` where trying again may help. The
        first of its refusals that matches decides; unknown words are shown as they are."""
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
            hint="the words are the scheduler's own; `windlass submit --dry-run` prints the script that it got",
        )

    @abstractmethod
    def status_argv(self, job_id: str) -> tuple[str, ...]: ...

    @abstractmethod
    def parse_status(self, output: str, code: int, job_id: str) -> JobStatus: ...

    @abstractmethod
    def cancel_argv(self, job_id: str) -> tuple[str, ...]: ...

    def offers_argv(self) -> tuple[str, ...] | None:
        """A command that tells what the nodes of each partition have, from outside of any job; None where none does."""
        return None

    def parse_offers(self, output: str) -> tuple[PartitionOffer, ...]:
        """One offer per partition; lines that cannot be read are left out."""
        return ()

    def busy_argv(self, environ: Mapping[str, str]) -> tuple[str, ...] | None:
        """A command that tells which nodes of the job run something already; None where none does."""
        return None

    def parse_busy(self, output: str, environ: Mapping[str, str]) -> tuple[str, ...]:
        """The nodes that a step of the job holds, other than the one that this process is in."""
        return ()

    def queues_argv(self) -> tuple[tuple[str, ...], ...]:
        """Commands that tell the limits of each partition or queue; `parse_queues` reads their outputs, joined."""
        return ()

    def parse_queues(self, output: str) -> tuple[QueueSpec, ...]:
        """The partitions or queues that users may submit to; limits that are not said are absent."""
        return ()

    def accounts_argv(self, user: str) -> tuple[str, ...] | None:
        """A command that tells which accounts a user may name; None where none does."""
        return None

    def parse_accounts(self, output: str) -> tuple[str, ...]:
        """The accounts, none where the scheduler keeps none."""
        return ()

    def outside_argv(self, argv: tuple[str, ...], environ: Mapping[str, str]) -> tuple[str, ...]:
        """A command of this backend as a job has to give it, so that the scheduler that runs this job answers."""
        return argv

    def restarts(self, environ: Mapping[str, str]) -> int:
        """How often this job had been put back into the queue when this start of it began, from inside it."""
        return 0

    def addresses_argv(self, hosts: tuple[str, ...]) -> tuple[str, ...] | None:
        """A command that tells the network addresses of nodes whose names do not resolve, or None."""
        return None

    def parse_addresses(self, output: str) -> dict[str, str]:
        """The address of each node that is told."""
        return {}

    def job_environ(self, job_id: str) -> Mapping[str, str] | None:
        """Variables that let a launcher outside of a running job start a step in it; None where only the job can."""
        return None

    def kill_step_argv(self, environ: Mapping[str, str], step_name: str) -> tuple[str, ...] | None:
        """A command that kills, at once and on all nodes, what the launcher started under this name, or None."""
        return None


class NodeGroup(NamedTuple):
    """Nodes of one partition that are alike."""

    partition: str
    nodes: int
    cpus: int
    gpus: tuple[tuple[str, int], ...] = ()
    default: bool = False
    features: tuple[str, ...] = ()


def offers_of(groups: Iterable[NodeGroup]) -> tuple[PartitionOffer, ...]:
    """One offer per partition, with the kinds of nodes that it has."""
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
    """The text, where it fits into one line of a batch script. A control character in it would start a line of its own,
    which the job would execute: a `UsageError`."""
    if not text or not text.isprintable():
        raise UsageError(f"{what} cannot be {text!r}", hint="use printable characters on one line")
    return text
