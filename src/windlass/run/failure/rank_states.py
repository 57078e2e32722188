"""The ranks of a hanging run: the state and stack of each process, and the rank that holds up the others."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from windlass.base.notation.counts import format_cpulist
from windlass.node.sys.reading import read_text
from windlass.run.failure.rank_logs import RankLogs

_STOPPED, _GONE, _DISK = frozenset("Tt"), frozenset({"gone", "Z", "X"}), frozenset("D")
_FRAME = re.compile(
    r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)|'
    r"^\s+(?P<name2>\S+) \((?P<file2>[^()]+):(?P<line2>\d+)\)"
)
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3|^<frozen ")
_COLLECTIVE = re.compile(
    r"(all_?reduce|all_?gather|reduce_scatter|all_?to_?all|broadcast|barrier|gather|scatter)(_\w+)?", re.IGNORECASE
)
"""Functions of torch.distributed, and of other libraries that use the same names."""
_UNSEEN = "alive, no stack"
_NO_STACKS = "no Python process wrote a stack (-I, -E and -S disable it); py-spy in the nodes' PATH shows all stacks"


class Frames(msgspec.Struct, frozen=True):
    """Information from the stack of a rank's main thread."""

    top: str = ""
    """The innermost Python frame, as `name (file:line)`."""
    script: str = ""
    """The innermost frame outside of libraries, if it differs."""
    collective: bool = False


class RankState(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of a hanging run. `state` is the kernel's letter, or `gone`."""

    rank: int
    host: str
    state: str
    frames: Frames = Frames()

    @property
    def gone(self) -> bool:
        """Whether the rank had ended on its own when the stacks were taken."""
        return self.state in _GONE

    def text(self) -> str:
        if self.state in _STOPPED:
            return "stopped (SIGSTOP)"
        if self.gone:
            return "gone"
        place = self.frames.top + (f" from {self.frames.script}" if self.frames.script else "")
        if self.state in _DISK:
            return "waiting for a disk" + (f" in {place}" if place else "")
        return f"in {place}" if place else _UNSEEN


def rank_states(logs: RankLogs, said: Iterable[Mapping[str, Any]]) -> tuple[RankState, ...]:
    """Return the state of each rank, from the output of the node diagnostics and the stacks that they saved."""
    lines = sorted((line for line in said if "rank" in line), key=lambda line: int(line["rank"]))
    stacks = read_stacks(logs) if lines else {}
    return tuple(
        RankState(
            rank=line["rank"],
            host=logs.host(line["rank"], line["host"]),
            state=line["state"],
            frames=frames_of(stacks.get(line["rank"], "")),
        )
        for line in lines
    )


def straggler(ranks: tuple[RankState, ...], behind: tuple[int, ...] = ()) -> RankState | None:
    """Return the rank that holds up the others, or None.

    The rules, in this order:
    - a rank that cannot run at all
    - the only rank that is `behind` in the flight records
    - a rank in no collective while most others are in one
    - a rank at another place than most others

    None if all ranks are stopped, gone or waiting for a disk: then no rank waits for another.
    """
    for letters in (_STOPPED, _GONE, _DISK):
        those = [one for one in ranks if one.state in letters]
        if those and (len(those) < len(ranks) or len(ranks) == 1):
            return those[0]
    if len(behind) == 1:
        return next((one for one in ranks if one.rank == behind[0]), None)
    seen = [one for one in ranks if one.frames.top]
    outside = [one for one in seen if not one.frames.collective]
    if outside and 2 * len(outside) <= len(seen) and len(outside) < len(seen):
        return outside[0]
    frames = Counter(one.frames.top for one in seen)
    if len(frames) < 2:
        return None
    (common, count), *_ = frames.most_common(1)
    others = [one for one in seen if one.frames.top != common]
    return others[0] if len(others) < count else None


def states_text(ranks: tuple[RankState, ...]) -> str:
    """Format the states, for example `ranks 0-2 in all_reduce (…); rank 3 stopped`, largest group first.

    If no rank has a stack, adds how to get stacks.
    """
    groups: dict[str, list[int]] = {}
    for one in ranks:
        groups.setdefault(one.text(), []).append(one.rank)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    said = [
        f"rank{'s' if len(numbers) > 1 else ''} {format_cpulist(tuple(sorted(numbers)))} {text}"
        for text, numbers in ordered
    ]
    return "; ".join([*said, _NO_STACKS] if set(groups) == {_UNSEEN} else said)


def frames_of(text: str) -> Frames:
    """Extract the frames of the main thread. faulthandler and py-spy both write the innermost frame first."""
    main = ""
    for block in re.split(r"\n(?=(?:Current thread|Thread) )", "\n" + text):
        first = block.strip().split("\n", 1)[0]
        if first.startswith("Current thread") or "MainThread" in first:
            main = block
    found = [match for line in (main or text).splitlines() if (match := _FRAME.match(line))]
    if not found:
        return Frames()
    files = [match["file"] or match["file2"] for match in found]
    names = [match["name"] or match["name2"] for match in found]
    shown = [
        f"{name} ({Path(file).name}:{match['line'] or match['line2']})"
        for name, file, match in zip(names, files, found, strict=True)
    ]
    own = next((number for number, file in enumerate(files) if not _LIBRARY.search(file)), 0)
    return Frames(
        top=shown[0], script=shown[own] if own else "", collective=any(_COLLECTIVE.fullmatch(name) for name in names)
    )


def read_stacks(logs: RankLogs) -> dict[int, str]:
    """Return the stacks that the nodes saved in the evidence, by rank."""
    found: dict[int, str] = {}
    for path in (logs.folder / "evidence").glob("stack-rank-*.txt"):
        with contextlib.suppress(OSError, ValueError):
            found[int(path.stem.rpartition("-")[2])] = read_text(path, within=logs.folder, errors="replace")
    return found
