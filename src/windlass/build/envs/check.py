"""Whether an environment will work on a site: findings about what is in it, each with a remedy, and a verdict. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from windlass.build.envs.inspect import EnvFacts, MpiModule
from windlass.build.envs.place import place_findings
from windlass.build.envs.probe import HostFacts
from windlass.build.envs.step import site_modules
from windlass.build.envs.wheels import least_driver
from windlass.build.images.check import LEVELS, Finding, Level, finding_lines, verdict_text
from windlass.node.libs.closure import version_key
from windlass.model.site import Site
from windlass.base.notation.counts import counted

_NAMED = 3
_ABI = {"libmpi.so.40": "Open MPI", "libmpi.so.12": "MPICH's ABI", "libmpi.so.0": "MPI's standard ABI"}
_REMAKE = "make it anew in its place: windlass env create"


class EnvCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The whole check; `verdict` is the worst level of its findings."""

    facts: EnvFacts
    site: str
    findings: tuple[Finding, ...]
    verdict: Level


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where it lies: the file system as this machine names it, where many nodes share it, and the user's home."""

    file_system: str = ""
    home: str = ""


def check_env(facts: EnvFacts, site: Site, host: HostFacts | None, place: Place) -> EnvCheck:
    """Hold the environment against the site. `host` is this machine, where it is the site's; else None."""
    findings = (
        *_interpreter(facts),
        *_machine(facts, site, host),
        *_torch(facts, site, host),
        *_collectives(facts, site),
        *_mpi(facts, site, host),
        *_packages(facts),
        *_paths(facts),
        *place_findings(facts.path, site, seen=place.file_system, home=place.home),
        *_made_for(facts, site),
    )
    verdict: Level = max((finding.level for finding in findings), key=LEVELS.index, default="ok")
    return EnvCheck(facts=facts, site=site.name, findings=findings, verdict=verdict)


def check_text(check: EnvCheck) -> str:
    """For people."""
    facts = check.facts
    about = f"{facts.kind}, Python {facts.python or 'unknown'}, {counted(len(facts.packages), 'package')}"
    lines = [f"{facts.path}: {about}", "", *finding_lines(check.findings), ""]
    return "\n".join([*lines, f"verdict on {check.site}: {verdict_text(check.findings)}"])


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return ", ".join(listed[:_NAMED]) + more


def _interpreter(facts: EnvFacts) -> Iterator[Finding]:
    if facts.incomplete or not facts.base_found:
        what = "it has no bin/python" if facts.incomplete else f"its base interpreter {facts.base} is not there"
        remedy = "load the module (or start the image) that it was made with, or " + _REMAKE
        yield Finding(level="error", topic="python", text=what, remedy=remedy)
    elif _other_version(facts):
        text = f"{facts.base} is not the Python {facts.python} that its packages were installed for"
        yield Finding(level="error", topic="python", text=text, remedy=_REMAKE)
    elif facts.base and not facts.base.startswith(("/usr/", "/opt/")):
        text = (
            f"{facts.python}, a venv of {facts.base}: every node must have that file, and reads its library from there"
        )
        remedy = "windlass run --cache ENV --cache BASE, or windlass env pack --with-python"
        yield Finding(level="note", topic="python", text=text, remedy=remedy)
    elif facts.base:
        text = f"{facts.python}, a venv of {facts.base}, which every node must have in the same version"
        yield Finding(level="ok", topic="python", text=text)
    else:
        yield Finding(level="ok", topic="python", text=f"{facts.python}, its own")


def _other_version(facts: EnvFacts) -> bool:
    """Whether the base was replaced by another minor version, as an update of the system or of a module does."""
    name = re.search(r"python(3\.\d+)\Z", facts.base)
    return name is not None and facts.python.split(".")[:2] != name[1].split(".")


def _machine(facts: EnvFacts, site: Site, host: HostFacts | None) -> Iterator[Finding]:
    wanted = site.file.node.arch or (host.machine if host else "")
    if facts.machine and wanted and facts.machine != wanted:
        text = f"it is for {facts.machine}, the nodes of {site.name} are {wanted}"
        yield Finding(level="error", topic="machine", text=text, remedy=f"make it on a machine with {wanted}")
    elif facts.machine:
        yield Finding(level="ok", topic="machine", text=facts.machine)
    if facts.foreign:
        text = f"libraries for another machine ({len(facts.foreign)}): {_some(facts.foreign)}"
        yield Finding(level="warning", topic="machine", text=text, remedy="install the package again on this machine")
    if facts.damaged:
        text = f"damaged libraries ({len(facts.damaged)}): {_some(facts.damaged)}"
        remedy = "install the package again: pip install --force-reinstall --no-deps PACKAGE"
        yield Finding(level="error", topic="libraries", text=text, remedy=remedy)
    if host and host.glibc and facts.glibc and version_key(facts.glibc) > version_key(host.glibc):
        text = f"{facts.glibc_by} needs glibc {facts.glibc}, this machine has {host.glibc}"
        remedy = "take an older wheel, build the package here, or use a container"
        yield Finding(level="error", topic="glibc", text=text, remedy=remedy)
    elif facts.glibc:
        seen = f"; this machine has {host.glibc}" if host and host.glibc else ""
        yield Finding(level="ok", topic="glibc", text=f"{facts.glibc} at least ({facts.glibc_by}){seen}")


def _torch(facts: EnvFacts, site: Site, host: HostFacts | None) -> Iterator[Finding]:
    torch, vendor = facts.torch, (host.vendor if host else "") or site.file.devices.vendor or ""
    if not torch.get("__version__"):
        if "torch" in facts.packages:
            yield Finding(level="error", topic="torch", text="torch/version.py is missing or damaged", remedy=_REMAKE)
        else:
            yield _without_torch(facts, site, vendor)
        return
    build = f"CUDA {torch['cuda']}" if "cuda" in torch else f"ROCm {torch['hip']}" if "hip" in torch else ""
    build = build or ("XPU" if "xpu" in torch else "CPU only")
    text = f"{torch['__version__']} ({build})"
    mine = {"cuda": "nvidia", "hip": "amd", "xpu": "intel"}
    fits = next((mine[key] for key in mine if key in torch), "")
    if vendor and fits != vendor:
        remedy = f"windlass env plan --site {site.name} says which wheel fits"
        yield Finding(
            level="error", topic="torch", text=f"{text} does not use the site's devices ({vendor})", remedy=remedy
        )
        return
    need = least_driver(torch["cuda"]) if "cuda" in torch else ""
    if need and host and host.driver and version_key(host.driver) < version_key(need):
        text = f"{text} needs driver {need} or newer, this machine has {host.driver}"
        remedy = "take a build for an older CUDA: windlass env create --torch +cu126"
        yield Finding(level="error", topic="torch", text=text, remedy=remedy)
        return
    driver = f", driver {host.driver}" if host and host.driver else f", needs driver {need}" if need else ""
    yield Finding(level="ok", topic="torch", text=text + driver)
    rocm = next((n.partition("/")[2] for one in site_modules(site) for n in one.load if n.startswith("rocm/")), "")
    if rocm and "hip" in torch and version_key(torch["hip"])[:2] != version_key(rocm)[:2]:
        text = f"ROCm {torch['hip']} in torch, {rocm} in the site's module: mixed libraries fail in odd ways"
        yield Finding(level="warning", topic="torch", text=text, remedy="take the wheel for that ROCm, or that module")


def _without_torch(facts: EnvFacts, site: Site, vendor: str) -> Finding:
    """It may lie beneath, where a module or an image has it, or not be wanted."""
    if "torch" in facts.beneath_packages:
        return Finding(level="ok", topic="torch", text=f"{facts.beneath_packages['torch']}, beneath it")
    if facts.beneath and site.file.python.beneath != "nothing":
        text = f"not installed: it must come from the {site.file.python.beneath} beneath"
        remedy = f"windlass env plan --site {site.name} says from which"
        return Finding(level="note", topic="torch", text=text, remedy=remedy)
    remedy = f"windlass env plan --site {site.name} says which wheel fits"
    return Finding(level="warning" if vendor else "note", topic="torch", text="not installed", remedy=remedy)


def _collectives(facts: EnvFacts, site: Site) -> Iterator[Finding]:
    nccl = {name: version for name, version in facts.packages.items() if name.startswith("nvidia-nccl")}
    for name, version in nccl.items():
        yield Finding(level="ok", topic="NCCL", text=f"{version} ({name})")
    if len(facts.plugins) > 1:
        text = f"{len(facts.plugins)} network plugins compete: {_some(facts.plugins)}"
        remedy = "keep one, or name it: --env NCCL_NET_PLUGIN=PATH"
        yield Finding(level="warning", topic="plugin", text=text, remedy=remedy)
    elif facts.plugins:
        yield Finding(level="ok", topic="plugin", text=facts.plugins[0])
    elif site.file.fabric.plugin and set(facts.torch) & {"cuda", "hip"}:
        by = [plugin.by for plugin in site.file.fabric.plugins]
        text = f"none in it: {site.file.fabric.plugin} must come from the site"
        where = f" ({', '.join(by)})" if by else ""
        remedy = f"`windlass plan --nodes 2` says whether the job would have it{where}"
        yield Finding(level="note", topic="plugin", text=text, remedy=remedy)


def _mpi(facts: EnvFacts, site: Site, host: HostFacts | None) -> Iterator[Finding]:
    if not facts.mpi:
        return
    if len(facts.mpi) > 1 or not facts.mpi[0].library:
        text = "mpi4py is a wheel, which takes whatever MPI it finds first when it starts"
        cray = site.file.python.mpicc.startswith("cc")
        install = "pip install --no-cache-dir --no-binary=mpi4py --force-reinstall mpi4py"
        remedy = f'MPICC="{site.file.python.mpicc or "mpicc"}" {install}'
        yield Finding(level="warning" if cray else "note", topic="mpi4py", text=text, remedy=remedy)
        return
    module = facts.mpi[0]
    kind = _ABI.get(module.library) or ("Cray MPICH" if re.match(r"libmpi_\w+\.so", module.library) else "another ABI")
    if site.file.python.mpicc.startswith("cc") and kind == "Open MPI":
        text = (
            f"linked with {module.library} (Open MPI); the MPI of {site.name} is Cray MPICH: every rank would be rank 0"
        )
        remedy = f'build it there: MPICC="{site.file.python.mpicc}" pip install --no-binary=mpi4py mpi4py'
        yield Finding(level="error", topic="mpi4py", text=text, remedy=remedy)
        return
    yield _linked(module, kind, host)


def _linked(module: MpiModule, kind: str, host: HostFacts | None) -> Finding:
    if host is not None and not module.place:
        text = f"linked with {module.library} ({kind}), which the loader does not find here"
        return Finding(
            level="warning", topic="mpi4py", text=text, remedy="load the module of the MPI it was built with"
        )
    where = f" at {module.place}" if module.place and host is not None else ""
    return Finding(level="ok", topic="mpi4py", text=f"linked with {module.library} ({kind}){where}")


def _packages(facts: EnvFacts) -> Iterator[Finding]:
    if facts.twice:
        text = f"installed twice: {_some(facts.twice)}"
        remedy = "pip uninstall the package until it is gone, then install it once"
        yield Finding(level="error", topic="packages", text=text, remedy=remedy)
    for package, need, found in facts.unmet[:_NAMED]:
        what = f"which is {found}" if found else "which is not there"
        unsure = facts.beneath and not facts.beneath_packages and not found
        text = f"{package} needs {need}, {what}" + (
            " (the packages beneath cannot be seen from here)" if unsure else ""
        )
        level: Level = "note" if unsure else "warning"
        yield Finding(level=level, topic="packages", text=text, remedy=f"pip install '{need.replace(' ', '')}'")
    if len(facts.unmet) > _NAMED:
        yield Finding(
            level="note", topic="packages", text=f"and {len(facts.unmet) - _NAMED} more needs that are not met"
        )
    both = sorted(
        name for name in set(facts.packages) & set(facts.beneath_packages) if name not in ("pip", "setuptools")
    )
    heavy = [name for name in both if name in ("torch", "mpi4py", "deepspeed") or name.startswith("nvidia-")]
    if heavy:
        text = f"{_some(heavy)} hides the site's own beneath it, which is built for the machine"
        yield Finding(level="warning", topic="packages", text=text, remedy=f"pip uninstall {' '.join(heavy)}")
    elif both:
        yield Finding(level="note", topic="packages", text=f"newer than, or instead of, what is beneath: {_some(both)}")


def _paths(facts: EnvFacts) -> Iterator[Finding]:
    if facts.moved:
        text = (
            f"{counted(len(facts.moved), 'script')} start another Python ({_some(f'{n}: {p}' for n, p in facts.moved)})"
        )
        remedy = f"it was moved or copied: {_REMAKE}, or use `python -m NAME`; windlass env pack makes copies that work"
        yield Finding(level="error", topic="moved", text=text, remedy=remedy)
    gone = [path for path in facts.outside if not path.found]
    if gone:
        text = f"paths that are gone: {_some(f'{path.path} ({path.by})' for path in gone)}"
        remedy = "install the package again, or remove the .pth file"
        yield Finding(level="error", topic="paths", text=text, remedy=remedy)
    editable = [path.path for path in facts.outside if path.found and path.editable]
    if editable:
        text = f"installed with pip install -e, so the code lies outside: {_some(editable)}"
        remedy = "nodes read it from there: add --cache for it, or install it without -e"
        yield Finding(level="warning", topic="paths", text=text, remedy=remedy)
    others = [path.path for path in facts.outside if path.found and not path.editable]
    if others:
        yield Finding(level="note", topic="paths", text=f".pth files lead out of it: {_some(others)}")


def _made_for(facts: EnvFacts, site: Site) -> Iterator[Finding]:
    if facts.made_for and facts.made_for != site.name:
        text = f"windlass made it for {facts.made_for}, not for {site.name}"
        yield Finding(level="warning", topic="site", text=text, remedy=f"windlass env plan --site {site.name}")
