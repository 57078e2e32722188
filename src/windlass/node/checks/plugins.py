"""The network plugin of NCCL or RCCL as a rank finds it: where it lies, whether it loads, whether there is another."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import Any

from windlass.node.sys.tools import MissingError, output_of

_NAME = re.compile(r"\Alib(?:nccl|rccl)-net(?:-[\w-]+)?\.so(?:\.[\d.]+)?\Z")
_PROVIDER = re.compile(r"^(\w[\w;]*):\s*$", re.MULTILINE)
_LOAD_S = 20.0
_FI_INFO_S = 8.0
_LOAD = "import ctypes, sys; ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_LOCAL | 2)"


def find_plugins(environ: dict[str, str]) -> list[str]:
    """Plugins in the order in which the loader would find them, one for each folder: several names for the same one
    lie side by side."""
    found: dict[str, str] = {}
    named = environ.get("NCCL_NET_PLUGIN", "")
    candidates = [named] if "/" in named else []
    for folder in environ.get("LD_LIBRARY_PATH", "").split(":"):
        for name in sorted(_names(folder), key=lambda name: (len(name), name)):
            if _NAME.match(name):
                candidates.append(os.path.join(folder, name))
    for path in candidates:
        real = os.path.realpath(path)
        if os.path.isfile(real):
            found.setdefault(os.path.dirname(real), path)
    return list(found.values())


def load_error(path: str) -> str:
    """What the loader says against this library in the environment of the rank; empty where it loads. In a process of
    its own: a library may do anything when it is loaded."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _LOAD, path],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LOAD_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    if done.returncode == 0:
        return ""
    return said[-1] if said else "ended with code %d" % done.returncode


def plugin_facts(environ: dict[str, str]) -> dict[str, Any]:
    """Plugins, the complaint about the first, and the providers of libfabric."""
    found = find_plugins(environ)
    providers = None
    if shutil.which("fi_info"):
        try:
            providers = parse_providers(output_of("fi_info", "-l", timeout_s=_FI_INFO_S))
        except MissingError:
            providers = []
    return {"found": found, "error": load_error(found[0]) if found else "", "providers": providers}


def parse_providers(text: str) -> list[str]:
    """Names of the providers in what `fi_info -l` says."""
    return sorted(set(_PROVIDER.findall(text)))


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder) if folder else []
    except OSError:
        return []
