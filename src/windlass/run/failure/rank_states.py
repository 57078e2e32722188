"""Where the ranks of a hanging run are: the state of each process and its stack, and which rank holds the others up."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from windlass.base.notation.cpulist import format_cpulist
from windlass.node.sys.reading import read_text
from windlass.run.failure.rank_logs import RankLogs

_KEPT_LINES = 200
_THREAD = ("Thread 0x", "Current thread 0x")
_STOPPED, _GONE, _DISK = frozenset("Tt"), frozenset({"gone", "Z", "X"}), frozenset("D")
_FRAME = re.compile(
    r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)|'
    r"^\s+(?P<name2>\S+) \((?P<file2>[^()]+):(?P<line2>\d+)\)"
)


class RankState(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of a hanging run. `state` is the kernel's letter, or `gone`."""

    rank: int
    host: str
    state: str
    frame: str = ""
    """The innermost frame of the script's or torch's own Python code."""

    def text(self) -> str:
        if self.state in _STOPPED:
            return "stopped (SIGSTOP)"
        if self.state in _GONE:
            return "gone"
        if self.state in _DISK:
            return "waiting for a disk" + (f" in {self.frame}" if self.frame else "")
        return f"in {self.frame}" if self.frame else "alive, no stack"


def rank_states(logs: RankLogs, said: Iterable[Mapping[str, Any]]) -> tuple[RankState, ...]:
    """Rank by rank, from the lines that node diagnostics said and the stacks that they left."""
    lines = sorted((line for line in said if "rank" in line), key=lambda line: int(line["rank"]))
    stacks = read_stacks(logs) if lines else {}
    return tuple(
        RankState(
            rank=line["rank"],
            host=logs.host(line["rank"], line["host"]),
            state=line["state"],
            frame=top_frame(stacks.get(line["rank"], "")),
        )
        for line in lines
    )


def straggler(ranks: tuple[RankState, ...]) -> RankState | None:
    """Who holds the others up: one that cannot run at all, else the only one that is elsewhere than all others. None
    where all of them are stopped, gone or waiting for a disk: then no rank waits for another."""
    for letters in (_STOPPED, _GONE, _DISK):
        those = [one for one in ranks if one.state in letters]
        if those and (len(those) < len(ranks) or len(ranks) == 1):
            return those[0]
    frames = Counter(one.frame for one in ranks if one.frame)
    if len(frames) < 2:
        return None
    (common, count), *_ = frames.most_common(1)
    others = [one for one in ranks if one.frame and one.frame != common]
    return others[0] if len(others) < count else None


def states_text(ranks: tuple[RankState, ...]) -> str:
    """`ranks 0-2 in all_reduce (…); rank 3 stopped`, the largest group first."""
    groups: dict[str, list[int]] = {}
    for one in ranks:
        groups.setdefault(one.text(), []).append(one.rank)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return "; ".join(
        f"rank{'s' if len(numbers) > 1 else ''} {format_cpulist(tuple(sorted(numbers)))} {text}"
        for text, numbers in ordered
    )


def top_frame(text: str) -> str:
    """The innermost frame of the main thread, as `name (file:line)`: faulthandler and py-spy both write it first."""
    main = ""
    for block in re.split(r"\n(?=(?:Current thread|Thread) )", "\n" + text):
        first = block.strip().split("\n", 1)[0]
        if first.startswith("Current thread") or "MainThread" in first:
            main = block
    for line in (main or text).splitlines():
        match = _FRAME.match(line)
        if match:
            file = match["file"] or match["file2"]
            return f"{match['name'] or match['name2']} ({Path(file).name}:{match['line'] or match['line2']})"
    return ""


def read_stacks(logs: RankLogs) -> dict[int, str]:
    """The stacks of all ranks: as py-spy wrote them into the evidence, or as faulthandler did into the output."""
    found = _stacks_in_logs(logs)
    for path in (logs.folder / "evidence").glob("stack-rank-*.txt"):
        with contextlib.suppress(OSError, ValueError):
            text = read_text(path, within=logs.folder, errors="replace")
            if "MainThread" in text:
                found[int(path.stem.rpartition("-")[2])] = text
    return found


def _stacks_in_logs(logs: RankLogs) -> dict[int, str]:
    """The last stacks that faulthandler wrote, by rank."""
    found: dict[int, str] = {}
    for node in range(logs.nodes):
        for rank, lines in logs.tails(node, _KEPT_LINES).items():
            starts = [index for index in range(len(lines)) if _begins_stack(lines, index)]
            if starts:
                found[rank] = "\n".join(lines[starts[-1] :])
    return found


def _begins_stack(lines: tuple[str, ...], index: int) -> bool:
    """A line that names a thread, and no thread of the same dump before it."""
    return lines[index].startswith(_THREAD) and (index == 0 or not _in_stack(lines[index - 1]))


def _in_stack(line: str) -> bool:
    return line == "" or line.startswith(("  File ", *_THREAD))
