"""Keep what you would repeat on every command line: account, partition, time, the folder of runs.

They go to config.toml in the configuration folder (`~/.config/windlass`), where an editor can change them too. Options
of a command line and variables count more than the file. On a cluster that is in no catalog, a site file is measured
and written as well (`windlass sites adopt`). Without options, and at a terminal, it asks.

    windlass init --account abc123 --partition gpu --time 2h --runs /scratch/me/runs
    windlass init --for lumi --account project_465000001

Job options are kept for the detected site. `--for SITE` keeps them for another one, `--everywhere` for all."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from windlass.backends.schedulers.walltime import parse_walltime
from windlass.base.settings import ConfigFolders, Settings, current_environ, job_keys, read_settings
from windlass.cli.show import Result
from windlass.cli.sites import adopted_text
from windlass.errors import UsageError
from windlass.run.adopt import AdoptedSite, adopt_site, write_config
from windlass.sites.catalog import site_names
from windlass.sites.detect import Detection, detect_site


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--account", "-A", metavar="NAME", help="account that pays for jobs")
    parser.add_argument("--partition", "--queue", "-p", dest="partition", metavar="NAME")
    parser.add_argument("--qos", metavar="NAME")
    parser.add_argument("--time", "-t", metavar="TIME", help="time limit of jobs without --time")
    parser.add_argument("--runs", metavar="DIR", help="folder that contains the run folders")
    parser.add_argument("--site", metavar="NAME", help="name of this machine, if detection is wrong")
    parser.add_argument("--for", dest="only_at", metavar="SITE", help="job options for this site only")
    parser.add_argument(
        "--everywhere", action="store_true", help="job options for all sites, not only the detected one"
    )
    parser.add_argument("--json", action="store_true")


def main(args: argparse.Namespace) -> Result:
    environ = current_environ()
    settings = read_settings(environ)
    detection = detect_site(folders=settings.folders, environ=environ, ask_scheduler=True)
    _refuse_unknown(args, settings.folders)
    if args.everywhere and args.only_at:
        raise UsageError("--everywhere and --for exclude each other", hint="leave one of them out")
    keys = _given(args)
    if not keys and sys.stdin.isatty() and sys.stdout.isatty():
        keys = _ask(settings, detection)
    if "time" in keys:
        parse_walltime(keys["time"])  # refused now, because later it would end every command, far from its cause
    lines: list[str] = []
    adopted = _adopt(settings, detection, environ)
    if adopted is not None:
        lines += [adopted_text(adopted.seen, str(adopted.path), by_name=True), ""]
    path = None
    if keys:
        own = {key: value for key, value in keys.items() if key in job_keys()}
        at = args.only_at or (None if args.everywhere else adopted.seen.name if adopted else detection.site)
        path = write_config(settings.config_dir, at, own) if own else None
        rest = {key: value for key, value in keys.items() if key not in own}
        path = write_config(settings.config_dir, None, rest) if rest else path
        lines += [f"{key} = {value}" + (f" (at {at})" if at and key in own else "") for key, value in keys.items()]
        lines += [f"written to {path}; command-line options override it"]
    elif adopted is None:
        lines += ["nothing to write; next: windlass init --account NAME --partition NAME"]
    data = {"path": str(path) if path else None, "keys": keys, "adopted": str(adopted.path) if adopted else None}
    return Result(text="\n".join(lines), data=data)


def _refuse_unknown(args: argparse.Namespace, folders: ConfigFolders) -> None:
    names = site_names(folders)
    for flag, name in (("--site", args.site), ("--for", args.only_at)):
        if name is not None and name not in names:
            raise UsageError(f"{flag} {name}: no such site", hint="`windlass sites list` lists them")


def _given(args: argparse.Namespace) -> dict[str, str]:
    keys = {key: getattr(args, key) for key in (*job_keys(), "site") if getattr(args, key)}
    if args.runs:
        keys["runs"] = str(Path(args.runs).expanduser().absolute())
    return keys


def _ask(settings: Settings, detection: Detection) -> dict[str, str]:
    """Ask one question per key. An empty answer keeps the current value."""
    print("\n".join(detection.lines()), "", "An empty answer keeps what is in [brackets].", sep="\n")
    answers: dict[str, str] = {}
    now = {key: getattr(settings.job, key) for key in job_keys()} | {"runs": str(settings.runs_dir)}
    for key in (*job_keys(), "runs"):
        try:
            answer = input(f"{key} [{now[key] or 'none'}]: ").strip()
        except EOFError:
            break
        if answer:
            answers[key] = str(Path(answer).expanduser().absolute()) if key == "runs" else answer
    return answers


def _adopt(settings: Settings, detection: Detection, environ: dict[str, str]) -> AdoptedSite | None:
    """Write a site file for a cluster that no file describes, under the cluster's own name."""
    unknown = detection.site is None and detection.fallback != "workstation" and not settings.site
    name = detection.evidence.cluster_name if unknown else None
    return adopt_site(name, environ, folders=settings.folders) if name else None
