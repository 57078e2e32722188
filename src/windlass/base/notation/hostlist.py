"""Expand and fold host lists such as `nid[0001-0004,0010]`, for thousands of nodes. Pure.

windlass expands them itself, because `scontrol` is missing in containers and on some login nodes.

The module also formats the options that `sbatch` and `srun` share.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from windlass.errors import UsageError

_MAX_HOSTS = 1_000_000
_NAME = re.compile(r"[A-Za-z0-9._\-]+\Z")
_DIGITS = re.compile(r"[0-9]{1,18}\Z")
_NUMBER = re.compile(r"\A(.*?)(\d+)([^\d]*)\Z")


def expand_hostlist(text: str) -> tuple[str, ...]:
    """Return every host of a list, in its order. Raises `UsageError` with the position of the syntax error."""
    hosts: list[str] = []
    for item in _split_outside_brackets(text):
        hosts.extend(_expand_item(item, text))
        if len(hosts) > _MAX_HOSTS:
            raise UsageError(f"host list names more than {_MAX_HOSTS} hosts: {text[:60]!r}…", hint="give fewer")
    if not hosts:
        raise UsageError(f"empty host list {text!r}", hint="write names or ranges, as in nid[0001-0004]")
    return tuple(hosts)


def _split_outside_brackets(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        if depth not in (0, 1):
            raise UsageError(
                f"malformed host list {text!r}: unexpected {char!r} at character {index + 1}",
                hint="write it as in nid[0001-0004,0009]",
            )
        if depth == 0 and char in ", \n\t":
            parts.append(text[start:index])
            start = index + 1
    if depth:
        raise UsageError(f"malformed host list {text!r}: '[' is not closed", hint="write it as in nid[0001-0004,0009]")
    parts.append(text[start:])
    return [part for part in parts if part]


def _expand_item(item: str, whole: str) -> Iterable[str]:
    pieces = re.split(r"\[([^\]]*)\]", item)
    choices: list[list[str]] = []
    count = 1
    for index, piece in enumerate(pieces):
        choices.append([piece] if index % 2 == 0 else _expand_ranges(piece, whole))
        count *= len(choices[-1])
        if count > _MAX_HOSTS:
            raise UsageError(f"host list names more than {_MAX_HOSTS} hosts: {whole[:60]!r}…", hint="give fewer")
    for parts in itertools.product(*choices):
        host = "".join(parts)
        if not _NAME.match(host):
            raise UsageError(
                f"malformed host name {host!r} in host list {whole!r}",
                hint="names have letters, digits, dots and dashes, as in nid[0001-0004]",
            )
        yield host


def _expand_ranges(text: str, whole: str) -> list[str]:
    out: list[str] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        numbers = (first, last) if dash else (first,)
        if not all(_DIGITS.match(number) for number in numbers) or (dash and int(last) < int(first)):
            raise UsageError(
                f"malformed range {part[:80]!r} in host list {whole[:80]!r}", hint="ranges go up, as in [0001-0004]"
            )
        if len(out) + int(numbers[-1]) - int(first) >= _MAX_HOSTS:
            raise UsageError(f"host list names more than {_MAX_HOSTS} hosts: {whole[:60]!r}…", hint="give fewer")
        out.extend(f"{n:0{len(first)}d}" for n in range(int(first), int(last if dash else first) + 1))
    return out


def fold_hostlist(hosts: Iterable[str]) -> str:
    """Fold hosts into the shortest list that keeps their order. Runs of consecutive numbers become ranges."""
    groups: list[tuple[str, str, list[str]]] = []
    for host in hosts:
        match = _NUMBER.match(host)
        prefix, digits, suffix = match.groups() if match else (host, "", "")
        if groups and groups[-1][0] == prefix and groups[-1][1] == suffix and digits and groups[-1][2][0]:
            groups[-1][2].append(digits)
        else:
            groups.append((prefix, suffix, [digits]))
    return ",".join(_fold_group(*group) for group in groups)


def _fold_group(prefix: str, suffix: str, numbers: list[str]) -> str:
    if len(numbers) == 1:
        return f"{prefix}{numbers[0]}{suffix}"
    ranges: list[tuple[str, str]] = []
    for digits in numbers:
        if ranges and len(ranges[-1][1]) == len(digits) and int(digits) == int(ranges[-1][1]) + 1:
            ranges[-1] = (ranges[-1][0], digits)
        else:
            ranges.append((digits, digits))
    inner = ",".join(low if low == high else f"{low}-{high}" for low, high in ranges)
    return f"{prefix}[{inner}]{suffix}"


def gpu_option(
    request: str, *, gpus_per_node: int, nodes: int, ranks_per_node: int, gpu_type: str | None = None
) -> str:
    """Return the option that requests devices, in the site's form (`scheduler.gpu_request`)."""
    kind = f"{gpu_type}:" if gpu_type else ""
    return {
        "gpus-per-node": f"--gpus-per-node={kind}{gpus_per_node}",
        "gres": f"--gres=gpu:{kind}{gpus_per_node}",
        "gpus": f"--gpus={kind}{gpus_per_node * nodes}",
        "gpus-per-task": f"--gpus-per-task={kind}{max(1, gpus_per_node // ranks_per_node)}",
    }[request]


def log_path(path: str) -> str:
    """Escape a log path for Slurm.

    Slurm reads `%` in a path as a pattern. A backslash turns patterns off, so a path with a backslash is an error.
    """
    if "\\" in path:
        raise UsageError(
            f"Slurm cannot write logs to {path!r}: a backslash in a path means something else to it",
            hint="choose another folder with --run-dir",
        )
    return path.replace("%", "%%")
