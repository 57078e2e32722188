"""CPU numbers as the kernel and the schedulers write them: lists (`0-3,8`) and hexadecimal masks."""

from __future__ import annotations

from collections.abc import Iterable

from windlass.errors import ConfigError
from windlass.node.sys.cpulist import CpuListError, cpus_of


def parse_cpulist(text: str) -> tuple[int, ...]:
    """`"0-3,8"` as sorted numbers. Empty text is no CPU; anything else that does not parse is a `ConfigError`."""
    try:
        return cpus_of(text)
    except CpuListError as error:
        raise ConfigError(str(error), hint=error.hint) from None


def format_cpulist(cpus: Iterable[int]) -> str:
    """Numbers as the shortest list of ranges, ascending: `0-3,8`."""
    parts: list[str] = []
    run: list[int] = []
    for cpu in [*sorted(set(cpus)), None]:
        if run and (cpu is None or cpu != run[-1] + 1):
            parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
            run = []
        if cpu is not None:
            run.append(cpu)
    return ",".join(parts)


def cpu_mask(cpus: Iterable[int], *, digits: int = 0) -> str:
    """A hexadecimal mask as Slurm takes it: `0xfe` for CPUs 1-7, padded with zeros to `digits`."""
    value = 0
    for cpu in cpus:
        value |= 1 << cpu
    return f"0x{value:0{digits}x}"


def parse_bindings(text: str) -> tuple[tuple[int, ...], ...]:
    """`"4-7:8-11"`, one list per local rank separated by colons, as `--cpu-bind=list:` of PALS takes it."""
    return tuple(parse_cpulist(part) for part in text.split(":"))


def format_bindings(bindings: Iterable[Iterable[int]]) -> str:
    """The reverse of `parse_bindings`."""
    return ":".join(format_cpulist(cpus) for cpus in bindings)
