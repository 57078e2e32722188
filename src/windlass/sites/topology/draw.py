"""The map of a node as text: ranks, cores, devices and interfaces. Pure.

One cell is one core. The map shows at a glance that no rank straddles a domain, uses a reserved core, or is far from
its device. The table below has the exact numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from textwrap import wrap

from windlass.base.notation.counts import counted, format_cpulist
from windlass.model.plan import Binding, RankBinding
from windlass.model.topology import Core, Device, Topology
from windlass.sites.topology.split import in_unit

_MARKS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_RESERVED, _AGENT, _COMM, _IDLE, _FOREIGN, _SHARED, _MANY = "#", "@", "~", ".", "-", "!", "*"
MEANING = {
    _RESERVED: "reserved by the system",
    _AGENT: "agent",
    _COMM: "communication",
    _IDLE: "idle",
    _FOREIGN: "not this job's",
    _SHARED: "shared by ranks",
    _MANY: "a later rank",
}
_RUN = 8
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_DIM, _ALARM = 90, 31
_TWO_TABLES = 16
"""From this many ranks on, the table has two halves side by side."""


def draw_node(binding: Binding, topology: Topology, *, width: int = 100, color: bool = False) -> str:
    """Lines of at most `width` characters: the node, its domains with their cores, the table of ranks."""
    topology = in_unit(topology, binding.device_unit)
    marks = core_marks(binding, topology)
    reason = f"preset {binding.preset}: {binding.because}" if binding.preset else binding.because
    lines = [*wrap(node_title(binding, topology), width), *wrap(reason, width)]
    if topology.cores:
        lines += ["", *_domains(topology, marks, width), "", *_legend(binding, topology, marks, width)]
    lines += ["", *_table(binding, topology, width)]
    if binding.visible:
        lines += ["", *wrap(_order_text(binding), width)]
    clipped = [line if len(line) <= width else line[: width - 1] + "…" for line in lines]
    return "\n".join(_painted(line, binding) if color and _is_map(line) else line.rstrip() for line in clipped)


def _order_text(binding: Binding) -> str:
    order = " ".join(str(index) for index in binding.visible)
    own = all(rank.devices == binding.visible[position : position + 1] for position, rank in enumerate(binding.ranks))
    return f"every rank sees the devices in the order {order}{', so that rank i has number i' if own else ''}"


def node_title(binding: Binding, topology: Topology) -> str:
    threads = max((len(core.cpus) for core in topology.cores), default=1)
    parts = [topology.arch or "node"]
    if topology.cores:
        parts.append(counted(len(topology.sockets), "socket"))
        parts.append(counted(len(topology.numas), "NUMA domain"))
        each = f" of {threads} threads" if threads > 1 else ""
        parts.append(counted(len(topology.cores), "core") + each)
    if topology.devices:
        parts.append(counted(len(topology.devices), unit_word(topology)))
    if topology.nics:
        parts.append(counted(len(topology.nics), "interface"))
    parts.append(counted(len(binding.ranks), "rank"))
    return ", ".join(parts)


def unit_word(topology: Topology) -> str:
    if topology.unit == "tile":
        return "GCD" if topology.devices[0].vendor == "amd" else "tile"
    return "card" if any(device.tiles > 1 for device in topology.devices) else "GPU"


def rank_mark(rank: int) -> str:
    return _MARKS[rank] if rank < len(_MARKS) else _MANY


def core_marks(binding: Binding, topology: Topology) -> dict[int, str]:
    """One mark for every core, by the core's number."""
    owners: dict[int, list[int]] = {}
    for rank in binding.ranks:
        for cpu in rank.cpus:
            owners.setdefault(cpu, []).append(rank.local_rank)
    allowed = set(topology.allowed or topology.cpus)
    marks: dict[int, str] = {}
    for core in topology.cores:
        ranks = {rank for cpu in core.cpus for rank in owners.get(cpu, ())}
        cpus = set(core.cpus)
        if len(ranks) > 1:
            marks[core.id] = _SHARED
        elif ranks:
            marks[core.id] = rank_mark(ranks.pop())
        elif cpus.intersection(topology.reserved):
            marks[core.id] = _RESERVED
        elif cpus.intersection(binding.agent_cpus):
            marks[core.id] = _AGENT
        elif cpus.intersection(binding.comm_cpus):
            marks[core.id] = _COMM
        else:
            marks[core.id] = _IDLE if cpus & allowed else _FOREIGN
    return marks


def _domains(topology: Topology, marks: dict[int, str], width: int) -> list[str]:
    """The domains, on one line each if all of them fit. Otherwise their cores are on separate lines."""
    rows = [_Row(topology, numa, marks) for numa in topology.numas]
    columns = [max(len(text) for text in column) for column in zip(*(row.one_line for row in rows), strict=True)]
    together = sum(columns) + 2 * len(columns) <= width
    digits = max(len(str(row.runs[-1][0])) for row in rows)
    titled = len(topology.sockets) not in {1, len(rows)}
    lines: list[str] = []
    socket = None
    for row in rows:
        if titled and row.socket != socket:
            socket = row.socket
            lines.append(f"socket {socket}")
        if together:
            lines.append(" " + "  ".join(text.ljust(size) for text, size in zip(row.one_line, columns, strict=True)))
        else:
            lines += row.several_lines(width, digits)
    return [*lines, *_homeless(topology)]


class _Row:
    """The text parts of one NUMA domain."""

    def __init__(self, topology: Topology, numa: int, marks: dict[int, str]) -> None:
        cores = sorted((core for core in topology.cores if core.numa == numa), key=lambda core: core.id)
        devices = [device for device in topology.devices if device.numa == numa]
        nics = [nic.name for nic in topology.nics if nic.numa == numa]
        self.socket = cores[0].socket
        self.runs = [(run[0].id, "".join(marks[core.id] for core in run)) for run in runs_of_cores(cores)]
        word = unit_word(topology) if topology.devices else ""
        alone = len(topology.sockets) == len(topology.numas) > 1
        self.one_line = (
            f"socket {self.socket}, NUMA {numa}" if alone else f"NUMA {numa}",
            f"cores {format_cpulist(core.id for core in cores)}",
            "|" + " ".join(text for _, text in self.runs) + "|",
            f"{word} {_numbers(devices)}" if devices else "",
            _folded(nics),
        )

    def several_lines(self, width: int, digits: int) -> list[str]:
        name, cores, _, devices, nics = self.one_line
        lines = ["  ".join(part for part in (f" {name}", cores, devices, nics) if part)]
        current = ""
        for first, text in self.runs:
            if current and len(current) + len(text) + 2 > width:
                lines.append(current + "|")
                current = ""
            current = f"{current} {text}" if current else f"  {str(first).rjust(digits)} |{text}"
        return [*lines, current + "|"]


def runs_of_cores(cores: Sequence[Core]) -> list[list[Core]]:
    """Cores in runs of at most eight that do not cross a cache."""
    runs: list[list[Core]] = []
    for core in cores:
        if not runs or len(runs[-1]) == _RUN or runs[-1][-1].l3 != core.l3:
            runs.append([])
        runs[-1].append(core)
    return runs


def _numbers(devices: Sequence[Device]) -> str:
    """Device numbers, as ranges only if there are many, because 4 and 5 is easier to read than 4-5."""
    numbers = [device.index for device in devices]
    return format_cpulist(numbers) if len(numbers) > 2 else " ".join(str(number) for number in numbers)


def _folded(names: Sequence[str]) -> str:
    if len(names) > 2:
        return f"{names[0]}..{names[-1]}"
    return " ".join(names)


def _homeless(topology: Topology) -> list[str]:
    """Devices and interfaces whose domain is unknown."""
    known = set(topology.numas)
    devices = [device for device in topology.devices if device.numa not in known]
    nics = [nic.name for nic in topology.nics if nic.numa not in known]
    found = [f"{unit_word(topology)} {_numbers(devices)}"] if devices else []
    found += [_folded(nics)] if nics else []
    return [f" domain not known: {', '.join(found)}"] if found else []


def _legend(binding: Binding, topology: Topology, marks: dict[int, str], width: int) -> list[str]:
    used = set(marks.values())
    ranks = [rank.local_rank for rank in binding.ranks if rank_mark(rank.local_rank) in used]
    words = []
    if ranks:
        last = rank_mark(ranks[-1])
        letters = f" (a is 10{', A is 36' if ranks[-1] > 35 else ''})" if ranks[-1] > 9 else ""
        words.append(f"{rank_mark(ranks[0])}-{last} local rank{letters}" if len(ranks) > 1 else f"{last} local rank")
    words += [f"{mark} {meaning}" for mark, meaning in MEANING.items() if mark in used]
    words.append(cell_text(binding, topology))
    lines = [""]
    for word in words:
        if len(lines[-1]) + 3 + len(word) > width and lines[-1]:
            lines.append("")
        lines[-1] += f"{'   ' if lines[-1] else ' '}{word}"
    return lines


def cell_text(binding: Binding, topology: Topology) -> str:
    """The meaning of one cell: a core, and how many of its threads a rank has."""
    threads = max(len(core.cpus) for core in topology.cores)
    owned = {cpu for rank in binding.ranks for cpu in rank.cpus}
    used = {len(owned.intersection(core.cpus)) for core in topology.cores} - {0}
    if threads == 1 or not used:
        return "one cell: one core"
    return (
        f"one cell: one core, {'-'.join(str(count) for count in sorted({min(used), max(used)}))} of {threads} threads"
    )


def _table(binding: Binding, topology: Topology, width: int) -> list[str]:
    """Table of CPUs, device, domain and interface by local rank. Many ranks are in two halves side by side."""
    columns: list[tuple[str, Callable[[RankBinding], str]]] = [
        ("rank", lambda rank: str(rank.local_rank)),
        ("cpus", lambda rank: format_cpulist(rank.cpus) or "not bound"),
        (unit_word(topology) if topology.devices else "", lambda rank: format_cpulist(rank.devices)),
        ("numa", lambda rank: format_cpulist(rank.numa)),
        ("nic", lambda rank: rank.nic or ""),
    ]
    kept = [(title, cell) for title, cell in columns if title and any(cell(rank) for rank in binding.ranks)]
    sizes = [max(len(title), *(len(cell(rank)) for rank in binding.ranks)) for title, cell in kept]

    def line(cells: Sequence[str]) -> str:
        placed = (
            cell.rjust(size) if not index else cell.ljust(size)
            for index, (cell, size) in enumerate(zip(cells, sizes, strict=True))
        )
        return " " + "  ".join(placed)

    head = line([title for title, _ in kept])
    rows = [line([cell(rank) for _, cell in kept]) for rank in binding.ranks]
    if len(rows) <= _TWO_TABLES or 2 * len(head) + 3 > width:
        return [head, *rows]
    half = -(-len(rows) // 2)
    right = [*rows[half:], *[""] * (2 * half - len(rows))]
    return [f"{head}   {head}", *(f"{left}   {more}" for left, more in zip(rows[:half], right, strict=True))]


def _is_map(line: str) -> bool:
    return line.count("|") == 2


def _painted(line: str, binding: Binding) -> str:
    """The line with coloured cells: neighbours differ, and unused cells are dim."""
    number_of = {rank_mark(rank.local_rank): rank.local_rank for rank in reversed(binding.ranks)}
    start, end = line.index("|"), line.rindex("|")
    cells = []
    for mark in line[start + 1 : end]:
        if mark in number_of:
            cells.append(f"\x1b[{_COLOURS[number_of[mark] % len(_COLOURS)]}m{mark}\x1b[0m")
        elif mark in MEANING:
            cells.append(f"\x1b[{_ALARM if mark == _SHARED else _DIM}m{mark}\x1b[0m")
        else:
            cells.append(mark)
    return line[: start + 1] + "".join(cells) + line[end:].rstrip()
