"""The map of a node as a picture (SVG): sockets, NUMA domains, cores by rank, devices and interfaces. Pure.

It uses the same marks as the map in text (`draw`), with one cell per core. Ranks differ by colour and number. A device
has the colour of the rank that uses it. The file is self-contained and needs no style sheet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from windlass.base.notation.counts import counted, format_cpulist
from windlass.base.tables import packaged_text
from windlass.model.plan import Binding
from windlass.model.topology import Core, Device, Topology
from windlass.sites.topology.draw import MEANING, cell_text, core_marks, node_title, rank_mark, runs_of_cores, unit_word
from windlass.sites.topology.split import in_unit

_WIDTH, _LEFT, _RIGHT = 860, 26, 596
_CELL, _STEP, _RUNS_IN_A_ROW, _RUN_GAP = 17, 20, 3, 10
_BOX, _BOXES_IN_A_ROW, _ROW = 56, 4, 28
_COLOURS = 8  # classes r0 to r7 of `data/node.css`


@dataclass(frozen=True, kw_only=True, slots=True)
class _Node:
    """The input of the drawing: the node, the mark of each core, and the rank of each mark."""

    binding: Binding
    topology: Topology
    marks: dict[int, str]
    numbers: dict[str, int]


def node_picture(binding: Binding, topology: Topology, title: str) -> str:
    """The node with its ranks as the text of an SVG file. Empty for a node without cores."""
    topology = in_unit(topology, binding.device_unit)
    if not topology.cores:
        return ""
    numbers = {rank_mark(rank.local_rank): rank.local_rank for rank in reversed(binding.ranks)}
    node = _Node(binding=binding, topology=topology, marks=core_marks(binding, topology), numbers=numbers)
    body = [_text("head", 16, 22, title), _text("soft", 16, 40, node_title(binding, topology))]
    y = 50
    for socket in topology.sockets:
        drawn, y = _socket(node, socket, y)
        body += drawn
    for draw in (_homeless, _legend):
        drawn, y = draw(node, y)
        body += drawn
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" role="img" '
        f'aria-label="{escape(title, quote=True)}">\n<style>\n{packaged_text(__file__, "node.css")}</style>\n'
        f'<rect class="paper" width="{_WIDTH}" height="{y}"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _text(kind: str, x: float, y: float, text: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(text)}</text>'


def _box(kind: str, x: int, y: int, size: tuple[int, int], radius: int, said: str = "") -> str:
    inside = f"><title>{escape(said)}</title></rect>" if said else "/>"
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{size[0]}" height="{size[1]}" rx="{radius}"{inside}'


def _socket(node: _Node, socket: int, y: int) -> tuple[list[str], int]:
    """The domains of one socket, with a frame if there are several sockets, and the start of the next socket."""
    several = len(node.topology.sockets) > 1
    body: list[str] = []
    top = y
    y += 8 if several else 0
    for numa in sorted({core.numa for core in node.topology.cores if core.socket == socket}):
        cores = [core for core in node.topology.cores if core.numa == numa and core.socket == socket]
        cores.sort(key=lambda core: core.id)
        drawn, height = _domain(node, numa, cores, y)
        name = f"NUMA {numa}, cores {format_cpulist(core.id for core in cores)}"
        body.append(_box("domain", 16, y, (_WIDTH - 32, height), 6))
        body.append(_text("soft", _LEFT, y + 17, f"socket {socket}, {name}" if several else name))
        body += drawn
        y += height + 8
    if several:
        body.append(_box("socket", 8, top, (_WIDTH - 16, y - top), 8))
    return body, y + (10 if several else 0)


def _domain(node: _Node, numa: int, cores: Sequence[Core], y: int) -> tuple[list[str], int]:
    """Cores in runs that share a cache, devices and interfaces, and the total height."""
    body: list[str] = []
    top, rows = y + 26, 0
    for number, run in enumerate(runs_of_cores(cores)):
        rows = number // _RUNS_IN_A_ROW
        x = _LEFT + number % _RUNS_IN_A_ROW * (8 * _STEP + _RUN_GAP)
        for place, core in enumerate(run):
            said = f"core {core.id} (CPUs {format_cpulist(core.cpus)})"
            body += _cell(node, x + place * _STEP, top + rows * _STEP, node.marks[core.id], said)
    devices = [device for device in node.topology.devices if device.numa == numa]
    nics = [nic.name for nic in node.topology.nics if nic.numa == numa]
    boxes, lines = _boxes(node, devices, nics, y + 10)
    return body + boxes, max(26 + (rows + 1) * _STEP + 6, 10 + lines * _ROW + 4)


def _cell(node: _Node, x: int, y: int, mark: str, said: str) -> Iterator[str]:
    rank = node.numbers.get(mark)
    if rank is not None:
        kind, text, ink, meaning = f"r{rank % _COLOURS}", str(rank), "cell own", f"local rank {rank}"
    else:
        kind, text, ink = {".": "idle", "!": "bad"}.get(mark, "quiet"), "" if mark == "." else mark, "cell"
        meaning = MEANING.get(mark, mark)
    yield _box(kind, x, y, (_CELL, _CELL), 3, f"{said}: {meaning}")
    if text:
        yield _text(ink, x + _CELL / 2, y + 12, text)


def _boxes(node: _Node, devices: Sequence[Device], nics: Sequence[str], y: int) -> tuple[list[str], int]:
    """Devices, and below them interfaces, and the number of lines of boxes."""
    users = {device: rank.local_rank for rank in reversed(node.binding.ranks) for device in rank.devices}
    body: list[str] = []
    line = -1
    for number, device in enumerate(devices):
        line = number // _BOXES_IN_A_ROW
        x, top = _RIGHT + number % _BOXES_IN_A_ROW * (_BOX + 6), y + line * _ROW
        rank = users.get(device.index)
        name = f"{unit_word(node.topology)} {device.index}"
        kind, ink = ("quiet", "name") if rank is None else (f"r{rank % _COLOURS}", "name own")
        body.append(
            _box(kind, x, top, (_BOX, 22), 4, f"{name}: " + ("unused" if rank is None else f"local rank {rank}"))
        )
        body.append(_text(ink, x + _BOX / 2, top + 15, name))
    first = line + 1
    for number, nic in enumerate(nics):
        line = first + number // _BOXES_IN_A_ROW
        x, top = _RIGHT + number % _BOXES_IN_A_ROW * (_BOX + 6), y + line * _ROW
        body.append(_box("nic", x, top, (_BOX, 22), 11))
        body.append(_text("name", x + _BOX / 2, top + 15, nic))
    return body, line + 1


def _homeless(node: _Node, y: int) -> tuple[list[str], int]:
    """Devices and interfaces whose domain is unknown."""
    known = set(node.topology.numas)
    devices = [device for device in node.topology.devices if device.numa not in known]
    nics = [nic.name for nic in node.topology.nics if nic.numa not in known]
    if not devices and not nics:
        return [], y
    boxes, lines = _boxes(node, devices, nics, y)
    return [_text("soft", _LEFT, y + 15, "NUMA domain not known"), *boxes], y + lines * _ROW + 8


def _legend(node: _Node, y: int) -> tuple[list[str], int]:
    used = set(node.marks.values())
    items = [("0", "local rank, and the device it uses")] if used & set(node.numbers) else []
    items += [(mark, meaning) for mark, meaning in MEANING.items() if mark in used and mark not in node.numbers]
    body: list[str] = []
    x = _LEFT
    for mark, meaning in items:
        body += _cell(node, x, y, mark, meaning)
        body.append(_text("soft", x + 23, y + 13, meaning))
        x += 44 + int(6.2 * len(meaning))
    unbound = sum(1 for rank in node.binding.ranks if not rank.cpus)
    notes = [cell_text(node.binding, node.topology), f"{counted(unbound, 'rank')} not bound here" if unbound else ""]
    body.append(_text("soft", _LEFT, y + 36, "; ".join(note for note in notes if note)))
    return body, y + 48
