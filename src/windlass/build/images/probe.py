"""What an image is made of, asked from the inside: for images that are names in a storage and no files to read.

A few words of `sh` run in the container by its own runtime. They use the shell alone, because small images have no
`ls`, and say less than a look at the files does: names of libraries and the version of the C library.
"""

from __future__ import annotations

import re

from windlass.build.images.facts import LOADING, PLUGIN_FOLDERS
from windlass.node.libs.decide import ImageFacts, ImageLibrary
from windlass.node.libs.plugins import ImagePlugin, plugin_family

MARK = "windlass-image"
_SAY_VARIABLES = "\n".join(f'echo "{MARK} variable {name}=${{{name}-}}"' for name in LOADING)
PROBE = f"""
for f in /lib/*-linux-gnu*/libc.so.6 /lib64/libc.so.6 /usr/lib64/libc.so.6 /usr/lib/libc.so.6; do
  [ -x "$f" ] && "$f" 2>/dev/null && break
done
for f in /lib/ld-musl-*; do [ -e "$f" ] && echo "{MARK} musl"; done
IFS=:
set -f
folders=${{LD_LIBRARY_PATH-}}
set +f
unset IFS
for f in /etc/ld.so.conf /etc/ld.so.conf.d/*.conf; do
  [ -r "$f" ] || continue
  while read -r line; do case $line in /*) folders=$folders:$line ;; esac; done <"$f"
done
folders=$folders:/usr/local/lib
for f in /lib/*-linux-gnu* /usr/lib/*-linux-gnu* /lib64 /usr/lib64 /lib /usr/lib; do folders=$folders:$f; done
IFS=:
for d in $folders; do
  unset IFS
  for f in "$d"/lib*.so*; do [ -e "$f" ] && echo "{MARK} library $f"; done
  IFS=:
done
folders=$folders:{":".join(PLUGIN_FOLDERS)}
for d in $folders; do
  unset IFS
  for f in "$d"/lib?ccl-net*.so*; do
    [ -e "$f" ] || continue
    real=$(readlink -f "$f" 2>/dev/null) || real=$f
    grep -q libfabric.so "$f" 2>/dev/null
    echo "{MARK} plugin $? $real $f"
  done
  IFS=:
done
unset IFS
{_SAY_VARIABLES}
echo "{MARK} end"
"""
_GLIBC = re.compile(r"GNU C Library .*?version (\d+\.\d+)")


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
