"""What a launcher is to the rest of windlass: values in, words and parsed lines out. Nothing here runs anything.

A backend is one short file with one class. It says how its command line is built, which variables its tasks find their
rank in, how its labelled output and its complaints about a failed rank are read. `run/` does the running.
"""

from __future__ import annotations

import re
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import ClassVar, Literal

import msgspec

from windlass.base.notation.counts import counted
from windlass.model.origin import Argument
from windlass.model.record import RankFailure
from windlass.model.site import LauncherSpec

_LABEL = re.compile(r"\A[ \t]*(\d{1,9}):(?: (.*))?\Z", re.DOTALL)


class RankVariables(msgspec.Struct, frozen=True, kw_only=True):
    """Variables in which a task finds its place, the most trusted first. Empty: it has to be computed from the rank."""

    rank: tuple[str, ...]
    local_rank: tuple[str, ...] = ()
    node_rank: tuple[str, ...] = ()
    world_size: tuple[str, ...] = ()


class LaunchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to start, in words that every launcher can express. Local ranks are blocks: node 0 has ranks 0..R-1."""

    nodes: int
    ranks_per_node: int
    cpu_lists: tuple[tuple[int, ...], ...] = ()
    """CPUs of each local rank; empty: do not bind to a list."""
    cpu_bind_variable: str | None = None
    """The job's variable that holds the launcher's own words for CPU binding, for launchers that take such words."""
    cpus_per_rank: int | None = None
    """Hardware threads that each rank may use, for launchers that only count. Together with `cpu_lists` it is the size
    of the step: srun refuses a list outside the step's own CPUs, so give a number that, times `ranks_per_node`, is
    every CPU the allocation has on a node, or None, which leaves the whole node to the step."""
    overcommit: bool = False
    """More ranks than CPUs on a node, wanted: several ranks share one."""
    overlap: bool = False
    """windlass itself runs in a step that holds the job's CPUs: the ranks share them with it."""
    unbound: bool = False
    """Tell the launcher not to bind at all."""
    gpus_per_node: int | None = None
    gpu_type: str | None = None
    gpu_request: Literal["none", "gpus-per-node", "gres", "gpus", "gpus-per-task"] = "none"
    devices: Literal["all", "one"] = "all"
    device_by_launcher: bool = False
    """With one device per rank, let the launcher choose the closest one."""
    mpi: str | None = None
    host_file: str | None = None
    """Path of a file with one host per line that lists the nodes to use, for launchers that take one."""
    host_list: str | None = None
    """Folded host list of the nodes to use when they are a part of the allocation."""
    output_dir: str | None = None
    """Folder for the ranks' output, for launchers whose daemons write one labelled file per node."""
    step_name: str = "windlass"
    time_limit: str | None = None
    environment_names: tuple[str, ...] = ()
    """Names of variables that must travel, for launchers that pass only what is named."""

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def in_words(self) -> str:
        """`2 nodes with 4 ranks each`."""
        return f"{counted(self.nodes, 'node')} with {counted(self.ranks_per_node, 'rank')} each"


class NodeStepSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A small task on each of these nodes, now: beside what runs there, without a core, device or memory of its own."""

    nodes: int
    hosts: tuple[str, ...] = ()
    """The nodes by name; empty: the first `nodes` of the allocation."""
    host_file: str | None = None
    """Where the runtime may write the hosts, for launchers that read them from a file; None: said as arguments."""
    name: str = "windlass-step"
    devices: bool = False
    """The task looks at the devices of the node, which the ranks use; else it sees none where that can be said."""
    executable: str = ""
    """The site's launcher; empty: the usual name."""
    environment_names: tuple[str, ...] = ()
    """Names of variables that must travel, for launchers that pass only what is named."""


class NodeStep(msgspec.Struct, frozen=True, kw_only=True):
    """A node step as its launcher starts it. Its output is not labelled, and it ends with the job."""

    arguments: tuple[Argument, ...] = ()
    """The command line up to but without the program, with the placeholders of `PLACEHOLDERS`; empty: windlass starts
    the only task itself."""
    host_file: str | None = None
    host_file_text: str = ""
    """What `host_file` has to hold before the step starts, where it is not None."""
    prologue: tuple[str, ...] = ()
    """Shell lines after which the launcher is found, where the job loads modules or activates an environment."""
    place: tuple[str, ...]
    """Variables in which a task finds the index of its node among the hosts, the most trusted first."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables that the launcher itself needs, whatever the user has set."""
    lookup_argv: tuple[str, ...] = ()
    """Prints the hosts of all brokers in the brokers' order, folded; for the placeholders that name brokers."""
    lookup_hosts: tuple[str, ...] = ()
    """The hosts whose brokers those are."""
    follows_stdin: bool = False
    """Every task sees the end of the launcher's standard input. Elsewhere `stop_signal` to the launcher ends them."""
    stop_signal: signal.Signals = signal.SIGTERM
    """What the launcher hands on to its tasks and then leaves them time to end."""


LAST_LINE = "\x1e"
"""The end of a rank's output, alone on its last line or at the end of it."""
SIGNAL_FILE = "signal"
"""In the run folder: the name of the signal that the launcher's `carrier` stands for."""
RUN_MARK = "{run_mark}"
"""In the arguments of a launch: a short word that no other run folder has."""
MAX_PIECES = 1024
"""Of a cut line that are put together again; no line is longer than a megabyte."""
PLACE_VARIABLE = "WINDLASS_NODE_RANK"
"""Where a task of a node step finds its place when the launcher itself has no such variable."""
PLACEHOLDERS = ("{run_dir}", "{broker_ranks}", "{broker_order}")
"""What only the job knows. The runtime fills them in: the run folder, the brokers of the hosts as an ascending set, and
in the order of the hosts."""


def binding_argument(variable: str) -> Argument:
    """`--cpu-bind` by what a variable of the job says."""
    because = f"the job's {variable} says where ranks sit"
    return Argument(words=(f"--cpu-bind=${{{variable}}}",), because=because, expand=True)


class Launcher(ABC):
    """Base of the backends. Class attributes say what a launcher can do; methods are pure."""

    name: ClassVar[str]
    executable: ClassVar[str]
    variables: ClassVar[RankVariables]
    output: ClassVar[Literal["files", "stream", "pipes"]]
    """`files`: its daemons write one file per node into `output_dir`, named as `node_log` says, every line labelled
    with the rank. `stream`: everything arrives labelled on its stdout and stderr. `pipes`: windlass itself holds one
    pipe per rank (the local launcher)."""
    node_log: ClassVar[str] = "node-{node_rank:04d}.log"
    """Name of a node's log, by the node's place in the step. Host names would need to be what `gethostname` says on the
    node, which is not always what the scheduler calls it."""
    binds_lists: ClassVar[bool]
    """Takes one CPU list per local rank. Otherwise the rank script binds."""
    takes_binding_words: ClassVar[bool] = False
    """Takes `cpu_bind_variable`: a site's or a user's words for its own `--cpu-bind`."""
    finds_hosts: ClassVar[bool] = True
    """Finds the hosts of the job by itself; otherwise it starts every rank on this one unless it gets a host file."""
    names_failed_rank: ClassVar[bool]
    """Its messages always name the rank that failed first. Otherwise the rank script stays the parent and tells it."""
    ends_others: ClassVar[bool] = True
    """When one rank fails it ends the others by itself, also where they never called MPI."""
    sends_alarm: ClassVar[bool] = False
    """At the time limit its tasks, and whatever these have started, get SIGALRM instead of SIGTERM."""
    glues_last_lines: ClassVar[bool] = False
    """A rank's last line without its end is followed by the next label on the same line, and nothing tells them apart:
    the rank script ends the output of its rank with `LAST_LINE`."""
    cut_bytes: ClassVar[int] = 0
    """Its daemons cut a line of a node's log after so many bytes, and label the rest as a line of its own, be it empty;
    so a line of exactly this length is never whole. 0: they do not."""
    multi_node: ClassVar[bool] = True
    carrier: ClassVar[signal.Signals | None] = None
    """The one signal that it hands on to the ranks, to their whole groups; `SIGNAL_FILE` of the run folder says which
    one is meant, and the rank script reads it. None: it hands on any signal as it is."""
    reaches_groups: ClassVar[bool] = False
    """A signal reaches the rank script and its rank alike, which then does not need it from the script."""
    hurries: ClassVar[bool] = False
    """It kills the ranks soon after SIGTERM, whatever time they were to have: they are asked through the `carrier`."""
    again: ClassVar[tuple[str, ...]] = ()
    """Words for a start after one that failed, where what is left of that one could be in its way."""
    unwatched: ClassVar[tuple[str, ...]] = ()
    """Words for a start where no windlass watches the ends of ranks (a standalone script): the launcher ends the others
    itself, as well as it can."""

    @abstractmethod
    def arguments(self, spec: LaunchSpec, site: LauncherSpec) -> tuple[Argument, ...]:
        """The command line, executable first, up to but without the program. Each argument has its reason."""

    @abstractmethod
    def node_step(self, spec: NodeStepSpec) -> NodeStep:
        """How a small task is started on each of these nodes beside the ranks, whatever these hold."""

    def path_word(self, path: str) -> str:
        """A path as it must be written inside this launcher's arguments; raises `UsageError` where it cannot be."""
        return path

    def host_file_text(self, hosts: Iterable[str], spec: LaunchSpec) -> str | None:
        """Text of the host file for `spec.host_file`, or None where the launcher takes none."""
        return None

    @abstractmethod
    def parse_line(self, line: str) -> tuple[int | None, str]:
        """Rank and text of one labelled line; rank None for a line of the launcher itself."""

    def segments(self, line: str) -> tuple[tuple[int | None, str], ...]:
        """Pieces of one line of the stream, each with its rank. Only launchers that label whatever a rank wrote at
        once, be it half a line, give more than one; see `LineReader`."""
        return (self.parse_line(line),)

    def is_noise(self, message: str) -> bool:
        """Words of the launcher that tell the user nothing; they stay in its log."""
        return False

    def parse_failure(self, messages: Iterable[str], exit_code: int) -> RankFailure | None:
        """The first failed rank according to the launcher's own messages, or None where they do not say."""
        return None

    def signal_argv(self, step_name: str, sig: signal.Signals, pid: int) -> tuple[str, ...] | None:
        """A command that sends a signal to every rank of the step, and ends the launcher `pid` where SIGTERM finds no
        step; None where the launcher itself hands signals on."""
        return None

    def lost_place(self, message: str, argv: tuple[str, ...]) -> int | None:
        """The place of the node that this complaint of a node step, started as `argv`, tells to be lost, where the
        launcher knows its nodes by number. None for anything else."""
        return None


class LineReader:
    """Puts the ranks' lines together again. hydra and Open MPI label what they read from a rank, not its lines: a rank
    that writes a line in two pieces, as unbuffered Python does, appears twice in one line, or inside another rank's.
    Keep one reader for each stream."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._begun: dict[int | None, list[str]] = {}

    def feed(self, line: str) -> tuple[int | None, str]:
        """Rank and text of the line that this one ends. What it holds of other ranks' lines waits for their ends."""
        *begun, (rank, text) = self._launcher.segments(line)
        for other, piece in begun:
            self._begun.setdefault(other, []).append(piece)
        return rank, "".join(self._begun.pop(rank, ())) + text

    def flush(self) -> tuple[tuple[int | None, str], ...]:
        """Lines that were begun and never ended, at the end of the stream."""
        rest = tuple((rank, "".join(pieces)) for rank, pieces in self._begun.items())
        self._begun.clear()
        return rest


def labelled_pieces(label: re.Pattern[str], line: str) -> tuple[tuple[int | None, str], ...]:
    """The line cut at every label, whose group `rank` is the rank."""
    found = list(label.finditer(line))
    if not found:
        return ((None, line),)
    ends = [match.start() for match in found[1:]] + [len(line)]
    pieces = [(int(match.group("rank")), line[match.end() : end]) for match, end in zip(found, ends, strict=True)]
    return (*(((None, line[: found[0].start()]),) if found[0].start() else ()), *pieces)


def one_line_alone(label: re.Pattern[str], line: str) -> tuple[int | None, str]:
    """Rank and text of a line by itself. Where several ranks share it, the first one gets all of it, labels included:
    nothing is lost, but only a `LineReader` can tell them apart."""
    pieces = labelled_pieces(label, line)
    first = pieces[0][0]
    if all(rank == first for rank, _ in pieces):
        return first, "".join(text for _, text in pieces)
    found = label.match(line)
    return first, line[found.end() :] if found else line


def decode(data: bytes) -> str:
    """Output of a rank as text; bytes that are no UTF-8 survive the way back."""
    return data.decode("utf-8", "surrogateescape")


def label_line(rank: int, text: str) -> str:
    """A line of a rank as most launchers label it, and as windlass itself labels what it read from pipes."""
    return f"{rank}: {text}"


def parse_label(line: str) -> tuple[int | None, str]:
    """The reverse of `label_line`; numbers may be padded with zeros or spaces. Any other line is nobody's."""
    match = _LABEL.match(line)
    return (int(match.group(1)), match.group(2) or "") if match else (None, line)


class NodeLogReader:
    """Reads a node's log: as the launcher labelled its lines, or as windlass did where it wrote the file. Lines that
    the launcher's daemons cut are put together again. Keep one reader for each file."""

    def __init__(self, launcher: Launcher) -> None:
        self._parse = launcher.parse_line if launcher.output == "files" else parse_label
        self._cut_bytes = launcher.cut_bytes
        self._begun: dict[int, list[str]] = {}

    def feed(self, line: str) -> tuple[int | None, str] | None:
        """Rank and text of the line that this one ends; None where the rest of it is still to come."""
        rank, text = self._parse(line)
        if rank is None or not self._cut_bytes:
            return rank, text
        begun = self._begun.get(rank, [])
        if len(text) * 4 >= self._cut_bytes and len(_encode(text)) == self._cut_bytes and len(begun) < MAX_PIECES:
            self._begun.setdefault(rank, []).append(text)
            return None
        self._begun.pop(rank, None)
        return rank, _joined([*begun, text])

    def read(self, lines: Iterable[bytes]) -> Iterator[tuple[int | None, str]]:
        """Rank and text of every line of a whole file."""
        for line in lines:
            found = self.feed(decode(line.rstrip(b"\n")))
            if found is not None:
                yield found
        yield from self.flush()

    def flush(self) -> tuple[tuple[int | None, str], ...]:
        """Lines that were begun and never ended, at the end of the file."""
        rest = tuple((rank, _joined(pieces)) for rank, pieces in self._begun.items())
        self._begun.clear()
        return rest


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _joined(pieces: list[str]) -> str:
    """Pieces of one line; a character may have been cut, too."""
    return pieces[0] if len(pieces) == 1 else decode(b"".join(_encode(piece) for piece in pieces))


def signal_number(words: str) -> int | None:
    """The signal that the C library describes in these words ("Killed", "Segmentation fault (core dumped)")."""
    cleaned = words.removesuffix(" (core dumped)")
    return next((int(number) for number in signal.Signals if signal.strsignal(number) == cleaned), None)


def own_message(line: str) -> tuple[int | None, str]:
    """A line that no rank wrote."""
    return None, line
