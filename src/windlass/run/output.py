"""Output of ranks: read from pipes or from the node's files, written to one labelled file per node, and displayed.

Files receive the bytes unchanged. Only the terminal output is decoded. Lines stay whole: a partial line is held back
until it ends or the rank does. Only a progress bar is shown on a terminal while it grows.

If the launcher forwards only whole lines, progress bars are drawn from a copy of what the ranks write.
"""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

from windlass.backends.launchers.base import Launcher, NodeLogReader, decode, label_line
from windlass.base.notation.counts import parse_ranks
from windlass.base.notation.style import columns_of, folded, for_terminal, in_colour, painted
from windlass.model.plan import Plan
from windlass.node.sys.atomic import append_descriptor
from windlass.node.sys.reading import open_plain, plain_descriptor

_READ_BYTES = 1 << 16
_LONGEST_LINE = 1 << 20
_MAX_OPEN = 256
_MAX_LIVE = 4


def show_ranks(text: str, world_size: int, *, flag: str = "--show") -> frozenset[int] | None:
    """Ranks to show on the terminal: `0`, `0,3-5`, `all` (None) or `none`. Anything else is a `UsageError`."""
    if text == "all":
        return None
    if text == "none":
        return frozenset()
    return frozenset(parse_ranks(text, flag, world_size=world_size, words="all, none"))


class OutputView:
    """The merged view on the terminal: lines of the chosen ranks with a prefix, and windlass messages on stderr."""

    def __init__(
        self,
        shown: frozenset[int] | None,
        out: TextIO,
        err: TextIO,
        *,
        width: int = 1,
        labels: bool = True,
        foreign: bool = False,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Create a view.

        `foreign`: another user may have written the lines, so they must not move the cursor of a terminal. `environ`
        decides whether a terminal gets colours. Without it there are no colours.
        """
        self._shown = shown
        self._out = out
        self._err = err
        self._width = width
        self._labels = labels
        self.component = ""
        """The component of a job whose output this is."""
        self._tint = out.isatty()
        self._colours = in_colour(self._tint, environ or {})
        self._note_colours = in_colour(err.isatty(), environ or {})
        self._escapes = foreign and self._tint
        self._broken: list[TextIO] = []
        self._bar = False

    def of_component(self, name: str, world_size: int) -> OutputView:
        """Return a view of one component of a job: its name is part of every label and note."""
        view = copy.copy(self)
        view.component, view._labels, view._width = name, True, len(str(world_size - 1))
        return view

    def shows(self, rank: int | None) -> bool:
        if self._out in self._broken:
            return False
        return rank is not None and (self._shown is None or rank in self._shown)

    def live_ranks(self, world_size: int) -> tuple[int, ...]:
        """Return the few ranks whose lines are shown while they grow. Empty if the output is not a terminal."""
        shown = range(world_size) if self._shown is None else sorted(self._shown)
        return tuple(shown) if self._tint and len(shown) <= _MAX_LIVE else ()

    @property
    def shown(self) -> frozenset[int] | None:
        return self._shown

    def line(self, rank: int, text: str) -> None:
        if not self.shows(rank):
            return
        self._end_bar()
        seen = _shown(_last_drawn(text) if self._tint else text)
        self._write(self._out, f"{self._label(rank)}{for_terminal(seen, coloured=True) if self._escapes else seen}\n")

    def bar(self, rank: int, text: str) -> None:
        """Show an incomplete line. On a terminal, a progress bar is drawn in place until the next line."""
        if not self._tint or "\r" not in text or not self.shows(rank):
            return
        drawn = _shown(_last_drawn(text))[: columns_of(self._out) - self._width - len("[] ") - 1]
        self._write(self._out, f"\r\x1b[K{self._label(rank)}{drawn}")
        self._bar = True

    def _end_bar(self) -> None:
        if self._bar:
            self._bar = False
            self._write(self._out, "\r\x1b[K")

    def _label(self, rank: int) -> str:
        if not self._labels:
            return ""
        label = f"[{self.component}{' ' if self.component else ''}{rank:>{self._width}}]"
        return f"\x1b[2m{label}\x1b[0m " if self._colours else f"{label} "

    def show_job(self, job: object) -> bool:
        """Show what the samplers measured for the whole job, in a view that draws it. False: this view shows lines."""
        return False

    def note(self, text: str) -> None:
        """Show a message of windlass or of the launcher. Control characters in it cannot move the cursor."""
        if self.component:
            text = text.replace("windlass: ", f"windlass: {self.component}: ", 1)
        safe = for_terminal(text, coloured=True).encode("utf-8", "replace").decode()
        self._end_bar()
        if self._err.isatty():
            safe = folded(safe, columns_of(self._err))
        self._write(self._err, (painted(safe) if self._note_colours else safe) + "\n")

    def _write(self, stream: TextIO, text: str) -> None:
        """Write to a stream. A write error does not end the run, because the output is also in its files.

        Examples: a reader that exited (`| head`), a full disk behind `>`, a closed terminal. The error is reported
        once. It is not reported if the reader exited.
        """
        if stream in self._broken:
            return
        try:
            stream.write(text)
            stream.flush()
        except (OSError, ValueError) as error:
            self._broken.append(stream)
            _detach(stream)
            if isinstance(error, OSError) and not isinstance(error, BrokenPipeError) and stream is self._out:
                self.note(f"windlass: cannot write to the standard output: {error.strerror}; the run continues")


def _last_drawn(text: str) -> str:
    """Return the last visible state of a line that was redrawn several times."""
    return text if "\r" not in text else next((piece for piece in reversed(text.split("\r")) if piece.strip()), "")


def _shown(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _detach(stream: TextIO) -> None:
    """Redirect a broken stream to /dev/null. Its buffer would fail again when the interpreter exits."""
    with contextlib.suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)


ViewMaker = Callable[[Plan], OutputView]
"""Creates the view of a run from its plan (number of ranks). Raises `UsageError` before anything is created."""


def terminal_view(show: str, out: TextIO, err: TextIO, environ: Mapping[str, str] | None = None) -> ViewMaker:
    """Create views that write the lines of the chosen ranks to `out`, and windlass messages to `err`.

    The output is in colour if `environ` (NO_COLOR, TERM and so on) allows it.
    """

    def make(plan: Plan) -> OutputView:
        size = max((part.world_size for part in plan.parts), default=plan.world_size)
        return OutputView(show_ranks(show, size), out, err, width=len(str(size - 1)), environ=environ)

    return make


class Lines:
    """Reads bytes from a descriptor and forwards whole lines. An optional callback receives the incomplete line."""

    def __init__(
        self, descriptor: int, on_line: Callable[[bytes], None], on_part: Callable[[bytes], None] | None = None
    ) -> None:
        self.descriptor = descriptor
        self._on_line = on_line
        self._on_part = on_part
        self._rest = b""
        self.bytes_read = 0

    def read(self) -> bool:
        """Read the available bytes. False at the end of the stream."""
        try:
            data = os.read(self.descriptor, _READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if not data:
            self.finish()
            return False
        self.bytes_read += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._on_line(line)
        if len(self._rest) > _LONGEST_LINE:
            self.finish()
        elif self._rest and self._on_part:
            self._on_part(self._rest[-_READ_BYTES:])
        return True

    def finish(self) -> None:
        if self._rest:
            rest, self._rest = self._rest, b""
            self._on_line(rest)


class NodeLogs:
    """One file per node, each line labelled with its rank. For launchers that do not write files themselves."""

    def __init__(self, folder: Path, launcher: Launcher, ranks_per_node: int) -> None:
        self._folder = folder
        self._launcher = launcher
        self._ranks_per_node = ranks_per_node
        self._open: dict[int, int] = {}
        self.lost: OSError | None = None

    def write(self, rank: int, line: bytes) -> None:
        """Append one line. A full disk does not end the run: the first error is kept in `lost` and reported once."""
        node = rank // self._ranks_per_node
        label = label_line(rank, "").encode()
        data = label + line + b"\n"
        try:
            while data:  # a disk that is nearly full accepts only a part
                data = data[os.write(self._descriptor(node), data) :]
        except OSError as error:
            self.lost = self.lost or error

    def _descriptor(self, node: int) -> int:
        if node not in self._open:
            if len(self._open) >= _MAX_OPEN:
                os.close(self._open.pop(next(iter(self._open))))
            path = self._folder / self._launcher.node_log.format(node_rank=node)
            self._open[node] = append_descriptor(path)
        return self._open[node]

    def close(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()


class Tail:
    """Follows the nodes' files, written by a launcher's daemons or by windlass, as far as the view needs them."""

    def __init__(
        self, plan: Plan, folder: Path, launcher: Launcher, view: OutputView, since: Mapping[str, int] | None = None
    ) -> None:
        """`since`: where to begin in each file. Missing: at its start."""
        nodes = range(plan.nodes)
        if view.shown is not None:
            nodes = sorted({rank // plan.ranks_per_node for rank in view.shown})  # type: ignore[assignment]
        self._launcher = launcher
        self._view = view
        self._since = since or {}
        self._paths = {node: folder / launcher.node_log.format(node_rank=node) for node in nodes}
        self._lines: dict[int, Lines] = {}
        self._readers: list[NodeLogReader] = []

    def poll(self) -> bool:
        """Show new lines. True if there were any."""
        moved = False
        for node, path in self._paths.items():
            if node not in self._lines:
                try:
                    descriptor = plain_descriptor(path, within=path.parent.parent)
                except OSError:
                    continue
                os.lseek(descriptor, self._since.get(path.name, 0), os.SEEK_SET)
                self._lines[node] = Lines(descriptor, self._shower())
            lines = self._lines[node]
            before = os.lseek(lines.descriptor, 0, os.SEEK_CUR)
            while os.fstat(lines.descriptor).st_size > os.lseek(lines.descriptor, 0, os.SEEK_CUR) and lines.read():
                pass
            moved = moved or os.lseek(lines.descriptor, 0, os.SEEK_CUR) > before
        return moved

    def _shower(self) -> Callable[[bytes], None]:
        reader = NodeLogReader(self._launcher)
        self._readers.append(reader)
        return lambda line: self._show(reader.feed(decode(line)))

    def _show(self, line: tuple[int | None, str] | None) -> None:
        if line is not None and line[0] is not None:
            self._view.line(line[0], line[1])

    def close(self) -> None:
        for lines in self._lines.values():
            lines.finish()
            os.close(lines.descriptor)
        for reader in self._readers:
            for line in reader.flush():
                self._show(line)
        self._lines.clear()
        self._readers.clear()


_TAIL_BYTES = 4096


class LiveBars:
    """Draws the unfinished last line of each of these ranks. Complete lines arrive by another path."""

    def __init__(self, folder: Path, ranks: tuple[int, ...], view: OutputView) -> None:
        self._folder = folder
        self._view = view
        self._sizes = dict.fromkeys(ranks, 0)

    def poll(self) -> None:
        """Draw what has grown. Missing or unreadable files have no bar."""
        for rank, seen in self._sizes.items():
            with contextlib.suppress(OSError), open_plain(self._folder / str(rank)) as copy:
                size = os.fstat(copy.fileno()).st_size
                if size == seen:
                    continue
                self._sizes[rank] = size
                copy.seek(max(0, size - _TAIL_BYTES))
                self._view.bar(rank, decode(copy.read().rpartition(b"\n")[2]))

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
