"""Failed nodes, stored between jobs with a reason and an expiry time, so that the next job avoids them.

One JSON file in the user's state folder. A node is bad for this user on this site until its time expires or until
`windlass nodes forgive` removes it. Supervision decides that a node is bad, not this module. A file that another user
could have written is ignored. Only the list of the computing centre applies to all users.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from windlass.base.notation.hostlist import expand_hostlist
from windlass.base.settings import Settings
from windlass.errors import os_errors
from windlass.model.jsontext import from_json, to_json
from windlass.node.sys.atomic import replace_file, take_lock
from windlass.node.sys.folders import open_own
from windlass.node.sys.reading import MAX_BYTES

FILE = "nodes.json"
KEEP_S = 24 * 3600.0
"""One day. Nodes are usually repaired by then, and a list that only grows would in time contain the whole machine."""
_MAX_EXCLUDED = 64
_LOCK_S = 5.0


class BadNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node, why it is avoided, and until when (seconds since 1970)."""

    site: str
    host: str
    reason: str
    since: float
    until: float
    times: int = 1
    run: str = ""
    by: str = ""
    """`centre`: the node is on the list of the computing centre."""


class _BadNodesFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    version: int = 1
    nodes: tuple[BadNode, ...] = ()
    suspects: tuple[BadNode, ...] = ()
    """Nodes that one run left out without evidence about the node. A second run makes them bad."""


def read_nodes(state_dir: Path, *, now: float | None = None) -> tuple[BadNode, ...]:
    """Return the nodes that must still be avoided, of all sites.

    A missing or damaged file counts as empty: a damaged list must not stop a run, even though a run on a bad node is
    slightly worse.
    """
    return _read(state_dir, time.time() if now is None else now).nodes


def _read(state_dir: Path, at: float) -> _BadNodesFile:
    try:
        with os.fdopen(open_own(state_dir / FILE), "rb") as file:
            found = from_json(file.read(MAX_BYTES), _BadNodesFile)
    except (OSError, msgspec.DecodeError):
        return _BadNodesFile()
    nodes, suspects = (tuple(one for one in part if one.until > at) for part in (found.nodes, found.suspects))
    return _BadNodesFile(nodes=nodes, suspects=suspects)


def avoided_nodes(settings: Settings, *, now: float | None = None) -> tuple[BadNode, ...]:
    """Return the nodes on the centre's list, then the nodes on the user's list."""
    at = time.time() if now is None else now
    return (*(node for node in _centre_nodes(settings) if node.until > at), *read_nodes(settings.state_dir, now=at))


def _centre_nodes(settings: Settings) -> Iterator[BadNode]:
    for entry in settings.centre.bad_nodes if settings.centre else ():
        end = datetime.datetime.combine(entry.until, datetime.time(23, 59)).timestamp()
        for host in expand_hostlist(entry.hosts):
            yield BadNode(site=entry.site, host=host, reason=entry.because, since=0.0, until=end, by="centre")


def bad_hosts(settings: Settings, site: str, *, now: float | None = None) -> tuple[str, ...]:
    """Return the hosts of a site to avoid now. If there are very many, only the worst."""
    found = (node for node in avoided_nodes(settings, now=now) if node.site == site)
    nodes = sorted(found, key=lambda n: (n.by != "centre", -n.times, -n.since))
    return tuple(sorted({node.host for node in nodes[:_MAX_EXCLUDED]}))


def remember_node(
    state_dir: Path,
    *,
    site: str,
    host: str,
    reason: str,
    run: str = "",
    proven: bool = True,
    keep_s: float = KEEP_S,
    now: float | None = None,
) -> None:
    """Add a node to the list, or extend its time there: twice as long each time.

    Without evidence about the node (`proven` is false), the node is a suspect until another run has the same failure on
    it.
    """
    at = time.time() if now is None else now

    def add(file: _BadNodesFile) -> _BadNodesFile:
        def is_it(node: BadNode) -> bool:
            return (node.site, node.host) == (site, host)

        old = next((node for node in file.nodes if is_it(node)), None)
        before = next((node for node in file.suspects if is_it(node)), None)
        if not proven and old is None and (before is None or before.run == run):
            fresh = BadNode(site=site, host=host, reason=reason, since=at, until=at + keep_s, run=run)
            return _BadNodesFile(
                nodes=file.nodes, suspects=(*(one for one in file.suspects if one is not before), fresh)
            )
        times = old.times + 1 if old else 1
        fresh = BadNode(
            site=site,
            host=host,
            reason=reason,
            since=at,
            until=at + keep_s * 2 ** min(times - 1, 4),
            times=times,
            run=run,
        )
        return _BadNodesFile(
            nodes=(*(node for node in file.nodes if node is not old), fresh),
            suspects=tuple(one for one in file.suspects if one is not before),
        )

    _change(state_dir, at, add)


def forgive(
    state_dir: Path, hosts: frozenset[str] | None, site: str | None = None, run: str | None = None
) -> tuple[BadNode, ...]:
    """Remove these hosts (None: all) from the list. With `run`, remove only the entries of this run.

    Returns the removed nodes that were on the list of nodes to avoid.
    """
    gone: list[BadNode] = []

    def goes(node: BadNode) -> bool:
        named = hosts is None or node.host in hosts
        return named and site in {None, node.site} and run in {None, node.run}

    def drop(file: _BadNodesFile) -> _BadNodesFile:
        gone[:] = [node for node in file.nodes if goes(node)]
        nodes, suspects = (tuple(one for one in part if not goes(one)) for part in (file.nodes, file.suspects))
        return _BadNodesFile(nodes=nodes, suspects=suspects)

    _change(state_dir, time.time(), drop)
    return tuple(gone)


def _change(state_dir: Path, now: float, change: Callable[[_BadNodesFile], _BadNodesFile]) -> None:
    with os_errors(f"write {state_dir / FILE}", hint="set WINDLASS_STATE to a folder that you own"):
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(state_dir / f".{FILE}.lock"):
            replace_file(state_dir / FILE, to_json(change(_read(state_dir, now))))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the list, because two jobs may end at the same moment.

    If the lock is not available in time, continue without it: some home file systems do not support locks.
    """
    lock = None
    with contextlib.suppress(OSError):
        lock = take_lock(path, _LOCK_S)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)
