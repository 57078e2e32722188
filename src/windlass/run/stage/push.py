"""Stage sources of the shared file system to node-local storage, from the request to the result.

Agents on all nodes copy the sources and report their progress. They keep running only if images are mounted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from windlass.agents.start import LOG_FILE, Agents, AgentStartError, ServiceSpec
from windlass.base.settings import read_settings
from windlass.errors import MachineError, UsageError
from windlass.model.plan import CacheRoot, Plan
from windlass.model.request import Request
from windlass.node.stage.unpacking import archive_of
from windlass.node.sys.reading import open_plain
from windlass.plan.cache import declared_roots
from windlass.plan.render.variables import JobFacts
from windlass.run.folder import RunFolder, make_folder
from windlass.run.jobs import write_host_file
from windlass.run.planning import plan_request
from windlass.run.rendezvous import plan_hosts
from windlass.run.sidecars.compose import agents_spec
from windlass.run.sidecars.detached import detach

_ENTRY = "windlass.node.stage.stage:make"


def stage_service(
    sources: tuple[CacheRoot, ...],
    to: str,
    *,
    extract: bool,
    shard: bool,
    one_reader: bool = False,
    per_node: bool = False,
) -> ServiceSpec:
    """Return the settings of every node.

    With `shard`, each node gets its part of the files instead of all. With `one_reader`, only the first node reads the
    sources.
    """
    settings: dict[str, object] = {
        "sources": [{"path": source.path, "real": source.real} for source in sources],
        "to": to,
        "extract": extract,
        "shard": shard,
        "one_reader": one_reader,
        "per_node": per_node,
    }
    return ServiceSpec(name="stage", entry=_ENTRY, settings=settings)


def warnings(lines: list[dict[str, Any]]) -> list[str]:
    """Return the agents' messages that the user should see, without duplicates."""
    return list(dict.fromkeys(line["news"] for line in lines if line.get("service") == "stage" and "news" in line))


class StageProgress:
    """Follows the agents' lines and shows the progress at intervals. The slowest node counts."""

    def __init__(self, nodes: int, show: Callable[[str], None], every_s: float) -> None:
        self._nodes = nodes
        self._show = show
        self._every_s = every_s
        self._began = self._last = time.monotonic()
        self._staged: dict[int, tuple[int, int]] = {}
        self._complete: set[int] = set()
        self._read = 0

    def look(self, lines: list[dict[str, Any]]) -> None:
        """Read new lines, and show the progress of the nodes if it is time."""
        for line in lines[self._read :]:
            if "staged" in line:
                self._staged[line["node"]] = line["staged"], line["of"]
            elif "up" in line:
                self._complete.add(line["node"])
        self._read = len(lines)
        now = time.monotonic()
        if now - self._last >= self._every_s and (self._staged or self._complete):
            self._last = now
            self._show(self._text(now - self._began))

    def _text(self, seconds: float) -> str:
        waiting = {node: how for node, how in self._staged.items() if node not in self._complete}
        text = f"{len(self._complete)} of {self._nodes} nodes complete"
        if not waiting:
            return text
        staged, total = min(waiting.values(), key=lambda how: how[0] / max(how[1], 1))
        rate = sum(how[0] for how in waiting.values()) / len(waiting) / max(seconds, 0.1)
        where = f"{staged / 1e6:,.0f} of {total / 1e6:,.0f} MB on the slowest node, {rate / 1e6:,.0f} MB/s a node"
        return f"{where}, {text}"


_SQUASHFS = b"hsqs"
_SQUASHFS_NAMES = (".squashfs", ".sqfs", ".sqsh")


@dataclass(frozen=True, kw_only=True, slots=True)
class Staging:
    """What to copy, and the destination.

    `extract`: unpack archives, mount squashfs images. `shard`: each node gets its part of the files. `one_reader`: only
    the first node reads the sources.
    """

    sources: tuple[str, ...]
    to: str
    extract: bool = False
    shard: bool = False
    one_reader: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Staged:
    """The result.

    `places`: paths of the copies on a node. `nodes`: each node's report. `mounted`: images stay mounted.
    """

    plan: Plan
    folder: RunFolder
    seconds: float
    places: tuple[str, ...]
    bytes_per_node: int
    nodes: tuple[dict[str, object], ...]
    mounted: bool
    warnings: tuple[str, ...]


def plan_staging(staging: Staging, request: Request, environ: Mapping[str, str]) -> Plan:
    """Plan a staging for the nodes that a job with this request would have. Copies nothing."""
    return plan_request(_with_sources(request, _checked(staging)[0]), environ).plan


def _with_sources(request: Request, roots: tuple[CacheRoot, ...]) -> Request:
    return msgspec.structs.replace(request, stage=tuple(root.path for root in roots))


def stage(
    staging: Staging,
    request: Request,
    environ: Mapping[str, str],
    *,
    show: Callable[[str], None],
    every_s: float,
) -> Staged:
    """Copy to all nodes of the request, and report the progress at intervals through `show`.

    If a node fails, removes incomplete copies and raises. On return no agent is running, unless images are mounted.
    """
    roots, to = _checked(staging)
    plan = plan_request(_with_sources(request, roots), environ, here=True).plan
    settings = read_settings(environ)
    folder = make_folder(request.run_dir, settings.runs_dir, plan.name, state_dir=settings.state_dir)
    with folder.used_by("stage"):
        return _staged(staging, plan, folder, (roots, to), environ, StageProgress(plan.nodes, show, every_s))


def _staged(
    staging: Staging,
    plan: Plan,
    folder: RunFolder,
    where: tuple[tuple[CacheRoot, ...], str],
    environ: Mapping[str, str],
    progress: StageProgress,
) -> Staged:
    roots, to = where
    hosts = plan_hosts(plan)
    facts = JobFacts(run_dir=str(folder.path), run_id=folder.run_id, uid=os.getuid())
    write_host_file(plan, folder, hosts)
    service = stage_service(roots, to, extract=staging.extract, shard=staging.shard, one_reader=staging.one_reader)
    spec = agents_spec(plan, facts, hosts, (service,), environ)
    agents = Agents(spec, folder, environ)
    mounted = staging.extract and any(_is_squashfs(root.real) for root in roots)
    began = time.monotonic()
    _copy(agents, folder, progress, mounted)
    seconds = time.monotonic() - began
    if mounted:
        detach(plan, folder, agents, facts, "images")
    else:
        agents.stop()
    return Staged(
        plan=plan,
        folder=folder,
        seconds=seconds,
        places=tuple(f"{to.rstrip('/')}/{_copy_name(root, staging)}" for root in roots),
        bytes_per_node=max((line["staged"] for line in agents.lines if "staged" in line), default=0),
        nodes=tuple({"node": node, **figures} for node, figures in sorted(agents.ended("stage").items())),
        mounted=mounted,
        warnings=tuple(warnings(agents.lines)),
    )


def _checked(staging: Staging) -> tuple[tuple[CacheRoot, ...], str]:
    """Return the absolute paths of the sources and the folder in the form that a node reads. Raises `UsageError`."""
    for source in staging.sources:
        if not Path(source).exists():
            raise UsageError(f"{source} does not exist", hint="give files or folders that every node can read")
        if staging.extract and source.endswith(_SQUASHFS_NAMES) and not _is_squashfs(source):
            raise UsageError(f"{source} is not a squashfs image", hint="create it again, or copy it without --extract")
    if staging.shard and staging.one_reader:
        raise UsageError(
            "--shard lets every node read its own part, so one reader is not possible",
            hint="leave --one-reader or --shard out",
        )
    paths = tuple(os.path.abspath(Path(source).expanduser()) for source in staging.sources)  # noqa: PTH100  links stay
    roots = declared_roots(((path, str(Path(path).resolve())) for path in paths), "stage")
    if len({Path(root.path).name for root in roots}) < len(roots):
        raise UsageError("two sources have the same name", hint="stage them into separate folders")
    to = str(Path(staging.to).expanduser()) if staging.to.startswith("~") else staging.to
    if not to.startswith(("/", "${")):
        raise UsageError(
            f"--to {to} is not an absolute path",
            hint="each node has another current folder, so give a path that starts with /",
        )
    return roots, to


def _copy_name(root: CacheRoot, staging: Staging) -> str:
    """Return the name of a copy.

    Archives and images become a folder without the suffix, other sources keep their name.
    """
    path = Path(root.path)
    if staging.extract and _is_squashfs(root.real):
        return path.stem
    archive = archive_of(path.name) if staging.extract else None
    return archive.stem if archive is not None else path.name


def _copy(agents: Agents, folder: RunFolder, progress: StageProgress, mounted: bool) -> None:
    """Start the agents. They are up when everything is copied."""

    def look() -> bool:
        progress.look(agents.lines)
        return False

    try:
        agents.start(look, detached=mounted)
    except MachineError as error:
        text = f"cannot stage to {error.host}: {error.reason}" if isinstance(error, AgentStartError) else error.message
        more = f"incomplete copies were removed; details are in {folder.part(LOG_FILE)}"
        raise MachineError(text, hint=more) from error


def _is_squashfs(path: str) -> bool:
    if not Path(path).is_file():
        return False
    with open_plain(path, follow=True) as stream:
        return stream.read(len(_SQUASHFS)) == _SQUASHFS
