"""The recipe of an image: base, ordered steps, variables, labels, contents. Every format is written from it.

Pure: the same spec gives the same recipe and the same text.
"""

from __future__ import annotations

import msgspec

import windlass
from windlass.build.images import steps as make
from windlass.build.images.spec import (
    EXTRAS,
    EnvironmentSpec,
    ImageSpec,
    RemoveSpec,
    Versions,
    in_registry,
    known_combination,
    load_versions,
    locked_digest,
)
from windlass.build.images.steps import BuildStep, DownloadedSource
from windlass.errors import UsageError, unknown_name

ENTRY = "/container/bin/windlass-entry"
SBOM = "/usr/share/windlass/sbom.json"


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """All parts of an image."""

    name: str
    title: str
    base: str
    prefix: str
    gpu: str
    gpu_home: str
    build: tuple[BuildStep, ...]
    """Executed in a separate stage. Only its prefix is copied to the image."""
    final: tuple[BuildStep, ...]
    remove: tuple[RemoveSpec, ...]
    environment: tuple[EnvironmentSpec, ...]
    labels: dict[str, str]
    contents: tuple[DownloadedSource, ...]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def make_recipe(spec: ImageSpec, extras: tuple[str, ...] | None = None, chosen: dict[str, str] | None = None) -> Recipe:
    """Return the recipe.

    `extras` replaces the extras of the spec. `chosen` contains versions of components. Raises `UsageError` for an
    unknown extra or version, or for one that the spec does not support.
    """
    wanted = _extras(spec, extras)
    versions = load_versions()
    sources = _Sources(versions, {**spec.versions, **(chosen or {})})
    build = _build(spec, wanted, sources)
    final = _final(spec, wanted, sources)
    contents = tuple(sources.used.values())
    remarks = _remarks(spec, versions, sources)
    return Recipe(
        name=spec.name,
        title=spec.title or spec.name,
        base=_pinned(spec),
        prefix=spec.prefix,
        gpu=spec.gpu,
        gpu_home=spec.gpu_home,
        build=build,
        final=final,
        remove=spec.remove,
        environment=_environment(spec, build, "mpi" in wanted),
        labels=_labels(spec, wanted, contents),
        contents=contents,
        warnings=remarks,
        notes=(spec.built,) if spec.built else (),
    )


def _pinned(spec: ImageSpec) -> str:
    """Return the base by its digest instead of its tag: several builders refuse a name with both."""
    folder, slash, last = spec.base.rpartition("/")
    digest = locked_digest(spec)
    return f"{folder}{slash}{last.partition(':')[0]}@{digest}" if digest else spec.base


def _extras(spec: ImageSpec, extras: tuple[str, ...] | None) -> tuple[str, ...]:
    asked = spec.with_ if extras is None else extras
    for name in asked:
        if name not in EXTRAS:
            raise unknown_name("step", name, EXTRAS, where="--with")
    for name in ("ofi", "nccl-tests"):
        if name in asked and not spec.gpu:
            raise UsageError(f"--with {name}: {spec.name} has no GPU library", hint="use pytorch-ngc or pytorch-rocm")
    for name in ("horovod", "nccl-tests"):
        if name in asked and "mpi" not in asked:
            raise UsageError(f"--with {name} needs mpi", hint=f"--with mpi,{','.join(asked)}")
    return tuple(name for name in EXTRAS if name in asked)


class _Sources:
    """Components by name, stored in the order of their use."""

    def __init__(self, versions: Versions, chosen: dict[str, str]) -> None:
        for name in chosen:
            if name not in versions.components:
                raise unknown_name("component", name, versions.components, where="--set")
        self._versions = versions
        self._chosen = chosen
        self.used: dict[str, DownloadedSource] = {}

    def __call__(self, name: str) -> DownloadedSource:
        component = self._versions.components[name]
        made = make.source_of(name, component, self._chosen.get(name, component.version))
        self.used[name] = made
        return made


def _build(spec: ImageSpec, extras: tuple[str, ...], source: _Sources) -> tuple[BuildStep, ...]:
    fabric = bool({"mpi", "ofi"} & set(extras))
    if not fabric:
        return ()
    found = [
        make.packages_step("tools", make.build_packages(spec, extras), "compilers and headers, not copied to the image")
    ]
    if spec.fabric == "slingshot":
        found.append(make.cxi_step(source("cassini-headers"), source("cxi-driver"), source("libcxi")))
    found.append(make.libfabric_step(source("libfabric"), spec))
    if "mpi" in extras:
        found += make.mpi_steps(source("pmix"), source("openmpi"), spec)
    if "ofi" in extras:
        found.append(make.ofi_step(source("aws-ofi-nccl"), spec))
    if "nccl-tests" in extras:
        found.append(make.collective_tests_step(source("rccl-tests" if spec.gpu == "amd" else "nccl-tests"), spec))
    return tuple(found)


def _final(spec: ImageSpec, extras: tuple[str, ...], source: _Sources) -> tuple[BuildStep, ...]:
    found = []
    packages = make.runtime_packages(spec, extras)
    if packages:
        found.append(make.packages_step("packages", packages, "what the built libraries need at run time"))
    if spec.remove:
        found.append(
            BuildStep(
                name="remove",
                because="; ".join(f"{entry.path}: {entry.because}" for entry in spec.remove),
                commands=tuple(f"rm -rf {entry.path}" for entry in spec.remove),
            )
        )
    if {"mpi", "ofi"} & set(extras):
        found.append(
            BuildStep(
                name="loader",
                because="the loader finds what was built, for `exec` as well as for the entry point",
                commands=(f"echo {spec.prefix}/lib > /etc/ld.so.conf.d/000-windlass.conf", "ldconfig"),
            )
        )
    if "deepspeed" in extras:
        found.append(make.deepspeed_step(source("deepspeed")))
    if "horovod" in extras:
        found.append(make.horovod_step(source("horovod"), spec))
    found += [BuildStep(name=step.name, because=step.because, commands=step.run) for step in spec.steps]
    return tuple(found)


def _environment(spec: ImageSpec, build: tuple[BuildStep, ...], mpi: bool) -> tuple[EnvironmentSpec, ...]:
    own: tuple[EnvironmentSpec, ...] = ()
    if build:
        own = (
            EnvironmentSpec(
                name="PATH", value=f"{spec.prefix}/bin:$PATH", because="fi_info, mpirun and the tests of collectives"
            ),
        )
    if mpi:
        because = "the MPI of this image; NGC's images name their own MPI here, whose plugins do not fit"
        own += (EnvironmentSpec(name="OPAL_PREFIX", value=spec.prefix, because=because),)
    return (*own, *spec.environment)


def _labels(spec: ImageSpec, extras: tuple[str, ...], contents: tuple[DownloadedSource, ...]) -> dict[str, str]:
    labels = {
        "org.opencontainers.image.title": spec.title or spec.name,
        "org.opencontainers.image.base.name": spec.base,
        "windlass.spec": spec.name,
        "windlass.version": windlass.__version__,
        "windlass.with": ",".join(extras),
    }
    labels |= {"org.opencontainers.image.base.digest": digest} if (digest := locked_digest(spec)) else {}
    return labels | {f"windlass.component.{s.name}": f"{s.version} {s.commit}".strip() for s in contents}


def _remarks(spec: ImageSpec, versions: Versions, sources: _Sources) -> tuple[str, ...]:
    found = []
    if not locked_digest(spec) and "@sha256:" not in spec.base and in_registry(spec.base):
        found.append(f"not pinned: {spec.base} is a tag, which may move: `windlass image lock SPEC` writes its digest")
    archives = (one for one in sources.used.values() if one.url.startswith("http") and not one.commit)
    unpinned = [f"{one.name} {one.version}" for one in archives if not one.sha256]
    if unpinned:
        found.append(f"not pinned: {', '.join(unpinned)} (no digest of these archives is known)")
    used = {name: f"{name} {source.version}" for name, source in sources.used.items()}
    chosen = {
        "libcxi": used.get("libcxi", "").partition(" ")[2],
        "libfabric": used.get("libfabric", "").partition(" ")[2],
        "plugin": used.get("aws-ofi-nccl", ""),
        "mpi": used.get("openmpi", ""),
    }
    if spec.fabric == "slingshot" and chosen["libfabric"] and known_combination(versions, chosen, spec.base) is None:
        parts = (*(f"{k} {chosen[k]}" for k in ("libcxi", "libfabric")), chosen["plugin"], chosen["mpi"])
        together = ", ".join(filter(None, parts))
        found.append(f"no known use of {together} together on {spec.base}: check the image with `windlass image check`")
    return tuple(found)


def sbom(recipe: Recipe) -> dict[str, object]:
    """Return the list of contents that the image contains: what was added to the base, and from where."""
    entries = [
        {"name": s.name, "version": s.version, "source": s.url, "commit": s.commit, "sha256": s.sha256}
        for s in recipe.contents
    ]
    return {
        "made_by": f"windlass {windlass.__version__}",
        "spec": recipe.name,
        "base": recipe.base,
        "components": entries,
    }
