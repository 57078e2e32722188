"""Gathers what is to be seen of an attempt: ends, last lines, a look at every node; keeps it as evidence.

A look is one small task per node beside the ranks, with a deadline. A node that does not answer while the others do is
itself the finding.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sys
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

import windlass.agents.node
from windlass.agents.command import script_words
from windlass.errors import CommandError, WindlassError
from windlass.failure.last_lines import traceback_of
from windlass.failure.root_cause import End
from windlass.launchers import get_launcher
from windlass.model.plan import Plan
from windlass.notation.hostlist import expand_hostlist
from windlass.plan.node_step import plan_node_step
from windlass.run.folder import RunFolder
from windlass.run.node_step import run_node_step
from windlass.run.output import last_lines, rank_lines, rank_log

_LOOK_S = 30.0
_ALONE_S = 10.0
_MOST_ALONE = 16
_KEPT_LINES = 200
_LINES = 60
_THREAD = ("Thread 0x", "Current thread 0x")
_MOST_RANKS = 64
"""Ranks whose last lines are kept one by one; the whole logs stay where they are anyway."""


class Looked(msgspec.Struct, frozen=True, kw_only=True):
    """What the nodes said."""

    answered: frozenset[str]
    lines: tuple[dict[str, Any], ...]
    refused: frozenset[str] = frozenset()
    """Hosts that the launcher itself says it cannot start anything on."""


def host_of(plan: Plan, rank: int, said: str) -> str:
    """The host of a rank as the scheduler calls it, which is what can be left out; nodes may call themselves otherwise.
    Ranks are in blocks, in the order of the hosts."""
    hosts = expand_hostlist(plan.hosts) if plan.hosts else ()
    node = rank // plan.ranks_per_node
    return hosts[node] if node < len(hosts) else said


def read_ends(plan: Plan, folder: RunFolder) -> tuple[End, ...]:
    """Every end that a rank script reported; lines that are not whole are passed over."""
    found = []
    for file in sorted(folder.part("ends").iterdir()):
        for line in file.read_text(errors="replace").splitlines():
            fields = line.split("\t")
            with contextlib.suppress(ValueError, IndexError):
                rank = int(fields[1])
                host = host_of(plan, rank, fields[2])
                found.append(End(at=float(fields[0]), rank=rank, host=host, code=int(fields[3])))
    return tuple(found)


def failed_lines(plan: Plan, folder: RunFolder, ends: Iterable[End]) -> dict[int, tuple[str, ...]]:
    """The last lines of ranks that failed, the earliest first, up to a number."""
    failed = sorted((end for end in ends if end.code != 0), key=lambda end: end.at)[:_MOST_RANKS]
    launcher = get_launcher(plan.launcher)
    return {
        end.rank: last_lines(rank_log(folder.path, plan, launcher, end.rank), launcher, end.rank, _LINES)
        for end in failed
    }


# Looking at the nodes


def look_at_nodes(
    plan: Plan, folder: RunFolder, environ: Mapping[str, str], what: str, *words: str, deadline_s: float = _LOOK_S
) -> Looked:
    """Run the look everywhere. Nodes that did not answer together are asked alone: one dead node can silence a whole
    step. Never raises; what was said before a deadline counts."""
    hosts = expand_hostlist(plan.hosts) if plan.hosts else ()
    looked = _look(plan, folder, environ, hosts, (what, str(folder.path)), words, deadline_s)
    missing = [host for host in hosts if host not in looked.answered | looked.refused]
    if not missing or len(hosts) < 2 or len(missing) > _MOST_ALONE:
        return looked
    lines, answered = list(looked.lines), set(looked.answered)
    for host in missing:
        alone = _look(plan, folder, environ, (host,), (what, str(folder.path)), words, _ALONE_S)
        lines += alone.lines
        answered |= alone.answered
    return Looked(answered=frozenset(answered), lines=tuple(lines), refused=looked.refused)


def lost_hosts(plan: Plan, looked: Looked) -> tuple[str, ...]:
    """Hosts of the plan that did not answer, where others did."""
    hosts = expand_hostlist(plan.hosts) if plan.hosts else ()
    if len(hosts) < 2 or not looked.answered:
        return ()
    return tuple(host for host in hosts if host not in looked.answered)


def _look(
    plan: Plan,
    folder: RunFolder,
    environ: Mapping[str, str],
    hosts: tuple[str, ...],
    first: tuple[str, str],
    rest: tuple[str, ...],
    deadline_s: float,
) -> Looked:
    launcher = get_launcher(plan.launcher)
    step = plan_node_step(plan, "look", hosts=hosts, host_file="look-hosts")
    source = (Path(windlass.agents.node.__path__[0]) / "diagnostics.py").read_text()
    program = script_words(source, sys.executable, *first, ",".join(step.place), *rest)
    try:
        done = run_node_step(step, program, environ=environ, timeout_s=deadline_s, folder=folder, check=False)
        said, complaints = done.stdout, done.stderr.splitlines()
    except WindlassError as error:
        said, complaints = (error.output if isinstance(error, CommandError) else ""), []
    lines = tuple(_named(line, hosts) for line in _json_lines(said))
    answered = frozenset(line["host"] for line in lines if line.get("done"))
    found = (launcher.parse_failure([line.strip()], 1) for line in complaints)
    refused = {failure.host for failure in found if failure is not None and failure.rank is None}
    return Looked(answered=answered, lines=lines, refused=frozenset(h for h in hosts if h in refused) - answered)


def _named(line: dict[str, Any], hosts: tuple[str, ...]) -> dict[str, Any]:
    """The line with the host as the plan calls it: by its number, for nodes may call themselves otherwise."""
    node = line.get("node")
    return {**line, "host": hosts[node]} if isinstance(node, int) and node < len(hosts) else line


def _json_lines(text: str) -> Iterable[dict[str, Any]]:
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            found = json.loads(line[line.index("{") :])
            if isinstance(found, dict):
                yield found


# Where ranks stand when nothing moves


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of a hanging run."""

    rank: int
    host: str
    state: str
    frame: str = ""
    """The innermost frame of the script's or torch's own Python code."""

    def words(self) -> str:
        if self.state in {"T", "t"}:
            return "stopped (SIGSTOP)"
        if self.state in {"gone", "Z", "X"}:
            return "gone"
        if self.state == "D":
            return "waiting for a disk" + (f" in {self.frame}" if self.frame else "")
        return f"in {self.frame}" if self.frame else "alive, no stack"


def standings(plan: Plan, looked: Looked, stacks: Mapping[int, str]) -> tuple[Standing, ...]:
    """Rank by rank. `stacks` are texts of stacks by rank, of py-spy or faulthandler."""
    return tuple(
        Standing(
            rank=line["rank"],
            host=host_of(plan, line["rank"], line["host"]),
            state=line["state"],
            frame=top_frame(stacks.get(line["rank"], "")),
        )
        for line in sorted((line for line in looked.lines if "rank" in line), key=lambda line: int(line["rank"]))
    )


_FRAME = re.compile(
    r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)|'
    r"^\s+(?P<name2>\S+) \((?P<file2>[^()]+):(?P<line2>\d+)\)"
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


def odd_one_out(ranks: tuple[Standing, ...]) -> Standing | None:
    """Who holds the others up: one that cannot run at all, else the only one that stands elsewhere than all others."""
    for letters in ({"T", "t"}, {"gone", "Z", "X"}, {"D"}):
        for one in ranks:
            if one.state in letters:
                return one
    places = Counter(one.frame for one in ranks if one.frame)
    if len(places) < 2:
        return None
    (common, count), *_ = places.most_common(1)
    others = [one for one in ranks if one.frame and one.frame != common]
    return others[0] if len(others) < count else None


def standings_text(ranks: tuple[Standing, ...]) -> str:
    """`ranks 0-2 in all_reduce (…); rank 3 stopped`, the largest group first."""
    groups: dict[str, list[int]] = {}
    for one in ranks:
        groups.setdefault(one.words(), []).append(one.rank)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return "; ".join(f"{_ranks(numbers)} {words}" for words, numbers in ordered)


def _ranks(numbers: list[int]) -> str:
    from windlass.notation.cpulist import format_cpulist

    return f"rank{'s' if len(numbers) > 1 else ''} {format_cpulist(tuple(sorted(numbers)))}"


def log_sizes(folder: RunFolder) -> dict[str, int]:
    """How far each node's log has come."""
    return {path.name: path.stat().st_size for path in folder.part("out").iterdir()}


def stacks_of(plan: Plan, folder: RunFolder) -> dict[int, str]:
    """The stacks of all ranks: as py-spy wrote them into the evidence, or as faulthandler did into the output."""
    found = _stacks_in_logs(plan, folder)
    for path in folder.part("evidence").glob("stack-rank-*.txt"):
        text = path.read_text(errors="replace")
        if "MainThread" in text:
            found[int(path.stem.rpartition("-")[2])] = text
    return found


def _stacks_in_logs(plan: Plan, folder: RunFolder) -> dict[int, str]:
    """The last stacks that faulthandler wrote, by rank; each node's file is read once."""
    launcher = get_launcher(plan.launcher)
    found: dict[int, str] = {}
    for node in range(plan.nodes):
        last: dict[int, deque[str]] = {}
        for rank, text in rank_lines(rank_log(folder.path, plan, launcher, node * plan.ranks_per_node), launcher, None):
            last.setdefault(rank, deque(maxlen=_KEPT_LINES)).append(text)
        for rank, kept in last.items():
            lines = list(kept)
            starts = [at for at in range(len(lines)) if _begins_stack(lines, at)]
            if starts:
                found[rank] = "\n".join(lines[starts[-1] :])
    return found


def _begins_stack(lines: list[str], at: int) -> bool:
    """A line that names a thread, and no thread of the same dump before it."""
    return lines[at].startswith(_THREAD) and (at == 0 or not _in_stack(lines[at - 1]))


def _in_stack(line: str) -> bool:
    return line == "" or line.startswith(("  File ", *_THREAD))


# Evidence


def keep_evidence(
    plan: Plan, folder: RunFolder, ends: tuple[End, ...], lines: Mapping[int, tuple[str, ...]], looked: Looked | None
) -> None:
    """Write what was seen into `evidence/`. Never raises: a full disk must not be in the way of the next start."""
    with contextlib.suppress(OSError, WindlassError):
        folder.part("evidence").mkdir(mode=0o700, exist_ok=True)
        rows = [
            f"{end.at:.3f}\trank {end.rank}\t{end.host}\tcode {end.code}" for end in sorted(ends, key=lambda e: e.at)
        ]
        folder.write("evidence/ends.txt", "\n".join(rows) + "\n")
        for rank, text in lines.items():
            folder.write(f"evidence/last-lines-rank-{rank}.txt", "\n".join(text) + "\n")
            if trace := traceback_of(text):
                folder.write(f"evidence/traceback-rank-{rank}.txt", "\n".join(trace) + "\n")
        kernel = [line for line in (looked.lines if looked else ()) if "kernel" in line]
        if kernel:
            text_lines = [f"{line.get('host', line['node'])}: {line['kernel']}" for line in kernel]
            folder.write("evidence/kernel.txt", "\n".join(text_lines) + "\n")
        if folder.part("launcher.log").exists():
            shutil.copyfile(folder.part("launcher.log"), folder.part("evidence/launcher.log"))
