"""Host lists as Slurm writes them (`nid[001-003,7],login1`) and task counts (`4(x2),3`), read without Slurm's tools.

A container often has no `scontrol`, so the runtime expands the list itself; and it may not import `windlass.model`,
which needs more than the standard library. Pure text in, tuples out.
"""

from __future__ import annotations

import re

from windlass.errors import UsageError

_MAX_HOSTS = 1_000_000
_RANGE = re.compile(r"(\d+)(?:-(\d+))?$")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?$")


def parse_hostlist(text: str) -> tuple[str, ...]:
    """The hosts of a Slurm host list, in order. Anything that is not one is a `UsageError`."""
    hosts: list[str] = []
    for part in _split_outside_brackets(text):
        hosts.extend(_expand(part, text))
        if len(hosts) > _MAX_HOSTS:
            raise UsageError(f"host list names more than {_MAX_HOSTS} hosts: {text[:80]!r}")
    return tuple(hosts)


def parse_task_counts(text: str) -> tuple[int, ...]:
    """Tasks on each node from `SLURM_STEP_TASKS_PER_NODE`: `4(x2),3` is (4, 4, 3)."""
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.match(part.strip())
        if match is None:
            raise UsageError(f"not a list of task counts: {text!r}", hint="expected something like 4(x2),3")
        counts.extend([int(match[1])] * int(match[2] or 1))
    return tuple(counts)


def _split_outside_brackets(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
        if depth not in (0, 1):
            raise _bad(text)
    if depth:
        raise _bad(text)
    parts.append(text[start:])
    return [p.strip() for p in parts if p.strip()]


def _expand(part: str, whole: str) -> list[str]:
    """One name with any number of bracket groups; the last group varies fastest, as in Slurm."""
    open_at = part.find("[")
    if open_at < 0:
        return [part]
    close_at = part.index("]", open_at)
    head, tails = part[:open_at], _expand(part[close_at + 1 :], whole) if part[close_at + 1 :] else [""]
    numbers: list[str] = []
    for item in part[open_at + 1 : close_at].split(","):
        match = _RANGE.match(item.strip())
        if match is None:
            raise _bad(whole)
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first) or int(last) - int(first) > _MAX_HOSTS:
            raise _bad(whole)
        numbers.extend(str(n).zfill(len(first)) for n in range(int(first), int(last) + 1))
    return [f"{head}{number}{tail}" for number in numbers for tail in tails]


def _bad(text: str) -> UsageError:
    return UsageError(f"not a host list: {text[:80]!r}", hint="expected something like nid[001-004,7]")
