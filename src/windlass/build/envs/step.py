"""One step of creating or using an environment, and the shell text that both share. Pure."""

from __future__ import annotations

import re

import msgspec

from windlass.base.notation.shell import quote
from windlass.model.condition import Facts, holds
from windlass.model.finding import Finding
from windlass.model.site import ModuleSpec, Site
from windlass.node.libs.closure import version_key


class EnvStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step: lines of bash, and the reason."""

    name: str
    because: str
    commands: tuple[str, ...]
    source: str = ""
    shown: tuple[str, ...] = ()
    """Shown to people instead of the commands."""


def shown_path(path: str) -> str:
    """Return a path of the catalog for people, with the shell's variables instead of `{account}`."""
    return path.replace("{account_lower}", "${ACCOUNT,,}").replace("{account}", "${ACCOUNT}")


def with_account(path: str, account: str) -> str:
    """Return a path of the catalog with the project in it. Without a project, the path does not change."""
    if not account:
        return path
    return path.replace("{account_lower}", account.lower()).replace("{account}", account)


def shell_path(path: str) -> str:
    """Quote a path of the catalog (`{account}`, `${USER}`) or of the user as one argument of bash."""
    if "{account" not in path and "${" not in path:
        return quote(path)
    return '"' + re.sub(r'[\\"`]|\$(?!\{)', lambda match: "\\" + match[0], shown_path(path)) + '"'


def site_modules(site: Site, build: str = "") -> tuple[ModuleSpec, ...]:
    """Return the modules for an environment: the site's defaults on one node, and the additional ones that it needs.

    If the site has modules only for this build of torch, return those.
    """
    if own := tuple(spec for spec in site.file.modules if build and spec.torch == build):
        return own
    facts = Facts(nodes=1, ranks_per_node=1, scheduler=site.file.scheduler.kind, launcher="local")
    wanted = set(site.file.python.modules)
    return tuple(
        spec
        for spec in site.file.modules
        if (spec.default and holds(spec.when, facts)) or {name.split("/", 1)[0] for name in spec.load} & wanted
    )


def other_rocm(version: str, site: Site, build: str) -> tuple[Finding, ...]:
    """Warn if torch was built for a different ROCm than that of the modules."""
    loaded = (
        name.partition("/")[2] for one in site_modules(site, build) for name in one.load if name.startswith("rocm/")
    )
    rocm = next(loaded, "")
    if not rocm or version_key(version)[:2] == version_key(rocm)[:2]:
        return ()
    text = f"ROCm {version} in torch, {rocm} in the site's module: mixed libraries fail in odd ways"
    return (Finding("torch", "warning", text, "take the wheel for that ROCm, or that module"),)


def use_steps(path: str, site: Site, build: str = "") -> tuple[EnvStep, ...]:
    """Return the steps to use the environment in jobs."""
    spec, storage = site.file.python, site.file.storage
    where = '"$ENV"'
    modules = "".join(f" --module {name}" for name in spec.modules)
    if spec.beneath == "image":
        return _use_with_image(where)
    chosen = site_modules(site, build)
    load = tuple(dict.fromkeys(name for one in chosen for name in one.load))
    if any(one.torch for one in chosen):
        modules = " --module none" + "".join(f" --module {name}" for name in load)
    by_hand = [f"module load {' '.join(load)}"] if load else []
    activate = f"source activate {where}" if spec.kind == "conda" else f"source {where}/bin/activate"
    to = storage.stage or storage.local
    name = path.rstrip("/").rpartition("/")[2]
    on_request = any(spec.when.option == "nvme" for spec in site.file.scheduler.directives)
    extra = " --with nvme" if on_request else ""
    return (
        EnvStep(
            name="in a job",
            because="windlass loads the site's modules by itself and activates the environment on every node",
            commands=(f"windlass run{modules} --activate {where} train.py",),
        ),
        EnvStep(
            name="in a batch script",
            because="the same steps as shell lines",
            commands=(*by_hand, *spec.before, activate),
        ),
        EnvStep(
            name="on many nodes",
            because="one node reads the environment and the nodes pass it to each other",
            commands=(f"windlass run{modules} --activate {where} --cache {where} train.py",),
        ),
        EnvStep(
            name="on the nodes' own storage",
            because=f"packed once, then unpacked to {to} on every node of the job",
            commands=(
                f"windlass env pack {where} -o {quote(name)}.tar.gz",
                f"windlass stage {quote(name)}.tar.gz --extract --to {to}{extra}",
                f"windlass run{modules}{extra} --activate {to}/{quote(name)} train.py",
            ),
        ),
    )


def _use_with_image(where: str) -> tuple[EnvStep, ...]:
    return (
        EnvStep(
            name="in a job",
            because="the venv's Python is the image's: it starts only inside the image",
            commands=(f'windlass run --container "$IMAGE" --python {where}/bin/python train.py',),
        ),
        EnvStep(
            name="as one file",
            because="a squashfs file costs one file of the quota, and nodes read it fast",
            commands=(
                f"windlass env pack {where} -o env.sqsh",
                'windlass run --container "$IMAGE" --container-arg=--bind=env.sqsh:/user-software:image-src=/ '
                "--python /user-software/bin/python train.py",
            ),
        ),
    )
