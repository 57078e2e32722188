"""What an image is made of, asked from the inside: for images that are names in a storage and no files to read.

A few words of `sh` run in the container by its own runtime. They use the shell alone, because small images have no
`ls`, and say less than a look at the files does: names of libraries and the version of the C library.
"""

from __future__ import annotations

import re

from windlass.images.node.decide import ImageFacts, ImageLibrary

MARK = "windlass-image"
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
echo "{MARK} end"
"""
_GLIBC = re.compile(r"GNU C Library .*?version (\d+\.\d+)")


def parse_probe(text: str, machine: str) -> ImageFacts | None:
    """The facts in what the probe printed; None where it did not reach its end."""
    lines = text.splitlines()
    if f"{MARK} end" not in lines:
        return None
    libraries: dict[str, ImageLibrary] = {}
    for line in lines:
        if line.startswith(f"{MARK} library /"):
            path = line[len(f"{MARK} library ") :]
            libraries.setdefault(path.rpartition("/")[2], ImageLibrary(path, None))
    found = _GLIBC.search(text)
    has_fabric = {"libfabric.so.1", "libcxi.so.1"} <= libraries.keys()
    return ImageFacts(
        machine=machine,
        glibc=found[1] if found else "",
        libc="musl" if f"{MARK} musl" in lines and not found else "glibc" if found else "",
        libraries=libraries,
        providers=("cxi",) if has_fabric else (),
    )
