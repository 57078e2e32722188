"""The catalog of machines: list them, show one, find out which one this is, adopt a new one, check a file of yours."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from windlass.cli.result import Result
from windlass.cli.site_text import adopted_text, site_text
from windlass.errors import MachineError, UsageError, WindlassError
from windlass.plan.site_check import site_misfits
from windlass.procs.atomic import replace_file
from windlass.run.adopt import measure_cluster
from windlass.settings import current_environ, read_settings
from windlass.sites.adopted import site_file_text
from windlass.sites.catalog import load_site, site_names, sites_of_file
from windlass.sites.check import Problem, check_file, check_text, located
from windlass.sites.detect import detect_site
from windlass.sites.folders import catalog_names, catalog_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sub = parser.add_subparsers(
        dest="action", required=True, metavar="list | show NAME | detect | adopt NAME | check FILE"
    )
    for name, text in (("list", "all machines"), ("detect", "what machine am I on, and how do you know")):
        sub.add_parser(name, help=text).add_argument("--json", action="store_true")
    show = sub.add_parser("show", help="everything known about one machine, with sources")
    show.add_argument("name")
    show.add_argument("--partition")
    show.add_argument("--json", action="store_true")
    adopt = sub.add_parser("adopt", help="measure this cluster and write a site file of it")
    adopt.add_argument("name", help="what to call it; `--site NAME` finds it then")
    adopt.add_argument(
        "--output", metavar="FILE", help="where to write (default: sites/NAME.toml in the config folder)"
    )
    adopt.add_argument("--force", action="store_true", help="replace a file that is there")
    adopt.add_argument("--json", action="store_true")
    check = sub.add_parser("check", help="validate a site file of yours")
    check.add_argument("files", nargs="+", metavar="FILE")
    check.add_argument("--json", action="store_true")


def main(args: argparse.Namespace) -> Result:
    settings = read_settings(current_environ())
    if args.action == "list":
        return _list(settings.config_dir)
    if args.action == "show":
        site = load_site(args.name, partition=args.partition, config_dir=settings.config_dir)
        return Result(text=site_text(site), data=site)
    if args.action == "detect":
        detection = detect_site(config_dir=settings.config_dir, environ=current_environ(), ask_scheduler=True)
        return Result(text="\n".join(detection.lines()), data=detection)
    if args.action == "adopt":
        return _adopt(args, settings.config_dir)
    problems = [p for file in args.files for p in _check(Path(file), settings.config_dir)]
    text = "\n".join(problem.text() for problem in problems) or "no problems"
    return Result(text=text, data=problems, exit_code=2 if problems else 0)


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def _adopt(args: argparse.Namespace, config_dir: Path) -> Result:
    if not _NAME.fullmatch(args.name):
        raise UsageError(f"a site cannot be called {args.name!r}", hint="letters, digits and . _ - inside")
    if catalog_path("site", args.name):
        raise UsageError(f"{args.name} is in the catalog already", hint="choose another name")
    target = Path(args.output) if args.output else config_dir / "sites" / f"{args.name}.toml"
    if target.exists() and not args.force:
        raise UsageError(f"{target} is there already", hint="--force replaces it; --output FILE writes elsewhere")
    seen = measure_cluster(args.name, current_environ())
    text = site_file_text(seen)
    problems = check_text(
        text, file=str(target), stem=args.name, known=lambda kind: catalog_names(kind, config_dir), builtin=False
    )
    if problems:
        raise MachineError(f"what was measured makes no site file: {problems[0].text()}", hint="please report this")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, text.encode(), 0o644)
    except OSError as error:
        raise MachineError(f"cannot write {target}: {error.strerror}", hint="--output FILE writes elsewhere") from error
    return Result(text=adopted_text(seen, str(target), by_name=not args.output), data=seen)


def _check(path: Path, config_dir: Path) -> tuple[Problem, ...]:
    """Problems of the file itself; where it has none, what plans would refuse of the site that it makes."""
    problems = check_file(path, config_dir=config_dir)
    if problems:
        return problems
    try:
        return located(path, (m for site in sites_of_file(path, config_dir) for m in site_misfits(site)))
    except WindlassError as error:
        return (Problem(file=str(path), line=1, key="", message=error.message, hint=error.hint or ""),)


def _list(config_dir: Path) -> Result:
    sites = [load_site(name, config_dir=config_dir).file for name in site_names(config_dir)]
    rows = [
        {
            "name": site.name,
            "title": site.title,
            "operator": site.operator,
            "scheduler": site.scheduler.kind,
            "launcher": site.launcher.kind,
            "hardware": site.hardware,
            "network": site.network,
        }
        for site in sites
    ]
    width = max(len(str(row["name"])) for row in rows)
    text = "\n".join(
        f"{row['name']:<{width}}  {row['scheduler']:<6} {row['launcher']:<8} {row['title']}"
        + (f" ({row['operator']})" if row["operator"] else "")
        for row in rows
    )
    return Result(text=text, data=rows)
