"""Check whether an environment will work on a site: findings with remedies, and a verdict. Pure.

The module also reads the facts of this machine that decide which wheels work: CPU, C library, drivers. It only reads
files.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from windlass.base.notation.counts import counted
from windlass.build.envs.inspect import EnvFacts
from windlass.build.envs.libraries import MpiModule
from windlass.build.envs.place import place_findings
from windlass.build.envs.plan import MachineFacts
from windlass.build.envs.step import other_rocm
from windlass.build.envs.wheels import least_driver
from windlass.model.finding import Finding, Severity, worst_severity
from windlass.model.site import Site
from windlass.node.libs.closure import version_key
from windlass.node.sys.reading import read_text
from windlass.node.sys.text import listed

_NVIDIA = Path("/proc/driver/nvidia/version")
_ROCM = Path("/opt/rocm/.info/version")


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that a check runs on."""

    machine: str
    glibc: str
    vendor: str = ""
    driver: str = ""
    runtime: str = ""


def probe_host(root: Path = Path("/")) -> HostFacts:
    """Read the facts of this machine. A missing fact is empty."""

    def read(path: Path) -> str:
        try:
            return read_text(root / str(path).lstrip("/"), errors="replace", follow=True)
        except OSError:
            return ""

    driver = parse_nvidia_version(read(_NVIDIA))
    vendor = "nvidia" if driver else "amd" if (root / "sys/module/amdgpu").exists() else ""
    rocm = re.match(r"\d+(\.\d+)+", read(_ROCM).strip())
    return HostFacts(
        machine=platform.machine(),
        glibc=platform.libc_ver()[1],
        vendor=vendor,
        driver=driver,
        runtime=rocm[0] if rocm else "",
    )


def parse_nvidia_version(text: str) -> str:
    """Return the driver's version in the text of /proc/driver/nvidia/version."""
    found = re.search(r"Kernel Module(?: for \S+)?\s+(\d+\.\d+(?:\.\d+)?)", text)
    return found[1] if found else ""


def machine_facts(host: HostFacts) -> MachineFacts:
    return MachineFacts(vendor=host.vendor, machine=host.machine, driver=host.driver, runtime=host.runtime)


_NAMED = 3
_ABI = {"libmpi.so.40": "Open MPI", "libmpi.so.12": "MPICH's ABI", "libmpi.so.0": "MPI's standard ABI"}
_REINSTALL = "install the package again: pip install --force-reinstall --no-deps PACKAGE"
_REMAKE = "create it again at this path: windlass env create"


class EnvCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The whole check: the document of `env check --json`. `severity` is the worst of its findings."""

    version: int = 2
    facts: EnvFacts
    site: str
    findings: tuple[Finding, ...]
    severity: Severity


class EnvLocation(msgspec.Struct, frozen=True, kw_only=True):
    """The location of an environment.

    `file_system` is its name on this machine, if many nodes share it. `home` is the user's home.
    """

    file_system: str = ""
    home: str = ""


def check_env(facts: EnvFacts, site: Site, host: HostFacts | None, place: EnvLocation) -> EnvCheck:
    """Check the environment for the site. `host` is this machine if it belongs to the site, otherwise None."""
    findings = (
        *_interpreter(facts),
        *_machine(facts, site, host),
        *_torch(facts, site, host),
        *_collectives(facts, site),
        *_mpi(facts, site, host),
        *_packages(facts),
        *_files(facts),
        *_paths(facts),
        *(_shell(facts) if host else ()),
        *place_findings(facts.path, site, seen=place.file_system, home=place.home),
        *_made_for(facts, site),
    )
    return EnvCheck(facts=facts, site=site.name, findings=findings, severity=worst_severity(findings))


def _interpreter(facts: EnvFacts) -> Iterator[Finding]:
    if facts.incomplete or not facts.base_found:
        what = "it has no bin/python" if facts.incomplete else f"its base interpreter {facts.base} is not there"
        remedy = "load the module (or start the image) that it was made with, or " + _REMAKE
        yield Finding("python", "error", what, remedy)
    elif _other_version(facts):
        text = f"{facts.base} is not the Python {facts.python} that its packages were installed for"
        yield Finding("python", "error", text, _REMAKE)
    elif facts.base and not facts.base.startswith(("/usr/", "/opt/")):
        text = f"{facts.python}, a venv of {facts.base}: every node needs this file and its library"
        remedy = "windlass run --cache ENV --cache BASE, or windlass env pack --with-python"
        yield Finding("python", "note", text, remedy)
    elif facts.base:
        text = f"{facts.python}, a venv of {facts.base}, which every node must have in the same version"
        yield Finding("python", "ok", text)
    else:
        yield Finding("python", "ok", f"{facts.python}, its own")


def _other_version(facts: EnvFacts) -> bool:
    """Return whether an update of the system or of a module replaced the base by another minor version."""
    name = re.search(r"python(3\.\d+)\Z", facts.base)
    return name is not None and facts.python.split(".")[:2] != name[1].split(".")


def _machine(facts: EnvFacts, site: Site, host: HostFacts | None) -> Iterator[Finding]:
    wanted = site.file.node.arch or (host.machine if host else "")
    if facts.machine and wanted and facts.machine != wanted:
        text = f"it was built for {facts.machine}, but the nodes of {site.name} are {wanted}"
        yield Finding("machine", "error", text, f"create it on a machine with {wanted}")
    elif facts.machine:
        yield Finding("machine", "ok", facts.machine)
    if facts.foreign:
        text = f"libraries for another machine ({len(facts.foreign)}): {listed(facts.foreign, _NAMED)}"
        yield Finding("machine", "error", text, "install the package again on this machine")
    if facts.damaged:
        text = f"damaged libraries ({len(facts.damaged)}): {listed(facts.damaged, _NAMED)}"
        yield Finding("libraries", "error", text, _REINSTALL)
    if host and host.glibc and facts.glibc and version_key(facts.glibc) > version_key(host.glibc):
        text = f"{facts.glibc_by} needs glibc {facts.glibc}, this machine has {host.glibc}"
        remedy = "use an older wheel, build the package here, or use a container"
        yield Finding("glibc", "error", text, remedy)
    elif facts.glibc:
        seen = f"; this machine has {host.glibc}" if host and host.glibc else ""
        yield Finding("glibc", "ok", f"{facts.glibc} at least ({facts.glibc_by}){seen}")


def _torch(facts: EnvFacts, site: Site, host: HostFacts | None) -> Iterator[Finding]:
    torch, vendor = facts.torch, (host.vendor if host else "") or site.file.devices.vendor or ""
    if not torch.get("__version__"):
        if "torch" in facts.packages:
            yield Finding("torch", "error", "torch/version.py is missing or damaged", _REMAKE)
        else:
            yield _without_torch(facts, site, vendor)
        return
    build = f"CUDA {torch['cuda']}" if "cuda" in torch else f"ROCm {torch['hip']}" if "hip" in torch else ""
    build = build or ("XPU" if "xpu" in torch else "CPU only")
    text = f"{torch['__version__']} ({build})"
    mine = {"cuda": "nvidia", "hip": "amd", "xpu": "intel"}
    fits = next((mine[key] for key in mine if key in torch), "")
    if vendor and fits != vendor:
        remedy = f"windlass env plan --site {site.name} shows which wheel fits"
        yield Finding("torch", "error", f"{text} does not use the site's devices ({vendor})", remedy)
        return
    need = least_driver(torch["cuda"]) if "cuda" in torch else ""
    if need and host and host.driver and version_key(host.driver) < version_key(need):
        text = f"{text} needs driver {need} or newer, this machine has {host.driver}"
        remedy = "use a build for an older CUDA: windlass env create --torch +cu126"
        yield Finding("torch", "error", text, remedy)
        return
    driver = f", driver {host.driver}" if host and host.driver else f", needs driver {need}" if need else ""
    yield Finding("torch", "ok", text + driver)
    if "hip" in torch:
        yield from other_rocm(torch["hip"], site, f"rocm{'.'.join(torch['hip'].split('.')[:2])}")


def _without_torch(facts: EnvFacts, site: Site, vendor: str) -> Finding:
    """Return the finding for an environment without torch.

    A module or an image beneath it may provide torch, or torch is not wanted.
    """
    if "torch" in facts.beneath_packages:
        return Finding("torch", "ok", f"{facts.beneath_packages['torch']}, from the base environment")
    if facts.beneath and site.file.python.beneath != "nothing":
        text = f"not installed: it must come from the {site.file.python.beneath} beneath"
        remedy = f"windlass env plan --site {site.name} says from which"
        return Finding("torch", "note", text, remedy)
    remedy = f"windlass env plan --site {site.name} shows which wheel fits"
    return Finding("torch", "warning" if vendor else "note", "not installed", remedy)


def _collectives(facts: EnvFacts, site: Site) -> Iterator[Finding]:
    nccl = {name: version for name, version in facts.packages.items() if name.startswith("nvidia-nccl")}
    for name, version in nccl.items():
        yield Finding("nccl", "ok", f"{version} ({name})")
    if len(facts.plugins) > 1:
        text = f"{len(facts.plugins)} network plugins compete: {listed(facts.plugins, _NAMED)}"
        remedy = "keep one, or select it with --env NCCL_NET_PLUGIN=PATH"
        yield Finding("plugin", "warning", text, remedy)
    elif facts.plugins:
        yield Finding("plugin", "ok", facts.plugins[0])
    elif site.file.fabric.plugin and set(facts.torch) & {"cuda", "hip"}:
        by = [plugin.by for plugin in site.file.fabric.plugins]
        text = f"none in it: {site.file.fabric.plugin} must come from the site"
        where = f" ({', '.join(by)})" if by else ""
        remedy = f"`windlass plan --nodes 2` says whether the job would have it{where}"
        yield Finding("plugin", "note", text, remedy)


def _mpi(facts: EnvFacts, site: Site, host: HostFacts | None) -> Iterator[Finding]:
    if not facts.mpi:
        return
    if len(facts.mpi) > 1 or not facts.mpi[0].library:
        text = "mpi4py is a wheel, which uses the first MPI that it finds at start-up"
        cray = site.file.python.mpicc.startswith("cc")
        install = "pip install --no-cache-dir --no-binary=mpi4py --force-reinstall mpi4py"
        remedy = f'MPICC="{site.file.python.mpicc or "mpicc"}" {install}'
        yield Finding("mpi4py", "warning" if cray else "note", text, remedy)
        return
    module = facts.mpi[0]
    kind = _ABI.get(module.library) or ("Cray MPICH" if re.match(r"libmpi_\w+\.so", module.library) else "another ABI")
    # Cray's module cray-mpich-abi offers MPICH's library too.
    if site.file.python.mpicc.startswith("cc") and kind != "Cray MPICH" and "/cray/" not in module.place:
        text = (
            f"linked with {module.library} ({kind}); the MPI of {site.name} is Cray MPICH: every rank would be rank 0"
        )
        remedy = f'build it there: MPICC="{site.file.python.mpicc}" pip install --no-binary=mpi4py mpi4py'
        yield Finding("mpi4py", "error", text, remedy)
        return
    yield _linked(module, kind, host)


def _files(facts: EnvFacts) -> Iterator[Finding]:
    if facts.lost:
        text = f"{counted(len(facts.lost), 'file')} of packages missing or empty: {listed(facts.lost, _NAMED)}"
        yield Finding("files", "error", text, _REINSTALL)
    if facts.unfit:
        text = f"for another Python, machine or C library: {listed(facts.unfit, _NAMED)}"
        yield Finding("abi", "error", text, _REINSTALL)
    for copy in facts.copies:
        text = f"{len(copy.files)} copies of {copy.library}: {listed(copy.files, _NAMED)}"
        if "ccl" in copy.library:
            remedy = "uninstall the package that is not torch's; the first import decides which copy is used"
            yield Finding("copies", "warning", text, remedy)
        else:
            yield Finding("copies", "note", text, "if ranks use too many threads, set OMP_NUM_THREADS")


def _shell(facts: EnvFacts) -> Iterator[Finding]:
    """Check what the search paths of this shell change, if the shell is on the site."""
    for by in dict.fromkeys(hidden.by for hidden in facts.hidden):
        some = [f"{hidden.module} ({hidden.place})" for hidden in facts.hidden if hidden.by == by]
        remedies = {"PYTHONPATH": "unset PYTHONPATH", "the current folder": "rename the file or start elsewhere"}
        remedy = remedies.get(by, "export PYTHONNOUSERSITE=1")
        yield Finding("hidden", "warning", f"{by} hides modules of the environment: {listed(some, _NAMED)}", remedy)
    for old in facts.old:
        text = f"{old.by} needs {old.version} of {old.library}, the loader finds {old.place}, which lacks it"
        remedy = "remove its folder from LD_LIBRARY_PATH, or load a newer compiler's module"
        yield Finding("loader", "error", text, remedy)
    if facts.unresolved:
        some = [f"{file} needs {name}" for file, name in facts.unresolved]
        remedy = "load the module that it was built with, or install the package again"
        yield Finding("loader", "warning", f"libraries that the loader does not find: {listed(some, _NAMED)}", remedy)


def _linked(module: MpiModule, kind: str, host: HostFacts | None) -> Finding:
    if host is not None and not module.place:
        text = f"linked with {module.library} ({kind}), which the loader cannot find here"
        return Finding("mpi4py", "warning", text, "load the module of the MPI it was built with")
    where = f" at {module.place}" if module.place and host is not None else ""
    return Finding("mpi4py", "ok", f"linked with {module.library} ({kind}){where}")


def _packages(facts: EnvFacts) -> Iterator[Finding]:
    if facts.twice:
        text = f"installed twice: {listed(facts.twice, _NAMED)}"
        remedy = "pip uninstall the package until it is gone, then install it once"
        yield Finding("packages", "error", text, remedy)
    for package, need, found in facts.unmet[:_NAMED]:
        what = f"which is {found}" if found else "which is missing"
        unsure = facts.beneath and not facts.beneath_packages and not found
        text = f"{package} needs {need}, {what}" + (
            " (the packages beneath cannot be seen from here)" if unsure else ""
        )
        severity: Severity = "note" if unsure else "warning"
        yield Finding("packages", severity, text, f"pip install '{need.replace(' ', '')}'")
    if len(facts.unmet) > _NAMED:
        yield Finding("packages", "note", f"and {len(facts.unmet) - _NAMED} more missing requirements")
    both = sorted(
        name for name in set(facts.packages) & set(facts.beneath_packages) if name not in ("pip", "setuptools")
    )
    heavy = [name for name in both if name in ("torch", "mpi4py", "deepspeed") or name.startswith("nvidia-")]
    if heavy:
        text = f"{listed(heavy, _NAMED)} hides the site's package, which is built for the machine"
        yield Finding("packages", "warning", text, f"pip uninstall {' '.join(heavy)}")
    elif both:
        yield Finding("packages", "note", f"newer than, or instead of, what is beneath: {listed(both, _NAMED)}")


def _paths(facts: EnvFacts) -> Iterator[Finding]:
    if facts.moved:
        which = listed([f"{name}: {python}" for name, python in facts.moved], _NAMED)
        text = f"{counted(len(facts.moved), 'script')} start another Python ({which})"
        remedy = f"it was moved or copied: {_REMAKE}, or use `python -m NAME`; windlass env pack makes copies that work"
        yield Finding("moved", "error", text, remedy)
    gone = [path for path in facts.outside if not path.found]
    if gone:
        text = f"paths that no longer exist:  {listed([f'{path.path} ({path.by})' for path in gone], _NAMED)}"
        remedy = "install the package again, or remove the .pth file"
        yield Finding("paths", "error", text, remedy)
    editable = [path.path for path in facts.outside if path.found and path.editable]
    if editable:
        text = f"installed with pip install -e, so the code is outside:  {listed(editable, _NAMED)}"
        remedy = "nodes read it from there: add --cache for it, or install it without -e"
        yield Finding("paths", "warning", text, remedy)
    others = [path.path for path in facts.outside if path.found and not path.editable]
    if others:
        yield Finding("paths", "note", f".pth files refer to folders outside:  {listed(others, _NAMED)}")


def _made_for(facts: EnvFacts, site: Site) -> Iterator[Finding]:
    if facts.made_for and facts.made_for != site.name:
        text = f"windlass made it for {facts.made_for}, not for {site.name}"
        yield Finding("site", "warning", text, f"windlass env plan --site {site.name}")
