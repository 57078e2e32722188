"""The table of torch's wheels, and the packages of `--with`. Pure, except that it reads the table.

The table contains which build fits a machine and its driver, and which combinations are known. Some packages of
`--with` need more than `pip install NAME`. For all others, the module checks the names.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import lru_cache

import msgspec

from windlass.base.tables import packaged_table
from windlass.errors import UsageError, nearest
from windlass.model.condition import Table
from windlass.model.origin import SourceSpec
from windlass.node.libs.closure import version_key

_TORCH = re.compile(r"(\d+(?:\.\d+)*(?:(?:a|b|rc)\d+)?)?(?:\+([a-z0-9.]+))?\Z")


class BuildSpec(Table, frozen=True, kw_only=True):
    """A build of torch: the local part of its version (`cu128`) and the index that has it."""

    name: str
    vendor: str = ""
    """The vendor of its devices. Empty: the CPU."""
    runtime: str = ""
    """The version of CUDA or ROCm in it."""
    index: str
    machines: tuple[str, ...]
    torch: tuple[str, ...]
    """Patterns of versions that exist in this build."""
    default: str
    preferred: bool = False
    """Used if neither the site nor the driver decides."""
    source: str

    @property
    def driver(self) -> str:
        """The oldest driver that it works with, if that is known."""
        return least_driver(self.runtime) if self.vendor == "nvidia" else ""


class Extra(Table, frozen=True, kw_only=True):
    """A package to install, and how."""

    name: str = ""
    requirement: str = ""
    because: str = ""
    module: str = ""
    """The module to import to check that it works."""
    environment: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    """Packages that must be installed before it can be built."""
    mpi: bool = False
    """Compiled with the MPI's wrapper."""
    torch_index: bool = False
    """Its wheels are in the same index as torch's."""


class WheelTable(Table, frozen=True, kw_only=True):
    sources: dict[str, SourceSpec]
    builds: tuple[BuildSpec, ...]
    drivers: dict[str, str]
    extras: dict[str, Extra]


class Wheel(msgspec.Struct, frozen=True, kw_only=True):
    """The chosen wheel, and the reason."""

    version: str
    build: str
    index: str
    because: str
    source: str
    warnings: tuple[str, ...] = ()

    @property
    def requirement(self) -> str:
        return f"torch=={self.version}"


@lru_cache(maxsize=1)
def wheel_table() -> WheelTable:
    return msgspec.convert(packaged_table(__file__, "wheels.toml"), WheelTable)


def least_driver(runtime: str) -> str:
    """Return the oldest NVIDIA driver for a version of CUDA, or an empty string if the table has no entry."""
    return wheel_table().drivers.get(runtime.split(".", 1)[0], "")


def parse_torch(text: str) -> tuple[str, str]:
    """Split `2.10.0+cu128` into version and build. Either may be empty. Raises `UsageError` for other text."""
    found = _TORCH.match(text)
    if not text or not found:
        hint = "as in 2.10.0, 2.10.0+cu128, +rocm7.1; or none"
        raise UsageError(f"--torch {text!r} is no version of torch", hint=hint)
    return found[1] or "", found[2] or ""


def choose_wheel(
    *, said: str, site: str, site_source: str, vendor: str, machine: str, driver: str = "", runtime: str = ""
) -> Wheel:
    """Choose the wheel for a machine.

    `said` is the user's version or build, `site` the site's. `driver` (NVIDIA's) and `runtime` (version of CUDA or
    ROCm) are known facts of the machine. Raises `UsageError` for an unknown build.
    """
    version, build = parse_torch(said) if said else ("", "")
    own_version, own_build = parse_torch(site) if site else ("", "")
    spec, because = _build(build or own_build, vendor, machine, driver, runtime)
    if build:
        because = "requested by you"
    elif own_build:
        because = "the site's document names it"
    version = version or (own_version if spec.name == own_build else "") or spec.default
    source = wheel_table().sources[spec.source]
    return Wheel(
        version=version,
        build=spec.name,
        index=spec.index,
        because=because,
        source=site_source if spec.name == own_build else f"{source.where}, {source.checked}",
        warnings=tuple(_doubts(spec, version, vendor, machine, driver)),
    )


def _build(name: str, vendor: str, machine: str, driver: str, runtime: str) -> tuple[BuildSpec, str]:
    builds = wheel_table().builds
    if name:
        spec = next((build for build in builds if build.name == name), None)
        if spec is None:
            names = [build.name for build in builds]
            close = nearest(name, names)
            hint = f"did you mean +{close}? " if close else ""
            raise UsageError(f"no build of torch is known as +{name}", hint=f"{hint}known: {', '.join(names)}")
        return spec, ""
    if not vendor:
        return next(build for build in builds if not build.vendor), "no accelerator is known here: the CPU's build"
    fitting = [build for build in builds if build.vendor == vendor and machine in ("", *build.machines)]
    if driver:
        able = [build for build in fitting if build.driver and version_key(build.driver) <= version_key(driver)]
        if able:
            best = max(
                able, key=lambda build: (version_key(build.default), build.preferred, version_key(build.runtime))
            )
            return best, f"driver {driver} is new enough for it (it needs {best.driver})"
    if runtime and vendor == "amd":
        same = [build for build in fitting if version_key(build.runtime)[:2] == version_key(runtime)[:2]]
        if same:
            return same[-1], f"for the machine's ROCm {runtime}"
    spec = next((build for build in fitting if build.preferred), None) or next(b for b in builds if not b.vendor)
    return spec, f"a build for {spec.vendor or 'the CPU'} that suits most drivers"


def _doubts(spec: BuildSpec, version: str, vendor: str, machine: str, driver: str) -> list[str]:
    found = []
    if not any(fnmatchcase(version, pattern) for pattern in spec.torch):
        found.append(
            f"torch {version} with {spec.name} is not among the known combinations ({', '.join(spec.torch)}): "
            "look whether the index has it"
        )
    if machine and machine not in spec.machines:
        found.append(f"{spec.name} has wheels for {', '.join(spec.machines)} and none for {machine} is known")
    if vendor != spec.vendor and vendor:
        found.append(f"{spec.name} does not use the devices of this machine ({vendor})")
    if spec.driver and not driver:
        found.append(
            f"the driver of this machine is not known here: {spec.name} needs {spec.driver} or newer (nvidia-smi)"
        )
    elif spec.driver and version_key(driver) < version_key(spec.driver):
        found.append(f"driver {driver} is too old for {spec.name}, which needs {spec.driver}")
    return found


_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(\[[A-Za-z0-9,._-]+\])?((==|>=|<=|~=|!=|<|>)[A-Za-z0-9.*+!_-]+)?\Z"
)


def find_extra(text: str) -> Extra:
    """Return the package of this name, optionally with a version.

    Raises `UsageError` for text that pip would not accept.
    """
    found = _REQUIREMENT.match(text)
    if found is None:
        raise UsageError(f"--with {text!r} is no name of a package", hint="as in mpi4py,deepspeed,einops==0.8.0")
    name = found["name"].lower().replace("_", "-")
    if name in ("torch", "pytorch"):
        hint = "--torch VERSION, as in --torch 2.10.0+cu128; none leaves it out"
        raise UsageError("torch is not one of the extras", hint=hint)
    known = wheel_table().extras.get(name)
    if known is not None:
        return msgspec.structs.replace(known, name=name, requirement=text)
    return Extra(name=text, requirement=text, because="as pip finds it, for the torch that is here")
