"""What an image is made of, asked from the inside: for images that are names in a storage and no files to read.

A few words of `sh` run in the container by its own runtime. They use the shell alone, because small images have no
`ls`, and say less than a look at the files does: names of libraries and the version of the C library.
"""

from __future__ import annotations

import re

from windlass.base.tables import packaged_text
from windlass.build.images.facts import LOADING, PLUGIN_FOLDERS
from windlass.node.libs.decide import ImageFacts, ImageLibrary
from windlass.node.libs.plugins import ImagePlugin, plugin_family

MARK = "windlass-image"
_GLIBC = re.compile(r"GNU C Library .*?version (\d+\.\d+)")


def probe_text() -> str:
    """The lines of `sh` that look at an image from the inside."""
    variables = "\n".join(f'echo "{MARK} variable {name}=${{{name}-}}"' for name in LOADING)
    text = packaged_text(__file__, "probe.sh")
    return "\n" + text.replace("@plugin_folders@", ":".join(PLUGIN_FOLDERS)).replace("@variables@", variables)


def parse_probe(text: str, machine: str) -> ImageFacts | None:
    """The facts in what the probe printed; None where it did not reach its end."""
    lines = text.splitlines()
    if f"{MARK} end" not in lines:
        return None
    libraries: dict[str, ImageLibrary] = {}
    variables: dict[str, str] = {}
    for line in lines:
        if line.startswith(f"{MARK} library /"):
            path = line[len(f"{MARK} library ") :]
            libraries.setdefault(path.rpartition("/")[2], ImageLibrary(path, None))
        elif line.startswith(f"{MARK} variable "):
            name, _, value = line[len(f"{MARK} variable ") :].partition("=")
            variables |= {name: value} if value else {}
    found = _GLIBC.search(text)
    has_fabric = {"libfabric.so.1", "libcxi.so.1"} <= libraries.keys()
    return ImageFacts(
        machine=machine,
        glibc=found[1] if found else "",
        libc="musl" if f"{MARK} musl" in lines and not found else "glibc" if found else "",
        libraries=libraries,
        providers=("cxi",) if has_fabric else (),
        plugins=_plugins(lines),
        environment=variables,
    )


def _plugins(lines: list[str]) -> tuple[ImagePlugin, ...]:
    """Each file once, with all its names. The number is grep's: 0 uses libfabric, 1 does not. Images without grep:
    the name tells, because aws-ofi-nccl calls itself so."""
    names: dict[str, list[str]] = {}
    uses: dict[str, bool | None] = {}
    for line in lines:
        parts = line.split(" ")
        if parts[:2] == [MARK, "plugin"] and len(parts) == 5 and plugin_family(parts[4].rpartition("/")[2]):
            names.setdefault(parts[3], []).append(parts[4])
            by_name = True if "-ofi." in parts[3] or "-ofi." in parts[4] else None
            uses[parts[3]] = {"0": True, "1": False}.get(parts[2], by_name)
    return tuple(ImagePlugin(tuple(dict.fromkeys(paths)), uses[real]) for real, paths in names.items())
