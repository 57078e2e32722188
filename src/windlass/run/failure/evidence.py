"""The evidence of an attempt: ends and last lines of its ranks. Saved as `evidence/` for the user."""

from __future__ import annotations

import contextlib
import math
import re
import signal
from pathlib import Path

from windlass.model.record import RankFailure
from windlass.node.sys.atomic import copy_file, replace_file
from windlass.run.failure.ends import End, read_ends, read_seats
from windlass.run.failure.rank_logs import RankLogs
from windlass.run.failure.root_cause import Cause, Observed, is_secondary
from windlass.run.failure.signs import LOST_PEERS, died_of, excerpt, traceback_of

EVIDENCE = "evidence"
_LINES = 60
_MAX_RANKS = 64
"""Number of ranks whose last lines are saved separately. The complete logs are kept in any case."""
_MAX_NODES = 64
_TIME_LIMIT = re.compile(r"\Atimeout: resource allocation expired")


def observe(
    logs: RankLogs,
    exit_code: int,
    launcher: RankFailure | None,
    *,
    stopped: bool = False,
    seen_ends: tuple[End, ...] = (),
) -> Observed:
    """Collect the evidence from the files of an attempt and from its launcher.

    If the launcher names a rank that reported no end, the launcher's message counts as the end. If that is a secondary
    failure, an error in the log of another rank counts too. `seen_ends` are the ends that windlass itself saw, for
    ranks that report none.
    """
    ends = read_ends(logs)
    reported = {end.rank for end in ends}
    ends = (*ends, *(end for end in seen_ends if end.rank not in reported))
    failed = [end.rank for end in ends if end.code != 0][:_MAX_RANKS]
    lines = logs.last_lines(failed, _LINES)
    if launcher is not None and launcher.rank is not None and launcher.rank not in {end.rank for end in ends}:
        hosts = {seat.rank: seat.host for seat in read_seats(logs.folder / "where")}
        said = _unreported(logs, launcher.rank, launcher.host or hosts.get(launcher.rank, ""), launcher.exit_code)
        lines |= logs.last_lines([said.rank], _LINES)
        ends = (*ends, said)
        if not failed and is_secondary(said, said, lines[said.rank]) and (other := _rank_with_error(logs)):
            rank, lines[rank] = other
            ends = (*ends, _unreported(logs, rank, hosts.get(rank, ""), 1))
    over = _time_was_up(exit_code, launcher, stopped)
    return Observed(
        exit_code=exit_code,
        ends=ends,
        last_lines=lines,
        launcher=launcher,
        stopped=stopped and not over,
        time_up=over,
        finished=not stopped and {end.rank for end in ends if end.code == 0} == set(range(logs.world_size)),
    )


def _time_was_up(exit_code: int, launcher: RankFailure | None, stopped: bool) -> bool:
    """Return whether the time limit ended the run: by a signal (SIGALRM) or a message of the launcher."""
    if stopped:
        return exit_code == 128 + signal.SIGALRM
    return launcher is not None and bool(_TIME_LIMIT.search(launcher.said))


def failure_of(logs: RankLogs, seen: Observed, cause: Cause) -> RankFailure | None:
    """Return the failure for the record of the run: the rank, node and code of the verdict's `cause`.

    None if no rank, no node and no message of the launcher caused the end.
    """
    if cause.rank is None and cause.host is None and not seen.said:
        return None
    return RankFailure(
        rank=cause.rank,
        host=cause.host,
        code=cause.code,
        signal=cause.signal,
        log=None if cause.rank is None else str(logs.path(cause.rank).relative_to(logs.folder)),
        last_lines=() if cause.rank is None else excerpt(seen.last_lines.get(cause.rank, ())),
        said=seen.said,
    )


def _unreported(logs: RankLogs, rank: int, host: str, code: int) -> End:
    return End(at=math.inf, rank=rank, host=logs.host(rank, host), code=code, reported=False)


def _rank_with_error(logs: RankLogs) -> tuple[int, tuple[str, ...]] | None:
    """Return the lowest rank whose log ends with a traceback that is not about lost peers. Reads some nodes' logs."""
    for node in range(min(logs.nodes, _MAX_NODES)):
        for rank, lines in sorted(logs.tails(node, _LINES).items()):
            error = died_of(lines)
            if error and not LOST_PEERS.search(error):
                return rank, lines
    return None


def keep_evidence(folder: Path, seen: Observed, states: str = "") -> None:
    """Write the evidence to `evidence/`. Never raises: a full disk must not prevent the next start."""
    rows = [
        f"{f'{end.at:.3f}' if end.at < math.inf else 'unknown'}\trank {end.rank}\t{end.host}\tcode {end.code}"
        for end in seen.ends
    ]
    texts = {"ends.txt": rows, "standing.txt": [states] if states else []}
    for rank, lines in seen.last_lines.items():
        texts[f"last-lines-rank-{rank}.txt"] = list(lines)
        texts[f"traceback-rank-{rank}.txt"] = list(traceback_of(lines))
    texts["kernel.txt"] = [f"{host}: {line}" for host, lines in seen.kernel.items() for line in lines]
    target = folder / EVIDENCE
    with contextlib.suppress(OSError):
        target.mkdir(mode=0o700, exist_ok=True)
        for name, found in texts.items():
            if found:
                _write(target / name, found)
        if (folder / "launcher.log").exists():
            copy_file(folder / "launcher.log", target / "launcher.log")


def _write(path: Path, lines: list[str]) -> None:
    replace_file(path, ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape"))
