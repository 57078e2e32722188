"""A Python environment on the host, the site's way: what to do and why, and making it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from windlass.cli.result import Result
from windlass.envs.create import create_env, refuse_elsewhere
from windlass.envs.extras import KNOWN_EXTRAS
from windlass.envs.plan import EnvPlan, EnvRequest, MachineFacts, plan_env
from windlass.envs.probe import machine_facts, probe_host
from windlass.envs.render import plan_text, script_text
from windlass.model.site import Site
from windlass.settings import current_environ, read_settings
from windlass.sites.catalog import load_site
from windlass.sites.detect import detect_site


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sub = parser.add_subparsers(dest="action", required=True, metavar="plan | create PATH")
    plan = sub.add_parser("plan", help="what would be done at a site, step by step, each with its reason")
    create = sub.add_parser("create", help="do it, here")
    for box in (plan, create):
        box.add_argument("--site", metavar="NAME", help="the machine that it is meant for (default: this one)")
        box.add_argument(
            "--with", dest="extras", metavar="LIST", default="", help=f"packages: {','.join(KNOWN_EXTRAS)}, …"
        )
        box.add_argument("--torch", metavar="VERSION", default="", help="2.10.0, 2.10.0+cu128, +rocm7.1; none: without")
        box.add_argument("--torch-index", metavar="URL", default="", help="index for torch; none: as pip is configured")
        box.add_argument("--python", metavar="PYTHON", default="", help="interpreter of a venv, version for conda")
        box.add_argument("--image", metavar="IMAGE", default="", help="the image beneath, where the site uses one")
        box.add_argument("--json", action="store_true")
    plan.add_argument(
        "--path", metavar="PATH", default="", help="where to (default: the site's place for environments)"
    )
    plan.add_argument("--format", choices=("text", "script"), default="text")
    create.add_argument("path", metavar="PATH", help="the environment's folder, which must not be there")


def main(args: argparse.Namespace) -> Result:
    actions = {"plan": _plan, "create": _create}
    return actions[args.action](args)


def _site_here() -> str:
    environ = current_environ()
    return detect_site(read_settings(environ).config_dir, environ=environ).name


def _site(name: str | None) -> tuple[Site, bool]:
    """The site, and whether it is this machine."""
    here = _site_here()
    chosen = name or here
    return load_site(chosen, config_dir=read_settings(current_environ()).config_dir), chosen == here


def _planned(args: argparse.Namespace, path: str) -> EnvPlan:
    site, here = _site(args.site)
    request = EnvRequest(
        path=path,
        extras=tuple(dict.fromkeys(name.strip() for name in args.extras.split(",") if name.strip())),
        torch=args.torch,
        torch_index=args.torch_index,
        python=args.python,
        image=args.image,
    )
    # Login nodes have no devices: there the catalog says what the nodes have.
    own = here and site.file.scheduler.kind == "none"
    return plan_env(request, site, machine_facts(probe_host()) if own else MachineFacts())


def _plan(args: argparse.Namespace) -> Result:
    plan = _planned(args, args.path)
    return Result(text=script_text(plan) if args.format == "script" else plan_text(plan), data=plan)


def _create(args: argparse.Namespace) -> Result:
    path = str(Path(args.path).expanduser().absolute())
    plan = _planned(args, path)
    refuse_elsewhere(plan, _site_here())
    for finding in plan.findings:
        if finding.level in ("warning", "error"):
            _tell(f"{finding.level}: {finding.text}")
    made = create_env(plan, current_environ(), _tell)
    lines = [f"made {made.path} in {made.seconds:.0f} s; log: {made.log}"]
    lines += [f"use it: windlass run --activate {made.path} train.py"]
    return Result(text="\n".join(lines), data=made)


def _tell(text: str) -> None:
    print(f"windlass: {text}", file=sys.stderr, flush=True)
