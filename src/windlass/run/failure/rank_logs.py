"""Read the output files of the ranks of one start: one labelled log per node, the same for all launchers."""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from windlass.backends.launchers import get_launcher
from windlass.backends.launchers.base import Launcher, NodeLogReader
from windlass.base.notation.hostlist import expand_hostlist
from windlass.errors import MachineError
from windlass.model.jsontext import from_json
from windlass.model.plan import Plan
from windlass.node.sys.atomic import open_append, replace_file
from windlass.node.sys.reading import cut_lines, open_plain, read_text

_TAIL_BYTES = 4 << 20
_MAX_LINE = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class RankLogs:
    """Locations of the output of each rank. `folder` is the run folder, or the folder of an earlier attempt."""

    folder: Path
    launcher: Launcher
    nodes: int
    ranks_per_node: int
    hosts: tuple[str, ...] = ()
    """The scheduler's host names. Empty for a run on this machine only."""
    since: Mapping[str, int] = field(default_factory=dict)
    """Size of each file when the last start in place began. Only later lines count as evidence."""

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node

    def path(self, rank: int) -> Path:
        """Return the file that contains this rank's output."""
        return self.node_path(rank // self.ranks_per_node)

    def host(self, rank: int, said: str) -> str:
        """Return the scheduler's name for the host of a rank.

        The scheduler's name is needed to exclude a host, and a node's own name may differ. Ranks are in blocks, in the
        order of the hosts.
        """
        node = rank // self.ranks_per_node
        return self.hosts[node] if node < len(self.hosts) else said

    def lines(self, ranks: Iterable[int] | None = None) -> Iterator[tuple[int, str]]:
        """Yield every line of these ranks (None: of all), node by node.

        A missing file has no lines. A file that cannot be read raises `MachineError`.
        """
        wanted = None if ranks is None else frozenset(ranks)
        for node in self._nodes_of(wanted):
            path = self.node_path(node)
            yield from self._read(path, wanted, max(self.since.get(path.name, 0) - 1, 0))

    def last_lines(self, ranks: Iterable[int], count: int) -> dict[int, tuple[str, ...]]:
        """Return the last lines of each of these ranks. Empty for a rank without output or with an unreadable file."""
        found: dict[int, tuple[str, ...]] = {}
        wanted = frozenset(ranks)
        for node in self._nodes_of(wanted):
            mine = frozenset(rank for rank in wanted if rank // self.ranks_per_node == node)
            tails = self.tails(node, count)
            if not mine <= tails.keys():  # another rank of this node wrote much more than this one
                tails = self.tails(node, count, whole=True)
            found.update((rank, tails.get(rank, ())) for rank in mine)
        return found

    def tails(self, node: int, count: int, *, whole: bool = False) -> dict[int, tuple[str, ...]]:
        """Return the last lines of each rank near the end of a node's file (or in the `whole` file).

        Empty if the file cannot be read.
        """
        path = self.node_path(node)
        found: dict[int, deque[str]] = {}
        try:
            since = self.since.get(path.name, 0)
            start = max(since - 1, 0 if whole else path.stat().st_size - _TAIL_BYTES, 0)
            for rank, text in self._read(path, None, start):
                found.setdefault(rank, deque(maxlen=count)).append(text)
        except (OSError, MachineError):
            return {}
        return {rank: tuple(lines) for rank, lines in found.items()}

    def node_path(self, node: int) -> Path:
        return self.folder / "out" / self.launcher.node_log.format(node_rank=node)

    def _nodes_of(self, ranks: frozenset[int] | None) -> Iterable[int]:
        return range(self.nodes) if ranks is None else sorted({rank // self.ranks_per_node for rank in ranks})

    def _read(self, path: Path, ranks: frozenset[int] | None, start: int) -> Iterator[tuple[int, str]]:
        try:
            stream = open_plain(path, within=self.folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise MachineError(
                f"cannot read {path}: {error.strerror}",
                hint="is the file system there, and are you the owner of the run?",
            ) from error
        with stream:
            if start:
                stream.seek(start)
                stream.readline(_MAX_LINE)  # probably an incomplete line
            for rank, text in NodeLogReader(self.launcher).read(cut_lines(stream, _MAX_LINE)):
                if rank is not None and (ranks is None or rank in ranks):
                    yield rank, text


SINCE_FILE = "out.since"


def mark_logs(logs: RankLogs) -> dict[str, int]:
    """Record where the logs end now: another start in place begins. Returns the sizes."""
    sizes = {path.name: path.stat().st_size for path in (logs.folder / "out").iterdir()}
    replace_file(str(logs.folder / SINCE_FILE), json.dumps(sizes).encode())
    return sizes


def keep_logs(logs: RankLogs, sizes: Mapping[str, int], folder: Path) -> None:
    """Copy what one start wrote into the folder of its attempt. `logs` are those of that start. Never raises."""
    with contextlib.suppress(OSError):
        (folder / "out").mkdir(mode=0o700, exist_ok=True)
        for name, end in sizes.items():
            with open_plain(logs.folder / "out" / name) as log, open_append(folder / "out" / name) as kept:
                log.seek(logs.since.get(name, 0))
                while data := log.read(min(_MAX_LINE, end - log.tell())):
                    kept.write(data)


def _since(folder: Path) -> dict[str, int]:
    """Return the recorded sizes. A damaged record, or a size beyond the file, counts as none."""
    try:
        found = from_json(read_text(folder / SINCE_FILE).encode(), dict[str, int])
        sizes = {path.name: path.stat().st_size for path in (folder / "out").iterdir()}
        return {name: size for name, size in found.items() if 0 <= size <= sizes.get(name, -1)}
    except (OSError, UnicodeDecodeError, msgspec.DecodeError):
        return {}


def rank_logs(plan: Plan, folder: Path) -> RankLogs:
    """Return the logs of a plan's ranks in this folder."""
    return RankLogs(
        folder=folder,
        launcher=get_launcher(plan.launcher),
        nodes=plan.nodes,
        ranks_per_node=plan.ranks_per_node,
        hosts=expand_hostlist(plan.hosts) if plan.hosts else (),
        since=_since(folder),
    )
