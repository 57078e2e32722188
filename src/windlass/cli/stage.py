"""Push files of a shared file system to storage of the nodes, through a tree of nodes: one of them reads.

A folder is copied as it is. A tar archive (also .gz, .zst, .xz) is unpacked while it arrives with --extract. A squashfs
image is copied, and with --extract also mounted beside it until `windlass cache stop`. A SIF image is copied. Each copy
gets its name when it is complete; what was there before is replaced in one step.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from pathlib import Path

import msgspec

from windlass.agents.cache_service import PACKAGES
from windlass.agents.control import LOG_FILE, Agents, agents_spec
from windlass.agents.detached import detach
from windlass.cli.option_groups import add_request_options
from windlass.cli.options import request_from, warn
from windlass.cli.result import Result
from windlass.errors import MachineError, UsageError
from windlass.model.plan import CacheRoot, Plan
from windlass.notation.counts import counted
from windlass.notation.sizes import size_text
from windlass.plan.cache import declared_roots
from windlass.plan.render.rank_script import JobFacts
from windlass.run.folder import RunFolder, make_folder
from windlass.run.node_step import write_host_file
from windlass.run.planning import plan_request
from windlass.run.rendezvous import plan_hosts
from windlass.settings import current_environ, read_settings
from windlass.stage.service import PACKAGES as STAGE_PACKAGES
from windlass.stage.service import Progress, stage_service, warnings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_request_options(parser)
    parser.usage = f"{parser.prog} SRC [SRC…] --to DIR [--extract] [--shard] [options]"
    parser.add_argument("sources", nargs="+", metavar="SRC", help="folders, archives, images")
    parser.add_argument("--to", required=True, metavar="DIR", help="folder on each node; ${NAME} is expanded there")
    parser.add_argument("--extract", action="store_true", help="unpack archives, mount squashfs images")
    parser.add_argument("--shard", action="store_true", help="each node gets its part of the files, not all")
    parser.add_argument(
        "--one-reader", action="store_true", help="the first node alone reads SRC, which may lie on that node"
    )
    parser.add_argument("--json", action="store_true")


def main(args: argparse.Namespace) -> Result:
    environ = current_environ()
    settings = read_settings(environ)
    args.kind, args.command, args.name = "none", [], args.name or "stage"
    for source in args.sources:
        if not Path(source).exists():
            raise UsageError(f"{source} does not exist", hint="sources are files and folders that every node can read")
    paths = tuple(os.path.abspath(Path(source).expanduser()) for source in args.sources)  # noqa: PTH100  links stay
    sources = declared_roots(((path, str(Path(path).resolve())) for path in paths), "stage")
    request = msgspec.structs.replace(request_from(args, environ), stage=paths)
    plan = plan_request(request, environ, here=True).plan
    if args.shard and args.one_reader:
        raise UsageError("--shard has every node read its own part: there is no one reader")
    if len({Path(source.path).name for source in sources}) < len(sources):
        raise UsageError("two sources have the same name", hint="stage them into folders of their own")
    folder = make_folder(args.run_dir, settings.runs_dir, plan.name)
    agents, facts = _agents(plan, folder, sources, args, environ)
    progress = Progress(plan.nodes, _show, 1.0 if _live() else 60.0)

    def look() -> bool:
        progress.look(agents.lines)
        return False

    began = time.monotonic()
    mounted = args.extract and any(_is_squashfs(source.real) for source in sources)
    try:
        agents.start(look, detached=mounted)
    except MachineError as error:
        raise _as_staging(error, folder) from error
    finally:
        _clear()
    seconds = time.monotonic() - began
    if mounted:
        detach(plan, folder, agents, facts, "images")
    else:
        agents.stop()
    for text in warnings(agents.lines):
        warn(f"windlass: warning: {text}, what was staged there included")
    return _result(plan, folder, agents, args.to, seconds, mounted)


def _agents(
    plan: Plan, folder: RunFolder, sources: tuple[CacheRoot, ...], args: argparse.Namespace, environ: dict[str, str]
) -> tuple[Agents, JobFacts]:
    hosts = plan_hosts(plan)
    facts = JobFacts(run_dir=str(folder.path), run_id=folder.run_id, uid=os.getuid())
    write_host_file(plan, folder, hosts)
    to = str(Path(args.to).expanduser()) if args.to.startswith("~") else args.to
    if not to.startswith(("/", "${")):
        raise UsageError(f"--to {to} is not a full path", hint="each node starts in a folder of its own")
    service = stage_service(sources, to, extract=args.extract, shard=args.shard, one_reader=args.one_reader)
    spec = agents_spec(plan, facts, hosts, (service,), PACKAGES | STAGE_PACKAGES)
    return Agents(spec, folder, environ), facts


def _as_staging(error: MachineError, folder: RunFolder) -> MachineError:
    """The agents' words as this command says them."""
    found = re.fullmatch(r"the agent on (\S+) did not start: (?:\w+: )?(.*)", error.message, re.DOTALL)
    text = f"cannot stage to {found[1]}: {found[2]}" if found else error.message
    return MachineError(text, hint=f"copies that were not complete are gone; more is in {folder.part(LOG_FILE)}")


def _result(plan: Plan, folder: RunFolder, agents: Agents, to: str, seconds: float, mounted: bool) -> Result:
    ended = agents.ended("stage")
    size = max((line["staged"] for line in agents.lines if "staged" in line), default=0)
    text = f"staged to {to} on {counted(plan.nodes, 'node')} in {seconds:.1f} s"
    if size:
        text += f" ({size_text(size)} a node, {size_text(size / max(seconds, 1e-3))}/s)"
    if mounted:
        text += f"\nmounted until: windlass cache stop {folder.path}"
    data = {"to": to, "nodes": plan.nodes, "seconds": round(seconds, 3), "run_dir": str(folder.path)}
    nodes = [{"node": node, **figures} for node, figures in sorted(ended.items())]
    return Result(text=text, data={**data, "staged": nodes, "mounted": mounted})


def _is_squashfs(path: str) -> bool:
    if not Path(path).is_file():
        return False
    with Path(path).open("rb") as stream:
        return stream.read(4) == b"hsqs"


def _live() -> bool:
    return sys.stderr.isatty()


def _clear() -> None:
    if _live():
        print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


def _show(text: str) -> None:
    if _live():
        print(f"\r\x1b[2Kwindlass: {text}", end="", file=sys.stderr, flush=True)
    else:
        print(f"windlass: {text}", file=sys.stderr, flush=True)
