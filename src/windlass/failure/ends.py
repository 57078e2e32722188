"""What rank scripts reported: where each rank sat (`where/<node>`), and how it ended (`ends/<node>`) where asked."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import NamedTuple

from windlass.model.record import RankFailure
from windlass.run.folder import RunFolder

_CONSEQUENCES = {128 + signal.SIGTERM, 128 + signal.SIGINT, 128 + signal.SIGKILL, 128 + signal.SIGHUP}
"""What a launcher does to the others once one has failed."""


def first_end(folder: RunFolder) -> RankFailure | None:
    """The earliest failed end that is not the launcher's doing; if all look like that, the earliest of them."""
    ends: list[tuple[float, RankFailure]] = []
    for file in sorted(folder.part("ends").iterdir()):
        for line in file.read_text(errors="replace").splitlines():
            fields = line.split("\t")
            if len(fields) != 4 or not (fields[1].isdecimal() and fields[3].isdecimal()) or int(fields[3]) == 0:
                continue
            when, rank, host, code = _seconds(fields[0]), int(fields[1]), fields[2], int(fields[3])
            by_signal = 128 < code < 128 + 65
            failure = RankFailure(
                rank=rank, host=host, code=None if by_signal else code, signal=code - 128 if by_signal else None
            )
            ends.append((when, failure))
    ends.sort(key=lambda end: end[0])
    causes = [failure for _, failure in ends if failure.exit_code not in _CONSEQUENCES]
    return causes[0] if causes else ends[0][1] if ends else None


def _seconds(text: str) -> float:
    """When: some `date` commands know no nanoseconds and leave `%N` as it is."""
    try:
        return float(text.removesuffix("%N"))
    except ValueError:
        return float("inf")


class Seat(NamedTuple):
    """Where a rank really was."""

    rank: int
    host: str
    cpus: str
    device: str
    pid: int


def read_seats(folder: Path) -> list[Seat]:
    """Every rank that got as far as saying where it is. Lines that are not whole are passed over."""
    seats: list[Seat] = []
    for file in folder.iterdir():
        for line in file.read_text(errors="replace").splitlines():
            fields = line.split("\t")
            if len(fields) == 5 and fields[0].isdecimal() and fields[4].isdecimal():
                seats.append(Seat(int(fields[0]), fields[1], fields[2], fields[3], int(fields[4])))
    return seats
