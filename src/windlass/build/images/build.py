"""Build a recipe with an available builder, and add the host's libraries to a derived image (`-ss`).

The image is built under a temporary name. It gets its final name in one step, after everything is done, including the
images derived from it. A failed build keeps its log and leaves nothing under the final name.

For a derived image, the module selects the library files of the host and checks that none is missing.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path

import msgspec

from windlass.base.procs.command import run_command, which
from windlass.build.images.recipe import Recipe, sbom
from windlass.build.images.render import context_files
from windlass.errors import CommandError, MachineError, UsageError, os_errors
from windlass.node.libs.closure import GLIBC, SystemRoot, closure
from windlass.node.libs.elf import ElfError, read_elf
from windlass.node.sys.atomic import copy_file, open_append, replace_file
from windlass.node.sys.folders import temporary_folder
from windlass.node.sys.reading import MAX_BYTES, open_plain, read_text


def host_variant_files(recipe: Recipe, folder: str) -> dict[str, Path]:
    """Map the name in the image to the file, for every library of the folder.

    Raises `UsageError` if the folder has no libfabric, or if one of its libraries needs a library that is neither in
    the folder nor in the recipe's image.
    """
    place = Path(folder).absolute()
    if not place.is_dir():
        raise UsageError(f"--host-libs {folder}: there is no such folder", hint="copy lib{fabric,cxi}* of a node there")
    found = {entry.name: entry.resolve() for entry in sorted(place.iterdir()) if _is_library(entry)}
    if "libfabric.so.1" not in found:
        hint = "copy it from a node: on Cray systems /opt/cray/libfabric/VERSION/lib64 and libcxi of /usr/lib64"
        raise UsageError(f"--host-libs {folder}: no libfabric.so.1 in it", hint=hint)
    names = [read_elf(str(found[name])).soname or name for name in found]
    lacking = {
        name: by
        for name, by in closure(SystemRoot(str(place)), list(dict.fromkeys(names)), ["/"]).missing.items()
        if name not in GLIBC and not _in_image(name, recipe)
    }
    if lacking:
        name, by = next(iter(lacking.items()))
        raise UsageError(
            f"--host-libs {folder}: {by or 'a library'} needs {name}, which is missing"
            + (f" (nor {', '.join(list(lacking)[1:])})" if len(lacking) > 1 else ""),
            hint="copy it from the node as well, or add the package that has it to the spec (packages = [...])",
        )
    return found


def _in_image(name: str, recipe: Recipe) -> bool:
    """Return whether the image certainly has it.

    Every image with a shell and a C++ program contains the compiler's runtime.
    """
    return name in {"libgcc_s.so.1"} or (bool(recipe.gpu) and name in {"libstdc++.so.6", "libatomic.so.1"})


def _is_library(entry: Path) -> bool:
    if ".so" not in entry.name or not entry.is_file():
        return False
    try:
        read_elf(str(entry))
    except (ElfError, OSError):
        return False
    return True


BUILDERS = ("podman", "buildah", "docker", "apptainer")
_ENTRY = Path(__file__).parent / "data" / "entry.sh"
_BUILD_S = 6 * 3600.0
_SHORT_S = 600.0
_MAX_LINE, _MAX_LINES, _MAX_SEARCHED = 160, 5, 80
_SUMMARIES = ("Error: building at STEP", "Error: error building", "subprocess exited with", "exit status ")
"""How buildah and podman end a failed build: with the whole text of the step."""


_FITS = (
    "said=$(LD_PRELOAD=/container/host-libs/libfabric.so.1 /bin/sh -c : 2>&1) || said=${said:-it does not load}; "
    '[ -z "$said" ] || { echo "error: the host\'s libfabric does not fit the image: $said" >&2; exit 1; }'
)


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a build."""

    image: str
    builder: str
    log: str
    variant: str = ""
    """The derived image with the host's libraries, if --host-libs requested it."""
    sif: str = ""


def entry_script() -> str:
    return read_text(_ENTRY, follow=True)


def choose_builder(wanted: str | None, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return name and path of the builder. Raises `MachineError` if this machine has no builder."""
    names = (wanted,) if wanted else BUILDERS
    for name in names:
        found = which(name, environ)
        if found:
            return name, found
    what = f"no {wanted}" if wanted else f"none of {', '.join(BUILDERS)}"
    hint = "`windlass image plan SPEC --output DIR` writes the recipe for another machine"
    raise MachineError(f"{what} on this machine to build with", hint=hint)


def write_context(recipe: Recipe, folder: Path) -> None:
    """Write all files that a build needs. Raises `MachineError` if they cannot be written."""
    with os_errors(f"write to {folder}", hint="choose another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in context_files(recipe, entry_script(), sbom(recipe)).items():
            replace_file(folder / name, text.encode(), mode=0o644)


def build_image(
    recipe: Recipe,
    *,
    tag: str,
    builder: tuple[str, str],
    environ: Mapping[str, str],
    log: Path,
    host_libs: str = "",
    sif: str = "",
    options: tuple[str, ...] = (),
) -> Built:
    """Build the image.

    Raises `UsageError` for incomplete host libraries. Raises `CommandError` with the path of the log if the build
    fails.
    """
    name, program = builder
    extra = host_variant_files(recipe, host_libs) if host_libs else None
    if name == "apptainer" and host_libs:
        raise UsageError("--host-libs with apptainer", hint="build with podman, buildah or docker, and add --sif")
    if sif and name != "apptainer" and which("apptainer", environ) is None and which("singularity", environ) is None:
        hint = "leave --sif out, convert the image later"
        raise MachineError("--sif: no apptainer and no singularity on this machine", hint=hint)
    with temporary_folder("windlass-build-") as folder:
        context = Path(folder) / "context"
        write_context(recipe, context)
        job = _Job(name, program, environ, log, options)
        if name == "apptainer":
            return _build_sif(job, recipe, context, sif or f"{recipe.name}.sif")
        partial = f"localhost/windlass-build:{Path(folder).name.rpartition('-')[2].lower()}-{os.getpid()}"
        try:
            job.build(partial, context)
            variant = ""
            if extra is not None:
                variant = _variant(job, partial, Path(folder) / "variant", extra, _ss_tag(tag))
            job.run("tag", partial, tag)
        finally:
            job.forget(partial)
        made = _to_sif(job, variant or tag, Path(folder), sif) if sif else ""
    return Built(image=tag, builder=name, log=str(log), variant=variant, sif=made)


def _ss_tag(tag: str) -> str:
    """Change `name:tag` to `name-ss:tag`."""
    name, colon, version = tag.rpartition(":")
    if not colon or "/" in version:
        return f"{tag}-ss"
    return f"{name}-ss:{version}"


class _Job:
    """Commands of one builder. Their output goes to the log."""

    def __init__(
        self, name: str, program: str, environ: Mapping[str, str], log: Path, options: tuple[str, ...]
    ) -> None:
        self.name, self.program, self.environ, self.log, self.options = name, program, environ, log, options

    def build(self, tag: str, context: Path) -> None:
        verb = ("bud",) if self.name == "buildah" else ("build",)
        argv = (*verb, *self.options, "-t", tag, "-f", str(context / "Containerfile"), str(context))
        self.run(*argv, timeout_s=_BUILD_S)

    def forget(self, name: str) -> None:
        """Remove a name if it exists. Never raises."""
        with contextlib.suppress(CommandError):
            run_command((self.program, "rmi", name), timeout_s=_SHORT_S, env=self.environ, check=False)

    def run(self, *words: str, timeout_s: float = _SHORT_S, program: str = "", cwd: Path | None = None) -> None:
        """Run a command of the builder.

        Its output goes to the log while it runs. A user can therefore watch a build of hours, and the log of an
        interrupted build is kept.
        """
        argv = (program or self.program, *words)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open_append(self.log) as stream:
            stream.write(f"$ {' '.join(argv)}\n".encode("utf-8", "surrogateescape"))
        said_from = self.log.stat().st_size
        into_log = ("/bin/sh", "-c", 'exec "$@" >>"$0" 2>&1', str(self.log), *argv)
        done = run_command(
            into_log,
            timeout_s=timeout_s,
            env=self.environ,
            check=False,
            stop_with=signal.SIGTERM,
            cwd=str(cwd) if cwd else None,
        )
        if done.code != 0:
            with open_plain(self.log) as stream:
                stream.seek(max(said_from, self.log.stat().st_size - MAX_BYTES))
                said = stream.read(MAX_BYTES).decode(errors="replace").strip() or "no message"
            headline, lines = _what_failed(said)
            raise CommandError(
                f"the build failed: {headline}",
                argv=argv,
                code=done.code,
                output="\n".join(lines),
                hint=f"all of its output: {self.log}",
            )


def _what_failed(said: str) -> tuple[str, list[str]]:
    """Return the line with the reason of a failed build, and the last lines before the builder's summary.

    The summary repeats the whole step.
    """
    lines = [line[:_MAX_LINE] for line in said.splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith(_SUMMARIES)] or lines
    errors = [line for line in own[-_MAX_SEARCHED:] if re.search(r"\berror: ", line, re.IGNORECASE)]
    return (errors or own)[-1], own[-_MAX_LINES:]


def _variant(job: _Job, base: str, context: Path, files: dict[str, Path], tag: str) -> str:
    """Derive the image with the host's libraries from the image that was just built."""
    (context / "libs").mkdir(parents=True)
    for name, source in files.items():
        copy_file(source.resolve(), context / "libs" / name, 0o644)
    lines = [
        f"FROM {base}",
        "# The host's network libraries, in front of the image's own.",
        "COPY libs /container/host-libs",
        'ENV LD_LIBRARY_PATH="/container/host-libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"',
        "# The loader itself says whether they fit: what is missing, a glibc that is too old.",
        f"RUN {_FITS}",
        'LABEL windlass.host-libs="' + ",".join(sorted(files)) + '"',
    ]
    replace_file(context / "Containerfile", ("\n".join(lines) + "\n").encode(), 0o644)
    partial = f"{base}-ss"
    try:
        job.build(partial, context)
        job.run("tag", partial, tag)
    finally:
        job.forget(partial)
    return tag


def _to_sif(job: _Job, tag: str, folder: Path, sif: str) -> str:
    """Convert the image to a SIF file with apptainer or singularity, through an archive.

    The file is complete or does not exist.
    """
    program = which("apptainer", job.environ) or which("singularity", job.environ) or "apptainer"
    archive = folder / "image.tar"
    if job.name == "buildah":
        job.run("push", tag, f"docker-archive:{archive}")
    else:
        job.run("save", "--format" if job.name == "podman" else "-o", *_save_words(job.name, archive), tag)
    return _apptainer_build(job, program, f"docker-archive://{archive}", sif)


def _save_words(builder: str, archive: Path) -> tuple[str, ...]:
    return ("docker-archive", "-o", str(archive)) if builder == "podman" else (str(archive),)


def _build_sif(job: _Job, recipe: Recipe, context: Path, sif: str) -> Built:
    made = _apptainer_build(job, job.program, "image.def", sif, cwd=context)
    return Built(image=made, builder=job.name, log=str(job.log), sif=made)


def _apptainer_build(job: _Job, program: str, source: str, sif: str, cwd: Path | None = None) -> str:
    final = Path(sif).absolute()
    with temporary_folder(f".{final.name}.", final.parent) as work:
        words = ("build", "--force", *job.options, str(work / final.name), source)
        # files of a definition are relative to this folder
        job.run(*words, program=program, timeout_s=_BUILD_S, cwd=cwd)
        (work / final.name).rename(final)
    return str(final)
