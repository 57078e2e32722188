"""Images for machines with a fast network: recipes, builds, and what of the host's network an image will use."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from windlass.backends.containers.host_libs import site_means
from windlass.base.settings import current_environ, read_settings
from windlass.build.images.build import BUILDERS, build_image, choose_builder, write_context
from windlass.build.images.check import check_image
from windlass.build.images.inject import Injection, injection_text, is_elsewhere, plan_injection, require_host_libraries
from windlass.build.images.recipe import Recipe, make_recipe
from windlass.build.images.render import containerfile_text, edf_text, singularity_text
from windlass.build.images.spec import EXTRAS, load_spec, spec_names
from windlass.build.images.unpack import inspect_image
from windlass.cli.show import Result, say
from windlass.errors import UsageError
from windlass.model.finding import check_text
from windlass.model.site import Site
from windlass.node.libs.closure import SystemRoot
from windlass.node.libs.decide import ImageFacts
from windlass.node.libs.variables import driver_version
from windlass.sites.catalog import load_site

FORMATS = ("containerfile", "singularity", "edf")
PROGRESS = {"build": "building the image", "check": "reading the image", "inject": "reading the image"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true")
    sub = parser.add_subparsers(
        dest="action", required=True, metavar="plan SPEC | build SPEC | lock SPEC | check IMAGE | inject IMAGE"
    )
    _add_recipe_options(sub)
    lock = sub.add_parser("lock", help="pin the bases of specs by the digests that their registries give now")
    lock.add_argument("specs", nargs="+", metavar="SPEC", help="your own TOML file, or a spec to copy to ./NAME.toml")
    check = sub.add_parser("check", help="show its libraries, and whether it works on a site")
    inject = sub.add_parser("inject", help="show which host libraries windlass adds, in which order, and why")
    for box in (check, inject):
        box.add_argument("image", help="a folder, a squashfs or SIF file, or an OCI archive")
        box.add_argument("--site", metavar="NAME", required=box is inject, help="target machine")
        box.add_argument("--host-libs", metavar="DIR[:DIR]", help="folder with the host's network libraries")
        box.add_argument(
            "--host-root", metavar="DIR", help="unpacked copy of a node's file system, instead of this machine"
        )


def _add_recipe_options(sub: Any) -> None:
    plan = sub.add_parser("plan", help="print the recipe of an image, each step with its reason")
    build = sub.add_parser("build", help="build it with podman, buildah, docker or apptainer")
    for box in (plan, build):
        box.add_argument("spec", help=f"{', '.join(spec_names())}, or your own TOML file")
        box.add_argument("--with", dest="extras", metavar="LIST", help=f"steps: {','.join(EXTRAS)}; none: no step")
        box.add_argument(
            "--set", action="append", default=[], metavar="NAME=VALUE", help="another version of a component"
        )
    plan.add_argument("--format", choices=FORMATS, default=FORMATS[0])
    plan.add_argument("--output", metavar="DIR", help="write the recipe and all files that a build needs")
    build.add_argument("--tag", metavar="NAME", help="name of the image (default: localhost/windlass/SPEC:latest)")
    build.add_argument("--builder", choices=BUILDERS, help="default: the first that is installed")
    build.add_argument("--builder-arg", action="append", default=[], metavar="WORD", help="argument for the builder")
    build.add_argument(
        "--host-libs", metavar="DIR", help="derive an image with these libraries of the host in it (-ss)"
    )
    build.add_argument("--sif", metavar="FILE", help="also write it as a SIF file")
    build.add_argument("--log", metavar="FILE", help="file for the builder's output")


def main(args: argparse.Namespace) -> Result:
    actions = {"plan": _plan, "build": _build, "lock": _lock, "check": _check, "inject": _inject}
    return actions[args.action](args)


def _chosen(args: argparse.Namespace) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in args.set:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise UsageError(f"--set {text}: not NAME=VALUE", hint="e.g. --set libfabric=2.2.0")
        found[name] = value
    return found


def _recipe(args: argparse.Namespace) -> Recipe:
    extras = None
    if args.extras is not None:
        extras = tuple(n for n in args.extras.split(",") if n) if args.extras != "none" else ()
    return make_recipe(load_spec(args.spec), extras, _chosen(args))


def _plan(args: argparse.Namespace) -> Result:
    recipe = _recipe(args)
    if args.output:
        write_context(recipe, Path(args.output).expanduser())
        return Result(
            text=f"written to {args.output}: Containerfile, image.def, windlass-entry, sbom.json", data=recipe
        )
    texts = {"containerfile": containerfile_text, "singularity": singularity_text}
    text = edf_text(recipe, f"{recipe.name}.sqsh") if args.format == "edf" else texts[args.format](recipe)
    return Result(text=text, data=recipe, foreign=True)


def _build(args: argparse.Namespace) -> Result:
    environ = current_environ()
    recipe = _recipe(args)
    builder = choose_builder(args.builder, environ)
    for warning in recipe.warnings:
        say(f"windlass: warning: {warning}")
    log = (
        Path(args.log).expanduser() if args.log else Path(f"windlass-build-{recipe.name}-{time.strftime('%H%M%S')}.log")
    )
    say(f"windlass: building {recipe.name} with {builder[0]}; log: {log.absolute()}")
    built = build_image(
        recipe,
        tag=args.tag or f"localhost/windlass/{recipe.name}:latest",
        builder=builder,
        environ=environ,
        log=log.absolute(),
        host_libs=args.host_libs or "",
        sif=args.sif or "",
        options=tuple(args.builder_arg),
    )
    lines = [f"built {built.image} with {built.builder}; log: {built.log}"]
    lines += [f"with the host's libraries: {built.variant}"] if built.variant else []
    lines += [f"as a file: {built.sif}"] if built.sif else []
    return Result(text="\n".join(lines), data=built)


def _lock(args: argparse.Namespace) -> Result:
    from windlass.build.images.lock import lock_base, lock_text  # imported here: no other action uses the network

    locks = [lock_base(name) for name in args.specs]
    return Result(text="\n".join(map(lock_text, locks)), data=locks, exit_code=int(any(it.problem for it in locks)))


def _site(name: str | None) -> Site | None:
    return load_site(name, folders=read_settings(current_environ()).folders) if name else None


def _own(args: argparse.Namespace) -> str:
    """The directories of --host-libs. Each must exist."""
    for folder in (folders := [folder for folder in (args.host_libs or "").split(":") if folder]):
        base = Path(args.host_root or "/")
        if not (base / folder.lstrip("/") if args.host_root else Path(folder)).is_dir():
            hint = "give the folder with libfabric.so.1"
            raise UsageError(f"--host-libs {folder}: there is no such folder", hint=hint)
    return ":".join(folders if args.host_root else [str(Path(folder).absolute()) for folder in folders])


def _host_root(args: argparse.Namespace) -> str:
    if args.host_root and not Path(args.host_root).is_dir():
        hint = "give the folder with the copy of the host, or leave --host-root out"
        raise UsageError(f"--host-root {args.host_root}: there is no such folder", hint=hint)
    return str(Path(args.host_root).absolute()) if args.host_root else "/"


def _injection(args: argparse.Namespace, facts: ImageFacts, site: Site) -> Injection:
    return plan_injection(
        args.image,
        facts,
        site.file.host_libraries,
        own=_own(args),
        host_root=_host_root(args),
        site_means=site_means(site),
    )


def _check(args: argparse.Namespace) -> Result:
    site, own, root = _site(args.site), _own(args), _host_root(args)
    report, facts = inspect_image(args.image, current_environ())
    injection = None
    if site is not None and (own or site.file.host_libraries.names):
        found = _injection(args, facts, site)
        injection = None if is_elsewhere(found) else found
    check = check_image(report, site, injection, driver_version(SystemRoot(root)))
    about = ", ".join(part for part in (report.kind, report.system, f"{report.libraries} libraries") if part)
    text = check_text(f"{report.image}: {about}", check.findings, check.site)
    return Result(text=text, data=check, exit_code=1 if check.severity == "error" else 0)


def _inject(args: argparse.Namespace) -> Result:
    site = _site(args.site)
    assert site is not None
    _, facts = inspect_image(args.image, current_environ())
    injection = _injection(args, facts, site)
    require_host_libraries(injection, site.name)
    return Result(text=injection_text(injection), data=injection, exit_code=3 if injection.refused else 0)
