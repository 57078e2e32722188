"""The host's libraries to be copied into a derived image (`-ss`): which files, and whether nothing is missing."""

from __future__ import annotations

from pathlib import Path

from windlass.errors import UsageError
from windlass.node.libs.closure import GLIBC, SystemRoot, closure
from windlass.node.libs.elf import ElfError, read_elf
from windlass.build.images.recipe import Recipe


def host_variant_files(recipe: Recipe, folder: str) -> dict[str, Path]:
    """Name in the image to file: every library of the folder. Raises `UsageError` where it has no libfabric, or where
    one of its libraries needs what neither the folder nor the recipe's image brings."""
    place = Path(folder).absolute()
    if not place.is_dir():
        raise UsageError(f"--host-libs {folder}: there is no such folder", hint="copy lib{fabric,cxi}* of a node there")
    found = {entry.name: entry.resolve() for entry in sorted(place.iterdir()) if _is_library(entry)}
    if "libfabric.so.1" not in found:
        raise UsageError(
            f"--host-libs {folder}: no libfabric.so.1 in it",
            hint="copy it from a node: on Cray systems /opt/cray/libfabric/VERSION/lib64 and libcxi of /usr/lib64",
        )
    names = [read_elf(str(found[name])).soname or name for name in found]
    lacking = {
        name: by
        for name, by in closure(SystemRoot(str(place)), list(dict.fromkeys(names)), ["/"]).missing.items()
        if name not in GLIBC and not _in_image(name, recipe)
    }
    if lacking:
        name, by = next(iter(lacking.items()))
        raise UsageError(
            f"--host-libs {folder}: {by or 'a library'} needs {name}, which is not there"
            + (f" (nor {', '.join(list(lacking)[1:])})" if len(lacking) > 1 else ""),
            hint="copy it from the node as well, or add the package that has it to the spec (packages = [...])",
        )
    return found


def _in_image(name: str, recipe: Recipe) -> bool:
    """Whether the image surely has it: the compiler's runtime is in every image with a shell and a C++ program."""
    return name in {"libgcc_s.so.1"} or (bool(recipe.gpu) and name in {"libstdc++.so.6", "libatomic.so.1"})


def _is_library(entry: Path) -> bool:
    if ".so" not in entry.name or not entry.is_file():
        return False
    try:
        read_elf(str(entry))
    except (ElfError, OSError):
        return False
    return True
