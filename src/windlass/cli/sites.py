"""The catalog of machines: list them, show one, find out which one this is, adopt a new one, check a file of yours."""

from __future__ import annotations

import argparse
from pathlib import Path

from windlass.base.settings import ConfigFolders, current_environ, read_settings
from windlass.cli.result import Result
from windlass.cli.site_text import adopted_text, centre_text, site_text
from windlass.errors import WindlassError
from windlass.model.finding import Finding
from windlass.plan.site_check import site_misfits
from windlass.run.adopt import adopt_site
from windlass.sites.catalog import load_site, site_names, sites_of_file
from windlass.sites.check import check_file, located, problem
from windlass.sites.detect import detect_site


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true")
    sub = parser.add_subparsers(
        dest="action", required=True, metavar="list | show [NAME] | detect | adopt NAME | check FILE"
    )
    for name, text in (("list", "all machines"), ("detect", "what machine am I on, and how do you know")):
        sub.add_parser(name, help=text)
    show = sub.add_parser("show", help="everything known about one machine, with sources")
    show.add_argument("name", nargs="?", metavar="NAME", help="default: the machine that this is")
    show.add_argument("--partition")
    adopt = sub.add_parser("adopt", help="measure this cluster and write a site file of it")
    adopt.add_argument("name", help="what to call it; `--site NAME` finds it then")
    adopt.add_argument(
        "--output", metavar="FILE", help="where to write (default: sites/NAME.toml in the config folder)"
    )
    adopt.add_argument("--force", action="store_true", help="replace a file that is there")
    check = sub.add_parser("check", help="validate a site file of yours")
    check.add_argument("files", nargs="+", metavar="FILE")


def progress(args: argparse.Namespace) -> str | None:
    return "measuring this cluster" if args.action == "adopt" else "looking"


def main(args: argparse.Namespace) -> Result:
    settings = read_settings(current_environ())
    if args.action == "list":
        return _list(settings.folders)
    if args.action == "show":
        name = args.name or settings.site or detect_site(folders=settings.folders, environ=current_environ()).name
        site = load_site(name, partition=args.partition, folders=settings.folders)
        return Result(text=site_text(site) + centre_text(settings, site), data=site)
    if args.action == "detect":
        detection = detect_site(folders=settings.folders, environ=current_environ(), ask_scheduler=True)
        return Result(text="\n".join(detection.lines()), data=detection)
    if args.action == "adopt":
        return _adopt(args, settings.folders)
    problems = [p for file in args.files for p in _check(Path(file), settings.folders)]
    text = "\n".join(one.sentence() for one in problems) or "no problems"
    return Result(text=text, data=problems, exit_code=2 if problems else 0)


def _adopt(args: argparse.Namespace, folders: ConfigFolders) -> Result:
    target = Path(args.output) if args.output else None
    adopted = adopt_site(args.name, current_environ(), folders=folders, target=target, replace=args.force)
    text = adopted_text(adopted.seen, str(adopted.path), by_name=not args.output)
    return Result(text=text, data=adopted.seen)


def _check(path: Path, folders: ConfigFolders) -> tuple[Finding, ...]:
    """Problems of the file itself; where it has none, what plans would refuse of the site that it makes."""
    problems = check_file(path, folders=folders)
    if problems:
        return problems
    try:
        return located(path, (m for site in sites_of_file(path, folders) for m in site_misfits(site)))
    except WindlassError as error:
        return (problem(str(path), 1, error.message, hint=error.hint or ""),)


def _list(folders: ConfigFolders) -> Result:
    sites = [load_site(name, folders=folders).file for name in site_names(folders)]
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
