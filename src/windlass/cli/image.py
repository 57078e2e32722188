"""Images for machines with a fast network: recipes, builds, and what of the host's network an image will use."""

from __future__ import annotations

import argparse
from pathlib import Path

from windlass.cli.result import Result
from windlass.errors import UsageError
from windlass.images.check import check_image, check_text
from windlass.images.inject import injection_text, plan_injection, require_host_libraries
from windlass.images.inspect import inspect_image
from windlass.model.site import Site
from windlass.settings import current_environ, read_settings
from windlass.sites.catalog import load_site


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sub = parser.add_subparsers(dest="action", required=True, metavar="check IMAGE | inject IMAGE")
    check = sub.add_parser("check", help="what is inside, and what will happen with it on a site")
    inject = sub.add_parser("inject", help="what of the host would be put into it, in which order, and why")
    for box in (check, inject):
        box.add_argument("image", help="a folder, a squashfs or SIF file, or an OCI archive")
        box.add_argument("--site", metavar="NAME", required=box is inject, help="the machine that it is meant for")
        box.add_argument("--host-libs", metavar="DIR[:DIR]", help="take the host's network libraries from here")
        box.add_argument("--host-root", metavar="DIR", help="an unpacked copy of a node, instead of this machine")
        box.add_argument("--json", action="store_true")


def main(args: argparse.Namespace) -> Result:
    return _check(args) if args.action == "check" else _inject(args)


def _site(name: str | None) -> Site | None:
    return load_site(name, config_dir=read_settings(current_environ()).config_dir) if name else None


def _own(args: argparse.Namespace) -> str:
    """The folders of --host-libs; each has to be there."""
    hint = "give the folder with libfabric.so.1"
    folders = [folder for folder in (args.host_libs or "").split(":") if folder]
    for folder in folders:
        base = Path(args.host_root or "/")
        if not (base / folder.lstrip("/") if args.host_root else Path(folder)).is_dir():
            raise UsageError(f"--host-libs {folder}: there is no such folder", hint=hint)
    return ":".join(folders if args.host_root else [str(Path(folder).absolute()) for folder in folders])


def _host_root(args: argparse.Namespace) -> str:
    if args.host_root and not Path(args.host_root).is_dir():
        raise UsageError(f"--host-root {args.host_root}: there is no such folder")
    return str(Path(args.host_root).absolute()) if args.host_root else "/"


def _check(args: argparse.Namespace) -> Result:
    site, own, root = _site(args.site), _own(args), _host_root(args)
    report, facts = inspect_image(args.image, current_environ())
    injection = None
    if site is not None and (own or site.file.host_libraries.names):
        found = plan_injection(args.image, facts, site.file.host_libraries, own=own, host_root=root)
        elsewhere = found.refused and all(text.startswith("the host has no ") for text in found.refused)
        injection = None if elsewhere else found
    check = check_image(report, site, injection)
    return Result(text=check_text(check), data=check, exit_code=1 if check.verdict == "error" else 0)


def _inject(args: argparse.Namespace) -> Result:
    site, own, root = _site(args.site), _own(args), _host_root(args)
    assert site is not None
    _, facts = inspect_image(args.image, current_environ())
    injection = plan_injection(args.image, facts, site.file.host_libraries, own=own, host_root=root)
    require_host_libraries(injection, site.name)
    return Result(text=injection_text(injection), data=injection, exit_code=3 if injection.refused else 0)
