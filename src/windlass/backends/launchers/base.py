"""The interface of a launcher: it builds arguments from values and parses lines. It runs nothing.

A backend is one short file with one class. It defines how to build the command line, which variables contain a task's
rank, and how to parse labelled output and messages about a failed rank. `run/` runs the command.
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
    """Variables that contain a task's position, the most reliable first. If empty, compute it from the rank."""

    rank: tuple[str, ...]
    local_rank: tuple[str, ...] = ()
    node_rank: tuple[str, ...] = ()
    world_size: tuple[str, ...] = ()


class LaunchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The processes to start, in terms that every launcher can express. Ranks are in blocks: node 0 has 0..R-1."""

    nodes: int
    ranks_per_node: int
    cpu_lists: tuple[tuple[int, ...], ...] = ()
    """CPUs of each local rank. If empty, do not bind to a list."""
    cpu_bind_variable: str | None = None
    """The job's variable with the launcher's CPU binding keywords, for launchers that accept such keywords."""
    cpus_per_rank: int | None = None
    """Hardware threads that each rank may use, for launchers that only count.

    Together with `cpu_lists` it is the size of the step. srun refuses a list outside the step's CPUs. So this number
    times `ranks_per_node` must be all CPUs that the allocation has on a node. None gives the whole node to the step."""
    overcommit: bool = False
    """Allow more ranks than CPUs on a node, so that several ranks share a CPU."""
    overlap: bool = False
    """windlass itself runs in a step that holds the job's CPUs, so the ranks share the CPUs with it."""
    next_to_others: bool = False
    """Other steps of the job use the same nodes at the same time."""
    cores_per_node: int | None = None
    """The step's share of the cores of each node. None: the whole node."""
    unbound: bool = False
    """Disable binding by the launcher."""
    gpus_per_node: int | None = None
    gpus_of_node: int | None = None
    """All devices of a node, if the step uses only some of them."""
    gpu_type: str | None = None
    gpu_request: Literal["none", "gpus-per-node", "gres", "gpus", "gpus-per-task"] = "none"
    devices: Literal["all", "one"] = "all"
    device_by_launcher: bool = False
    """With one device per rank, let the launcher choose the closest one."""
    mpi: str | None = None
    host_file: str | None = None
    """Path of a file that lists the nodes to use, one host per line, for launchers that read one."""
    host_list: str | None = None
    """Folded host list of the nodes to use if they are only a part of the allocation."""
    output_dir: str | None = None
    """Directory for the ranks' output, for launchers whose daemons write one labelled file per node."""
    step_name: str = "windlass"
    time_limit: str | None = None
    environment_names: tuple[str, ...] = ()
    """Names of variables that the ranks need, for launchers that pass only named variables."""

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def in_words(self) -> str:
        """`2 nodes with 4 ranks each`."""
        return f"{counted(self.nodes, 'node')} with {counted(self.ranks_per_node, 'rank')} each"


class NodeStepSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A small task to start now on each of these nodes, next to the ranks. It reserves no core, device or memory."""

    nodes: int
    hosts: tuple[str, ...] = ()
    """The nodes by name. If empty, the first `nodes` of the allocation."""
    host_file: str | None = None
    """Where the runtime may write the hosts, for launchers that read them from a file. If None, use arguments."""
    name: str = "windlass-step"
    devices: bool = False
    """The task reads the node's devices, which the ranks use. If false, it sees no devices where that is possible."""
    executable: str = ""
    """The site's launcher. If empty, the usual name."""
    environment_names: tuple[str, ...] = ()
    """Names of variables that the task needs, for launchers that pass only named variables."""


class NodeStep(msgspec.Struct, frozen=True, kw_only=True):
    """A node step as the launcher starts it. Its output is not labelled, and it ends with the job."""

    arguments: tuple[Argument, ...] = ()
    """The command line before the program, with the placeholders of `PLACEHOLDERS`.

    If empty, windlass starts the only task itself."""
    host_file: str | None = None
    host_file_text: str = ""
    """The required content of `host_file` before the step starts, if `host_file` is not None."""
    prologue: tuple[str, ...] = ()
    """Shell lines that make the launcher available, if the job loads modules or activates an environment."""
    place: tuple[str, ...]
    """Variables that contain the index of a task's node among the hosts, the most reliable first."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables that the launcher needs. They replace the user's values."""
    lookup_argv: tuple[str, ...] = ()
    """Prints the folded hosts of all brokers in the brokers' order, for the placeholders that name brokers."""
    lookup_hosts: tuple[str, ...] = ()
    """The hosts whose brokers the placeholders name."""
    follows_stdin: bool = False
    """Every task sees the end of the launcher's standard input. If false, send `stop_signal` to the launcher."""
    stop_signal: signal.Signals = signal.SIGTERM
    """The signal that the launcher forwards to its tasks, after which it gives them time to end."""


LAST_LINE = "\x1e"
"""Marks the end of a rank's output, alone on the last line or at the end of it."""
SIGNAL_FILE = "signal"
"""File in the run folder with the name of the signal that the launcher's `carrier` represents."""
RUN_MARK = "{run_mark}"
"""Placeholder in the arguments of a launch for a short string that is unique to the run folder."""
MAX_PIECES = 1024
"""Maximum number of pieces of a cut line that are joined. No joined line is longer than a megabyte."""
PLACE_VARIABLE = "WINDLASS_NODE_RANK"
"""Contains the node index of a node step's task if the launcher has no such variable."""
PLACEHOLDERS = ("{run_dir}", "{broker_ranks}", "{broker_order}")
"""Values that are known only in the job. The runtime replaces them.

They are the run folder, the brokers of the hosts as an ascending set, and the brokers in the order of the hosts."""


def binding_argument(variable: str) -> Argument:
    """`--cpu-bind` with the value of a variable of the job."""
    because = f"the job's {variable} says where ranks sit"
    return Argument(words=(f"--cpu-bind=${{{variable}}}",), because=because, expand=True)


class Launcher(ABC):
    """Base class of the backends. Class attributes describe what a launcher can do. Methods are pure."""

    name: ClassVar[str]
    executable: ClassVar[str]
    variables: ClassVar[RankVariables]
    output: ClassVar[Literal["files", "stream", "pipes"]]
    """Where the ranks' output arrives.

    `files`: the launcher's daemons write one file per node, named by `node_log`, into `output_dir`. Every line has the
    rank as its label. `stream`: all output arrives labelled on the launcher's stdout and stderr. `pipes`: windlass has
    one pipe per rank (the local launcher)."""
    node_log: ClassVar[str] = "node-{node_rank:04d}.log"
    """Name of a node's log, by the index of the node in the step.

    Host names do not work, because `gethostname` on the node may differ from the scheduler's name of the node."""
    binds_lists: ClassVar[bool]
    """Accepts one CPU list per local rank. Otherwise the rank script binds."""
    takes_binding_words: ClassVar[bool] = False
    """Accepts `cpu_bind_variable`, a site's or a user's keywords for the launcher's `--cpu-bind`."""
    finds_hosts: ClassVar[bool] = True
    """Finds the hosts of the job itself. Otherwise it starts every rank on this host unless it gets a host file."""
    names_failed_rank: ClassVar[bool]
    """Its messages always name the first failed rank. Otherwise the rank script stays the parent and reports it."""
    ends_others: ClassVar[bool] = True
    """If one rank fails, the launcher ends the others, even if they never called MPI."""
    sends_alarm: ClassVar[bool] = False
    """At the time limit its tasks and their child processes get SIGALRM instead of SIGTERM."""
    glues_last_lines: ClassVar[bool] = False
    """If a rank's last line has no newline, the next label follows on the same line and cannot be distinguished.

    The rank script therefore ends the output of its rank with `LAST_LINE`."""
    cut_bytes: ClassVar[int] = 0
    """Its daemons cut a line of a node's log after this number of bytes, and label the rest as a separate line.

    The rest may be empty, so a line of exactly this length is never complete. 0: the daemons do not cut lines."""
    multi_node: ClassVar[bool] = True
    carrier: ClassVar[signal.Signals | None] = None
    """The only signal that the launcher forwards to the process groups of the ranks.

    `SIGNAL_FILE` in the run folder names the intended signal, and the rank script reads it. None: the launcher forwards
    every signal unchanged."""
    reaches_groups: ClassVar[bool] = False
    """A signal reaches both the rank script and its rank, so the script does not forward it to the rank."""
    hurries: ClassVar[bool] = False
    """It kills the ranks soon after SIGTERM and ignores their grace period, so ranks are stopped with the `carrier`."""
    again: ClassVar[tuple[str, ...]] = ()
    """Arguments for a start after a failed one, if remaining processes of the failed start could block it."""
    unwatched: ClassVar[tuple[str, ...]] = ()
    """Arguments for a start where no windlass process monitors the ranks (a standalone script).

    With them the launcher ends the other ranks itself, as far as it can."""

    @abstractmethod
    def arguments(self, spec: LaunchSpec, site: LauncherSpec) -> tuple[Argument, ...]:
        """The command line before the program, executable first. Each argument has its reason."""

    @abstractmethod
    def node_step(self, spec: NodeStepSpec) -> NodeStep:
        """How to start a small task on each of these nodes next to the ranks, regardless of what the ranks hold."""

    def path_word(self, path: str) -> str:
        """Write a path for this launcher's arguments. Raises `UsageError` if that is not possible."""
        return path

    def host_file_text(self, hosts: Iterable[str], spec: LaunchSpec) -> str | None:
        """Text of the host file for `spec.host_file`, or None if the launcher does not read one."""
        return None

    @abstractmethod
    def parse_line(self, line: str) -> tuple[int | None, str]:
        """Rank and text of one labelled line. The rank is None for a line that the launcher wrote."""

    def segments(self, line: str) -> tuple[tuple[int | None, str], ...]:
        """Pieces of one line of the stream, each with its rank.

        Only launchers that label each write of a rank, even half a line, return more than one. See `LineReader`."""
        return (self.parse_line(line),)

    def is_noise(self, message: str) -> bool:
        """Whether a message of the launcher is useless to the user. Such messages stay in the launcher's log."""
        return False

    def parse_failure(self, messages: Iterable[str], exit_code: int) -> RankFailure | None:
        """The first failed rank according to the launcher's messages, or None if they do not name it."""
        return None

    def signal_argv(self, step_name: str, sig: signal.Signals, pid: int) -> tuple[str, ...] | None:
        """A command that sends a signal to every rank of the step, or None if the launcher forwards signals.

        For SIGTERM, the command ends the launcher `pid` if it finds no step."""
        return None

    def lost_place(self, message: str, argv: tuple[str, ...]) -> int | None:
        """The index of the node that this message of a node step, started as `argv`, reports as lost.

        Only for launchers that number their nodes. None for any other message."""
        return None


class LineReader:
    """Joins the pieces of the ranks' lines. Keep one reader for each stream.

    hydra and Open MPI label each read from a rank, not each line. Unbuffered Python writes a line in two pieces, so a
    rank can appear twice in one line, or inside another rank's line."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._begun: dict[int | None, list[str]] = {}

    def feed(self, line: str) -> tuple[int | None, str]:
        """Rank and text of the line that this one ends. Pieces of other ranks' lines are kept until those lines end."""
        *begun, (rank, text) = self._launcher.segments(line)
        for other, piece in begun:
            self._begun.setdefault(other, []).append(piece)
        return rank, "".join(self._begun.pop(rank, ())) + text

    def flush(self) -> tuple[tuple[int | None, str], ...]:
        """Incomplete lines at the end of the stream."""
        rest = tuple((rank, "".join(pieces)) for rank, pieces in self._begun.items())
        self._begun.clear()
        return rest


def labelled_pieces(label: re.Pattern[str], line: str) -> tuple[tuple[int | None, str], ...]:
    """Split the line at every label. The label's group `rank` is the rank."""
    found = list(label.finditer(line))
    if not found:
        return ((None, line),)
    ends = [match.start() for match in found[1:]] + [len(line)]
    pieces = [(int(match.group("rank")), line[match.end() : end]) for match, end in zip(found, ends, strict=True)]
    return (*(((None, line[: found[0].start()]),) if found[0].start() else ()), *pieces)


def one_line_alone(label: re.Pattern[str], line: str) -> tuple[int | None, str]:
    """Rank and text of one line without its context.

    If several ranks share the line, the first one gets all of it with the labels. So no text is lost, but only a
    `LineReader` can separate the ranks."""
    pieces = labelled_pieces(label, line)
    first = pieces[0][0]
    if all(rank == first for rank, _ in pieces):
        return first, "".join(text for _, text in pieces)
    found = label.match(line)
    return first, line[found.end() :] if found else line


def decode(data: bytes) -> str:
    """Output of a rank as text. Bytes that are not UTF-8 can be encoded back unchanged."""
    return data.decode("utf-8", "surrogateescape")


def label_line(rank: int, text: str) -> str:
    """A line of a rank with the label that most launchers use, and that windlass uses for output from pipes."""
    return f"{rank}: {text}"


def parse_label(line: str) -> tuple[int | None, str]:
    """The reverse of `label_line`. Numbers may be padded with zeros or spaces. Any other line has the rank None."""
    match = _LABEL.match(line)
    return (int(match.group(1)), match.group(2) or "") if match else (None, line)


class NodeLogReader:
    """Reads a node's log, labelled by the launcher or by windlass. Keep one reader for each file.

    It joins lines that the launcher's daemons cut."""

    def __init__(self, launcher: Launcher) -> None:
        self._parse = launcher.parse_line if launcher.output == "files" else parse_label
        self._cut_bytes = launcher.cut_bytes
        self._begun: dict[int, list[str]] = {}

    def feed(self, line: str) -> tuple[int | None, str] | None:
        """Rank and text of the line that this one ends, or None if the line continues."""
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
        """Incomplete lines at the end of the file."""
        rest = tuple((rank, _joined(pieces)) for rank, pieces in self._begun.items())
        self._begun.clear()
        return rest


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _joined(pieces: list[str]) -> str:
    """Join the pieces of one line. The cut may be inside a character."""
    return pieces[0] if len(pieces) == 1 else decode(b"".join(_encode(piece) for piece in pieces))


def signal_number(words: str) -> int | None:
    """The signal with this description in the C library ("Killed", "Segmentation fault (core dumped)")."""
    cleaned = words.removesuffix(" (core dumped)")
    return next((int(number) for number in signal.Signals if signal.strsignal(number) == cleaned), None)


def own_message(line: str) -> tuple[int | None, str]:
    """A line that no rank wrote."""
    return None, line
