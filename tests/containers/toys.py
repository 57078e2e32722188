"""A toy fabric in a few lines of C: libfabric with or without a provider, what it needs, a program that asks."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import requirements

_FABRIC = """
const char *fi_provider_names = "\\0{providers}\\0";
static const char *const found[] = {{ {quoted}, 0 }};
{extern}
const char *const *fi_list(void) {{ {call} return found; }}
int fi_toy_version(void) {{ return {version}; }}
"""

PROGRAM = """
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
const char *const *fi_list(void);
int fi_toy_version(void);
static void open_plugin(void) {  /* by the names that NCCL tries */
  const char *named = getenv("NCCL_NET_PLUGIN");
  char file[4096];
  snprintf(file, sizeof file, named && *named ? "libnccl-net-%s.so" : "libnccl-net.so", named);
  if (!dlopen(file, RTLD_NOW)) fprintf(stderr, "no plugin: %s\\n", dlerror());
}
static void open_provider(void) {  /* as libfabric opens those that are files of their own */
  const char *folder = getenv("FI_PROVIDER_PATH");
  char file[4096];
  if (!folder) return;
  snprintf(file, sizeof file, "%s/libopx-fi.so", folder);
  if (!dlopen(file, RTLD_NOW)) fprintf(stderr, "no provider: %s\\n", dlerror());
}
int main(int argc, char **argv) {
  char line[4096];
  open_plugin();
  open_provider();
  int has = 0;
  printf("libfabric %d:", fi_toy_version());
  for (const char *const *p = fi_list(); *p; p++) {
    printf(" %s", *p);
    has |= argc > 1 && !strcmp(*p, argv[1]);
  }
  puts("");
  FILE *maps = fopen("/proc/self/maps", "r");
  while (maps && fgets(line, sizeof line, maps))
    if (strstr(line, "r-xp") && strstr(line, ".so")) printf("loaded %s", strchr(line, '/'));
  if (argc > 1 && !has) { fprintf(stderr, "fi_getinfo: provider %s is missing\\n", argv[1]); return 61; }
  return 0;
}
"""


def require_compiler() -> None:
    why = requirements.missing_programs("gcc")
    requirements.require("compiler", not why, why)


def library(
    path: Path, text: str = "int nothing;", *, soname: str = "", needs: tuple[Path, ...] = (), **more: str
) -> Path:
    """A shared library with this text; linked with `needs`; `more`: a version script for the linker."""
    path.parent.mkdir(parents=True, exist_ok=True)
    source = path.with_suffix(".toy.c")
    source.write_text(text)
    argv = ["gcc", "-shared", "-fPIC", "-o", str(path), str(source), f"-Wl,-soname,{soname or path.name}"]
    if "versions" in more:
        script = path.with_suffix(".toy.map")
        script.write_text(more["versions"])
        argv.append(f"-Wl,--version-script={script}")
    argv += ["-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined", *(str(need) for need in needs)]
    subprocess.run(argv, check=True, timeout=60)
    source.unlink()
    return path


def libfabric(
    folder: Path, version: int, providers: tuple[str, ...], needs: tuple[Path, ...] = (), call: str = ""
) -> Path:
    """`libfabric.so.1` with these providers."""
    text = _FABRIC.format(
        providers="\\0".join(providers),
        quoted=", ".join(f'"{name}"' for name in providers),
        extern=f"int {call}(void);" if call else "",
        call=f"if ({call}() < 0) return 0;" if call else "",
        version=version,
    )
    return library(folder / "libfabric.so.1", text, needs=needs)


def program(path: Path, against: Path) -> Path:
    """A program that prints libfabric's version and providers and the libraries that it has loaded; with an argument
    it fails where that provider is missing."""
    source = path.with_suffix(".c")
    source.write_text(PROGRAM)
    subprocess.run(["gcc", "-o", str(path), str(source), str(against)], check=True, timeout=60)
    source.unlink()
    return path


def add_old_fabric(root: Path) -> None:
    """Puts a libfabric without the fabric into an image, and `/usr/bin/fi_toy`."""
    folder = root / "usr/lib/x86_64-linux-gnu"
    made = libfabric(folder, 1, ("tcp",))
    program(root / "usr/bin/fi_toy", made)


def add_plugins(root: Path) -> None:
    """Two plugins of NCCL that compete: one for another network, which the loader finds, and one for libfabric."""
    library(root / "usr/lib/x86_64-linux-gnu/libnccl-net.so", "int sharp;")
    fabric = root / "usr/lib/x86_64-linux-gnu/libfabric.so.1"
    library(root / "opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so", "int ofi;", needs=(fabric,))


def add_providers(host: tuple[Path, Path]) -> None:
    """Providers beside the host's libfabric: one with a dependency of its own, one that needs what is nowhere."""
    folder = host[0] / "libfabric"
    verbs = library(host[1] / "libtoyverbs.so.2", "int toy_verbs;")
    library(folder / "libopx-fi.so", "int opx;", needs=(verbs,))
    library(folder / "libgone-fi.so", "int gone;", needs=(library(host[0].parent / "x/libgone.so.1"),))


def new_host(folder: Path) -> tuple[Path, Path]:
    """A host's folders: a newer libfabric with cxi, and apart from it what that needs."""
    deps = folder / "usr-lib64"
    json = library(deps / "libtoyjson.so.5", "int toy_json(void) { return 5; }")
    cxi = library(deps / "libcxi.so.1", "int toy_json(void); int cxil_open(void) { return toy_json(); }", needs=(json,))
    front = folder / "libfabric/lib64"
    libfabric(front, 2, ("tcp", "cxi"), needs=(cxi,), call="cxil_open")
    return front, deps


def copy_root(source: Path, target: Path) -> Path:
    shutil.copytree(source, target, symlinks=True)
    return target
