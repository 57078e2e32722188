"""The environment of a rank as it really is: which Python, which torch, on which file system, and what a look costs."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
import time
from typing import Any

from windlass.node.sys.mounts import MountPoint, mount_of, mounts
from windlass.node.sys.tools import text_of

_VERSION = re.compile(r"^(\w+)\s*(?::[^=\n]*)?=\s*'([^'\n]*)'", re.MULTILINE)
_LOOKS = 300
_LOOK_S = 1.5


def python_facts() -> dict[str, Any]:
    """The interpreter that runs this rank."""
    return {"executable": sys.executable, "version": "%d.%d.%d" % sys.version_info[:3], "prefix": sys.prefix}


def torch_facts() -> dict[str, Any]:
    """The torch that this interpreter would import, without importing it; empty where it has none."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        return {}
    folder = next(iter(spec.submodule_search_locations))
    return {"folder": folder, **parse_torch_version(text_of(os.path.join(folder, "version.py")))}


def parse_torch_version(text: str) -> dict[str, str]:
    """`version`, and `cuda`, `hip` or `xpu` where torch is built for them, from torch/version.py."""
    said = dict(_VERSION.findall(text))
    found = {name: said[name] for name in ("cuda", "hip", "xpu") if said.get(name)}
    version = said.get("__version__") or said.get("version")
    return {**({"version": version} if version else {}), **found}


def place_facts(path: str, table: list[MountPoint] | None = None) -> dict[str, Any]:
    """Where a folder lies, and how long a look at a file takes there: most of an import is looking for files."""
    mount = mount_of(os.path.realpath(path), mounts() if table is None else table)
    return {
        "path": path,
        "kind": mount.served_by,
        "file_system": mount.file_system,
        "mount": mount.place,
        "look_us": look_us(path),
    }


def look_us(path: str) -> float:
    """Microseconds of one stat among the files of this folder, each looked at for the first time by this process; 0
    where there are none."""
    began = time.perf_counter()
    looks = 0
    for folder, names, files in os.walk(path):
        names.sort()
        for name in files:
            with contextlib.suppress(OSError):
                os.stat(os.path.join(folder, name))
            looks += 1
            if looks >= _LOOKS or time.perf_counter() - began > _LOOK_S:
                return round((time.perf_counter() - began) / looks * 1e6, 1)
    return round((time.perf_counter() - began) / looks * 1e6, 1) if looks else 0.0


def driver_version() -> str:
    """Version of NVIDIA's kernel driver, as 570.124.06; empty where there is none."""
    return parse_driver(text_of("/proc/driver/nvidia/version"))


def parse_driver(text: str) -> str:
    match = re.search(r"Kernel Module(?: for \w+)?\s+(\d+\.\d+(?:\.\d+)?)", text)
    return match.group(1) if match else ""
