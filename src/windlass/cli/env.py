"""A Python environment on the host, the site's way: what to do and why, making it, checking
it, packing it for the nodes."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from windlass.base.notation.counts import counted, size_text
from windlass.base.notation.style import width_of
from windlass.base.settings import current_environ, read_settings
from windlass.build.envs.check import EnvLocation, check_env, machine_facts, probe_host
from windlass.build.envs.create import create_env, refuse_elsewhere
from windlass.build.envs.inspect import inspect_env
from windlass.build.envs.installed import SearchPath
from windlass.build.envs.pack import pack_env
from windlass.build.envs.plan import EnvPlan, EnvRequest, MachineFacts, plan_env
from windlass.build.envs.render import command_lines, plan_text, script_text
from windlass.build.envs.wheels import wheel_table
from windlass.cli.show import Result, say
from windlass.errors import UsageError
from windlass.model.finding import SERIOUS, check_text, finding_lines
from windlass.model.site import Site
from windlass.node.sys.mounts import mount_of, mounts
from windlass.sites.catalog import load_site
from windlass.sites.detect import detect_site

PROGRESS = {"pack": "packing", "check": "reading the environment"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true")
    sub = parser.add_subparsers(dest="action", required=True, metavar="plan | create PATH | check PATH | pack PATH")
    plan = sub.add_parser("plan", help="show the steps for a site, each with its reason")
    create = sub.add_parser("create", help="create the environment on this machine")
    for box in (plan, create):
        box.add_argument("--site", metavar="NAME", help="target machine (default: this one)")
        box.add_argument(
            "--with", dest="extras", metavar="LIST", default="", help=f"packages: {','.join(wheel_table().extras)}, …"
        )
        box.add_argument(
            "--torch",
            metavar="VERSION",
            default="",
            help="version, build or both: 2.10.0, 2.10.0+cu128, +rocm7.1; none: no torch",
        )
        box.add_argument("--torch-index", metavar="URL", default="", help="index for torch; none: as pip is configured")
        box.add_argument("--python", metavar="PYTHON", default="", help="interpreter of a venv, version for conda")
        box.add_argument("--image", metavar="IMAGE", default="", help="base image, if the site uses one")
    plan.add_argument(
        "--path", metavar="PATH", default="", help="target folder (default: the site's folder for environments)"
    )
    plan.add_argument(
        "--account",
        "-A",
        metavar="NAME",
        default="",
        help="your project, for the site's folder (default: from config.toml)",
    )
    plan.add_argument("--format", choices=("text", "script"), default="text")
    create.add_argument("path", metavar="PATH", help="folder of the environment; it must not exist")
    check = sub.add_parser("check", help="show its packages, and whether it works on a site")
    check.add_argument("path", metavar="PATH", nargs="?", help="folder of the environment (default: the active one)")
    check.add_argument("--site", metavar="NAME", help="target machine (default: this one)")
    pack = sub.add_parser("pack", help="write a relocatable archive, for windlass stage")
    pack.add_argument("path", metavar="PATH", help="folder of the environment")
    pack.add_argument("--output", "-o", metavar="FILE", help=".tar.gz (default), .tar.zst, .tar, .sqsh or .squashfs")
    pack.add_argument("--with-python", action="store_true", help="pack the interpreter of a venv too")
    pack.add_argument("--force", action="store_true", help="replace an existing archive")


def main(args: argparse.Namespace) -> Result:
    actions = {"plan": _plan, "create": _create, "check": _check, "pack": _pack}
    return actions[args.action](args)


def _site_here() -> str:
    environ = current_environ()
    return detect_site(read_settings(environ).folders, environ=environ).name


def _site(name: str | None) -> tuple[Site, bool]:
    """The site, and whether it is this machine."""
    here = _site_here()
    chosen = name or here
    return load_site(chosen, folders=read_settings(current_environ()).folders), chosen == here


def _own_account(site: str) -> str:
    """The account that `windlass init` saved, for this site or for all sites."""
    settings = read_settings(current_environ())
    of_site = settings.job_at.get(site)
    return (of_site.account if of_site else None) or settings.job.account or ""


def _planned(args: argparse.Namespace, path: str, account: str = "") -> EnvPlan:
    site, here = _site(args.site)
    request = EnvRequest(
        account=account or _own_account(site.name),
        path=path,
        extras=tuple(dict.fromkeys(name.strip() for name in args.extras.split(",") if name.strip())),
        torch=args.torch,
        torch_index=args.torch_index,
        python=os.path.abspath(args.python) if "/" in args.python else args.python,  # noqa: PTH100  links stay
        image=args.image,
    )
    # Login nodes have no devices, so the catalog provides the devices of the nodes there.
    own = here and site.file.scheduler.kind == "none"
    return plan_env(request, site, machine_facts(probe_host()) if own else MachineFacts())


def _plan(args: argparse.Namespace) -> Result:
    plan = _planned(args, args.path, args.account)
    if args.format == "script":
        return Result(text=script_text(plan), data=plan, foreign=True)
    width = width_of(sys.stdout, current_environ())
    findings = finding_lines(plan.findings)
    text = plan_text(plan, findings, width) if width else plan_text(plan, findings)
    return Result(text=text, data=plan, verbatim=frozenset(command_lines(plan)))


def _create(args: argparse.Namespace) -> Result:
    path = str(Path(args.path).expanduser().absolute())
    plan = _planned(args, path)
    refuse_elsewhere(plan, _site_here())
    for finding in plan.findings:
        if finding.severity in SERIOUS:
            _tell(f"{finding.severity}: {finding.text()}")
    made = create_env(plan, current_environ(), _tell)
    if made.already:
        lines = [f"{made.path} already exists, made by the same command: nothing was done"]
    else:
        lines = [f"made {made.path} in {made.seconds:.0f} s; log: {made.log}"]
    lines += [f"use it: windlass run --activate {made.path} train.py"]
    return Result(text="\n".join(lines), data=made)


def _check(args: argparse.Namespace) -> Result:
    environ = current_environ()
    path = args.path or environ.get("VIRTUAL_ENV") or environ.get("CONDA_PREFIX")
    if not path:
        raise UsageError("which environment? none is active", hint="windlass env check PATH")
    home = environ.get("HOME", "")
    search = SearchPath(
        modules=tuple(filter(None, environ.get("PYTHONPATH", "").split(":"))),
        libraries=tuple(filter(None, environ.get("LD_LIBRARY_PATH", "").split(":"))),
        user=f"{home}/.local/lib" if home and not environ.get("PYTHONNOUSERSITE") else "",
        current=str(Path.cwd()),
    )
    facts = inspect_env(path, search)
    site, here = _site(args.site)
    mount = mount_of(os.path.realpath(facts.path), mounts())
    seen = mount.file_system if mount.served_by == "shared" else ""
    place = EnvLocation(file_system=seen, home=home)
    check = check_env(facts, site, probe_host() if here else None, place)
    about = f"{facts.kind}, Python {facts.python or 'unknown'}, {counted(len(facts.packages), 'package')}"
    text = check_text(f"{facts.path}: {about}", check.findings, check.site)
    return Result(text=text, data=check, exit_code=1 if check.severity == "error" else 0)


def _pack(args: argparse.Namespace) -> Result:
    name = Path(args.path).expanduser().absolute().name
    packed = pack_env(
        args.path,
        args.output or f"{name}.tar.gz",
        with_python=args.with_python,
        environ=current_environ(),
        force=args.force,
    )
    sizes = f"{size_text(packed.size_bytes)} of {size_text(packed.source_bytes)}, {counted(packed.entries, 'file')}"
    lines = [f"packed {packed.file}: {sizes}, {packed.seconds:.0f} s"]
    lines += [f"needs on the node: {need}" for need in packed.needs]
    if packed.left:
        some = ", ".join(packed.left[:3]) + (" …" if len(packed.left) > 3 else "")
        lines.append(
            f"still names the old place: {counted(len(packed.left), 'file')} ({some}); programs among them may fail"
        )
    stem = Path(packed.file).name.split(".", 1)[0]
    lines += [f"use it: windlass stage {packed.file} --extract --to DIR; windlass run --activate DIR/{stem} train.py"]
    return Result(text="\n".join(lines), data=packed)


def _tell(text: str) -> None:
    say(f"windlass: {text}")
