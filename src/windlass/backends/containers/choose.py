"""Choose the runtime and make a `ContainerPlan` from the request and the site's entries. Pure.

On the machine that will run, `SeenPaths` lists the images and paths that exist. `run/container_paths.py` creates it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatch

import msgspec

from windlass.backends.containers import binds, get_runtime, runtime_names
from windlass.backends.containers.base import ImageKind, Runtime, image_kind, is_path, looked_up
from windlass.backends.containers.charliecloud import visible_mounts
from windlass.backends.containers.host_libs import (
    host_libs_note,
    host_libs_plan,
    host_libs_settings,
    host_means,
    strategy_note,
)
from windlass.errors import UsageError, unknown_name
from windlass.model.condition import Facts, holds
from windlass.model.finding import Finding
from windlass.model.origin import BUILTIN, Argument, Origin, argument_key
from windlass.model.plan import ContainerPlan, Mount, Setting, setting_of
from windlass.model.site import ContainerSpec, HostLibrariesSpec, SettingSpec, StorageSpec

INSIDE_ONLY = frozenset({"LD_LIBRARY_PATH", "LD_PRELOAD", "PATH"})
"""On the host these would break the host's programs, because they contain paths of the container."""

_BY_KIND: dict[ImageKind, tuple[str, ...]] = {
    "sif": ("apptainer", "singularity"),
    "uri": ("apptainer", "singularity"),
    "squashfs": ("charliecloud", "edf", "pyxis", "apptainer"),
    "directory": ("charliecloud", "apptainer", "singularity"),
    "edf": ("edf",),
    "registry": ("podman-hpc", "shifter", "edf", "pyxis"),
}


class ContainerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The user's and the plan's requirements for a container."""

    image: str
    binds: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    cwd: str = ""
    needs: tuple[tuple[str, str], ...] = ()
    """More paths that the command must see, each with a reason."""
    command: tuple[str, ...] = ()
    """Checked for bytes that the runtime cannot pass."""
    host_libs: str | None = None


class ContainerSite(msgspec.Struct, frozen=True, kw_only=True):
    """The site's entries about containers."""

    specs: tuple[ContainerSpec, ...] = ()
    storage: StorageSpec = StorageSpec()
    host_libraries: HostLibrariesSpec = HostLibrariesSpec()
    host_libs_origin: Origin = BUILTIN


class SeenPaths(msgspec.Struct, frozen=True, kw_only=True):
    """The paths that a container may need, as found on the machine that will run."""

    environ: Mapping[str, str]
    """Replaces the variables in paths."""
    there: frozenset[str]
    """Paths that exist, including paths below the image if the image is a directory."""
    real: Mapping[str, str] = {}
    """Paths with symbolic links resolved."""
    image_readable: bool = True
    image_folder: bool = False


class ContainerChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A chosen container, and its requirements for the rest of the plan."""

    plan: ContainerPlan
    settings: tuple[Setting, ...] = ()
    """Variables for the ranks, merged later with those of the site and the user."""
    modules: tuple[str, ...] = ()
    remarks: tuple[Finding, ...] = ()


def plan_container(
    asked: ContainerRequest, site: ContainerSite, facts: Facts, seen: SeenPaths | None = None
) -> ContainerChoice:
    """Plan the container for the runtime that `facts` name (see `runtime_name`).

    Without `seen`, the node checks the paths. Raises `UsageError` for an image that the runtime cannot use or that
    does not exist, and for binds that cannot be expressed. Raises `MachineError` for a path of the site that this
    machine lacks."""
    name = facts.runtime
    backend = _backend(name, asked.image)
    spec = _entry(name, asked.image, site.specs)
    _refuse_bytes(backend, (asked.image, asked.cwd, *asked.binds, *asked.command))
    image = image_path(asked.image, asked.cwd)
    mounts, notes = _mounts(backend, spec, site.storage, facts, asked, seen)
    if seen is not None:
        _check_image(image, backend, seen)
        mounts = _settled(mounts, backend, image, seen)
    arguments, device_flag = _arguments(backend, spec, facts, asked.arguments)
    settings = _settings(backend, spec, arguments)
    means = host_means(mounts, arguments, spec.annotations, spec.modules)
    taken = host_libs_plan(site.host_libraries, asked.host_libs, means, facts, site.host_libs_origin)
    note = host_libs_note(taken) if taken is not None else strategy_note(means, facts.nodes)
    inside = tuple(setting_of(s) for s in settings if s.name in INSIDE_ONLY and holds(s.when, facts))
    plan = ContainerPlan(
        runtime=name,
        image=image,
        executable=spec.executable or backend.executable,
        verb=spec.verb,
        arguments=arguments,
        mounts=mounts,
        settings=(*inside, *host_libs_settings(taken)),
        host_libs=taken,
        device_flag=device_flag,
        activate=spec.activate if _any_match(spec.activate_images or ("*",), image) else "",
        annotations=spec.annotations,
        note=". ".join(part for part in (note, spec.note) if part),
    )
    return ContainerChoice(
        plan=plan,
        settings=tuple(setting_of(s) for s in settings if s.name not in INSIDE_ONLY and holds(s.when, facts)),
        modules=spec.modules,
        remarks=tuple(Finding("container", "note", f"container: {text}") for text in notes),
    )


def candidate_mounts(asked: ContainerRequest, site: ContainerSite) -> tuple[Mount, ...]:
    """Every mount that a plan may contain, before conditions and runtimes are evaluated. For `SeenPaths`."""
    of_site = (binds.mount_of(bind) for spec in site.specs for bind in spec.binds)
    of_user = (binds.parse_bind(text, asked.cwd) for text in asked.binds if not text.startswith("-"))
    paths = (asked.cwd, *(path for path, _ in asked.needs), _local_folder(site.storage), *site.storage.links.values())
    return (*of_site, *of_user, *(binds.needed_path(path, "") for path in paths if path))


def _backend(name: str, image: str) -> Runtime:
    """Return the runtime of this name, and raise if it cannot use this image."""
    backend = get_runtime(name)
    wrong = backend.check_image(image)
    if wrong:
        raise UsageError(f"--container {image}: {wrong}", hint=f"--runtime chooses among {', '.join(runtime_names())}")
    return backend


def runtime_name(image: str, wanted: str | None, specs: tuple[ContainerSpec, ...]) -> str:
    """Choose by --runtime, then by the site's entries (the default entry first), then by the form of the image.

    Raises `UsageError` for an unknown runtime, and if no runtime of the site can use the image."""
    if wanted is not None:
        if wanted not in runtime_names():
            raise unknown_name("container runtime", wanted, runtime_names(), where="--runtime")
        return wanted
    kind = image_kind(image)
    entries = sorted(specs, key=lambda spec: not spec.default)
    for spec in entries:
        if kind in get_runtime(spec.runtime).image_kinds:
            return spec.runtime
    if not entries:
        return _BY_KIND[kind][0]
    takes = "; ".join(f"{n} takes {get_runtime(n).image_forms}" for n in dict.fromkeys(s.runtime for s in entries))
    raise UsageError(
        f"--container {image}: no runtime of this site takes it",
        hint=f"{takes}; --runtime {_BY_KIND[kind][0]} forces it",
    )


def _entry(name: str, image: str, specs: tuple[ContainerSpec, ...]) -> ContainerSpec:
    """The site's entry for this runtime: one that names the image, then one for any image, then an empty one."""
    mine = [spec for spec in specs if spec.runtime == name]
    for spec in sorted(mine, key=lambda spec: not spec.images):
        if not spec.images or _any_match(spec.images, image):
            return spec
    return ContainerSpec(runtime=name)


def _refuse_bytes(backend: Runtime, words: Iterable[str]) -> None:
    """Raise rather than start with a file name or an argument that the runtime silently changes."""
    for word in words:
        if not backend.carries_bytes and any("\udc80" <= char <= "\udcff" for char in word):
            raise UsageError(
                f"{backend.name} replaces bytes that are not UTF-8, so it cannot carry {word!r}",
                hint="rename the file, or pass the bytes in a file",
            )


def _any_match(patterns: Iterable[str], image: str) -> bool:
    return any(fnmatch(image, pattern) or fnmatch(image.rsplit("/", 1)[-1], pattern) for pattern in patterns)


def image_path(image: str, cwd: str) -> str:
    """Make a relative path absolute, below the working directory. Names and URIs stay unchanged."""
    if not looked_up(image):
        return image
    path = binds.normal_path(image)
    if path.startswith(("/", "${")) or not cwd:
        return path
    return binds.normal_path(f"{cwd}/{path}") if is_path(image) or image_kind(image) != "directory" else image


def _check_image(image: str, backend: Runtime, seen: SeenPaths) -> None:
    if not looked_up(image):
        return
    path = binds.expanded(image, seen.environ)
    if path is None:
        raise UsageError(
            f"--container {image}: a variable in it is not set here", hint="set it, or write the path of the image"
        )
    if path not in seen.there:
        raise UsageError(
            f"--container {path}: there is no such image", hint=f"{backend.name} takes {backend.image_forms}"
        )
    if not seen.image_readable:
        raise UsageError(f"--container {path}: the image cannot be read", hint="check its permissions")


def _local_folder(storage: StorageSpec) -> str:
    return binds.site_path(storage.local or "/tmp")


def _mounts(
    backend: Runtime,
    spec: ContainerSpec,
    storage: StorageSpec,
    facts: Facts,
    asked: ContainerRequest,
    seen: SeenPaths | None,
) -> tuple[tuple[Mount, ...], tuple[str, ...]]:
    own = tuple(binds.mount_of(bind) for bind in spec.binds if holds(bind.when, facts))
    for removal in (text[1:] for text in asked.binds if text.startswith("-")):
        own = binds.without(own, removal)
    wanted = tuple(binds.parse_bind(text, asked.cwd) for text in asked.binds if not text.startswith("-"))
    binds.refuse_variables(asked.cwd, "working folder")
    needed: tuple[Mount, ...] = ()
    if not backend.shares_file_systems:
        paths = ((asked.cwd, "the working folder"), *asked.needs) if asked.cwd else asked.needs
        needed = tuple(binds.needed_path(path, because) for path, because in paths)
        local = _local_folder(storage)
        if not (backend.shares_tmp and (local + "/").startswith("/tmp/")):
            needed += (binds.needed_path(local, "caches on the node", optional=True),)
    mounts, notes = binds.combine((*own, *wanted, *needed), storage.links, seen.real if seen else {})
    binds.refuse_inexpressible(mounts, backend)
    return mounts, notes


def _settled(mounts: tuple[Mount, ...], backend: Runtime, image: str, seen: SeenPaths) -> tuple[Mount, ...]:
    mounts = binds.settle(mounts, seen.environ, seen.there)
    folder = binds.expanded(image, seen.environ)
    if backend.name != "charliecloud" or folder is None or not seen.image_folder:
        return mounts
    return _with_mount_points(mounts, folder, seen)


def _with_mount_points(mounts: tuple[Mount, ...], folder: str, seen: SeenPaths) -> tuple[Mount, ...]:
    """Raise if mount points are missing, once and before a thousand ranks fail.

    Charliecloud cannot create a mount point in a read-only image."""
    lacking = [
        mount
        for mount in visible_mounts(mounts)
        if folder + (binds.expanded(mount.target, seen.environ) or mount.target) not in seen.there
    ]
    needed = [mount.target for mount in lacking if not mount.optional]
    if needed:
        raise UsageError(
            f"--container {folder}: the image has no {', '.join(needed)} to bind to, and ch-run does not create it",
            hint=f"mkdir -p {' '.join(folder + target for target in needed)}, or bind to an existing folder "
            "(images made by ch-image have /mnt/0 to /mnt/9), or work below /tmp, which is shared",
        )
    return tuple(mount for mount in mounts if mount not in lacking)


def _arguments(
    backend: Runtime, spec: ContainerSpec, facts: Facts, edits: tuple[str, ...]
) -> tuple[tuple[Argument, ...], bool]:
    """The site's arguments with the user's edits, and whether to add the runtime's device flag.

    An edit `~--name` removes an argument."""
    out = [
        Argument(words=a.words, because=a.because, origin=a.origin or Origin(scope="site", where=a.source))
        for a in spec.arguments
        if holds(a.when, facts)
    ]
    device_flag = spec.device_flag
    flag = Origin(scope="flag", where="--container-arg")
    for edit in edits:
        if edit.startswith("~"):
            name = edit[1:].strip()
            if name in backend.device_flags.values():
                device_flag = False
            left = [a for a in out if name not in {a.name, argument_key(a.words)}]
            if len(left) == len(out) and name not in backend.device_flags.values():
                known = ", ".join(argument_key(a.words) for a in out) or "none"
                raise UsageError(
                    f"--container-arg ~{name}: no default of this name to remove", hint=f"there are: {known}"
                )
            out = left
        else:
            head, space, tail = edit.partition(" ")
            words = (head, tail.strip()) if space and head.startswith("-") and "=" not in head else (edit,)
            out.append(Argument(words=words, because="requested by you", origin=flag))
    return tuple(out), device_flag


def _settings(backend: Runtime, spec: ContainerSpec, arguments: tuple[Argument, ...]) -> tuple[SettingSpec, ...]:
    made: list[SettingSpec] = []
    hidden = {"--no-home", "--contain", "--containall", "-c", "-C"} & {a.name for a in arguments}
    if backend.mounts_home and not hidden:
        made.append(
            SettingSpec(
                name="PYTHONNOUSERSITE",
                value="1",
                because="packages in ~/.local, built for the host's Python, would hide those of the image",
                source="",
                origin=BUILTIN,
            )
        )
    return (*made, *spec.settings)
