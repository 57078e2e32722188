"""A rank of the doctor, started like any rank of the plan: reports its environment and times collectives.

It runs with the user's interpreter, inside the container if there is one. The first rank of a node also reports the
facts that all of the node's ranks share.

It reports the actual environment of a rank: its Python, its torch, their file system, and the cost of a file lookup
there. It also reports the network plugin of NCCL or RCCL that a rank finds: its path, whether it loads, and whether
there is another.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import importlib.util
import itertools
import os
import re
import shutil
import subprocess
import sys
import time
from typing import Any

from windlass.node.checks import collectives
from windlass.node.checks.space import read_limits
from windlass.node.sampler.readings import listed as names_in
from windlass.node.sys.identity import own_environ
from windlass.node.sys.messages import MessageWriter, host_name
from windlass.node.sys.mounts import MountPoint, mount_of, mounts
from windlass.node.sys.tools import MissingError, output_of, text_of

_NAME = re.compile(r"\Alib(?:nccl|rccl)-net(?:-[\w-]+)?\.so(?:\.[\d.]+)?\Z")
_PROVIDER = re.compile(r"^(\w[\w;]*):\s*$", re.MULTILINE)
_LOAD_S = 8.0
_FI_INFO_S = 5.0
_OTHERS_S = 3.0
"""A rank that fails ends the other ranks. They get this long to report their own problems first."""
_HIDING = ("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME")
_TRY_S = 10.0
_COMPARED = re.compile(
    r"\A(?:(?:NCCL|RCCL|CCL|FI|UCX|GLOO|HSA|ROCR|HIP|CUDA|ZE|MIOPEN|OMP|KMP|MKL|TORCH)_\w+|PYTHON(?:PATH|HOME|STARTUP)"
    r"|LD_PRELOAD|LD_LIBRARY_PATH|(?:https?|all)_proxy)\Z"
)
_OWN = re.compile(r"(?:_FILE|_DIR|_PATH|_HOME|RANK|_ID)\Z|_(?:DEBUG|LOG)(?:_|\Z)")
"""Variables that differ between healthy nodes. `--comm-log` enables logs for one rank."""
_IMPORT = "import sys; sys.path[:] = filter(None, sys.path); import torch"
_LOAD = "import ctypes, sys; ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_LOCAL | 2)"


def find_plugins(environ: dict[str, str]) -> list[str]:
    """Return the plugins in the order in which the loader would find them, one for each directory.

    A directory often has several names for the same plugin.
    """
    found: dict[str, str] = {}
    named = environ.get("NCCL_NET_PLUGIN", "")
    candidates = [named] if "/" in named else []
    for folder in environ.get("LD_LIBRARY_PATH", "").split(":"):
        for name in sorted(names_in(folder), key=lambda name: (len(name), name)):
            if _NAME.match(name):
                candidates.append(os.path.join(folder, name))
    for path in candidates:
        real = os.path.realpath(path)
        if os.path.isfile(real):
            found.setdefault(os.path.dirname(real), path)
    return list(found.values())


def load_error(path: str) -> str:
    """Return the loader's error for this library in the environment of the rank. Empty if it loads.

    Runs in a separate process, because a library may run any code when it is loaded.
    """
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
    """Return the plugins, the error of the first, and the providers of libfabric."""
    found = find_plugins(environ)
    providers = None
    if shutil.which("fi_info"):
        try:
            providers = parse_providers(output_of("fi_info", "-l", timeout_s=_FI_INFO_S))
        except MissingError:
            providers = []
    return {"found": found, "error": load_error(found[0]) if found else "", "providers": providers}


def parse_providers(text: str) -> list[str]:
    """Return the names of the providers in the output of `fi_info -l`."""
    return sorted(set(_PROVIDER.findall(text)))


_VERSION = re.compile(r"^(\w+)\s*(?::[^=\n]*)?=\s*'([^'\n]*)'", re.MULTILINE)
_LOOKS = 300
_LOOK_S = 1.5


def python_facts() -> dict[str, Any]:
    """Report the interpreter that runs this rank."""
    return {"executable": sys.executable, "version": "%d.%d.%d" % sys.version_info[:3], "prefix": sys.prefix}


def torch_facts() -> dict[str, Any]:
    """Report the torch that this interpreter would import, without importing it. Empty if there is no torch."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None or not spec.submodule_search_locations:
        return {}  # no torch, or an empty directory of that name
    folder = next(iter(spec.submodule_search_locations))
    return {"folder": folder, **parse_torch_version(text_of(os.path.join(folder, "version.py")))}


def parse_torch_version(text: str) -> dict[str, str]:
    """Return `version`, and `cuda`, `hip` or `xpu` if torch is built for them, from torch/version.py."""
    said = dict(_VERSION.findall(text))
    found = {name: said[name] for name in ("cuda", "hip", "xpu") if said.get(name)}
    version = said.get("__version__") or said.get("version")
    return {**({"version": version} if version else {}), **found}


def place_facts(path: str, table: list[MountPoint] | None = None) -> dict[str, Any]:
    """Report the file system of a directory and the time of a file lookup there.

    Most of an import is file lookups.
    """
    mount = mount_of(os.path.realpath(path), mounts() if table is None else table)
    return {
        "path": path,
        "kind": mount.served_by,
        "file_system": mount.file_system,
        "mount": mount.place,
        "look_us": look_us(path),
    }


def look_us(path: str) -> float:
    """Return the median time in microseconds of a stat among the files of this directory.

    Each file is looked up for the first time by this process. 0 if there are no files. The median and not the mean,
    because on busy cores a few lookups take a whole time slice.
    """
    until = time.perf_counter() + _LOOK_S
    took: list[float] = []
    files = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    for file in itertools.islice(files, _LOOKS):
        began = time.perf_counter()
        with contextlib.suppress(OSError):
            os.stat(file)
        took.append(time.perf_counter() - began)
        if time.perf_counter() > until:
            break
    return round(sorted(took)[len(took) // 2] * 1e6, 1) if took else 0.0


def compared_variables(environ: dict[str, str]) -> dict[str, str]:
    """Return the variables that must be equal on all nodes: not those that name the node or its devices."""
    return {
        name: value
        for name, value in environ.items()
        if _COMPARED.match(name)
        and (name == "LD_LIBRARY_PATH" or not _OWN.search(name))
        and not any(part in value for part in ("GPU-", "MIG-", host_name()))
    }


def hiding_variable(environ: dict[str, str], try_s: float = _TRY_S) -> str:
    """Return the variable without which torch can be imported. Empty if no variable is the cause."""
    for name in _HIDING:
        if not environ.get(name):
            continue
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                [sys.executable, "-c", _IMPORT],
                env={key: value for key, value in environ.items() if key != name},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=try_s,
                check=True,
            )
            return name
    return ""


def driver_version() -> str:
    """Return the version of NVIDIA's kernel driver, such as 570.124.06. Empty if there is no driver."""
    return parse_driver(text_of("/proc/driver/nvidia/version"))


def parse_driver(text: str) -> str:
    match = re.search(r"Kernel Module(?: for \w+)?\s+(\d+\.\d+(?:\.\d+)?)", text)
    return match.group(1) if match else ""


def facts(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the facts that this rank can report without torch."""
    environ = dict(own_environ())
    found: dict[str, Any] = {
        "rank": int(environ.get("RANK", "0")),
        "local_rank": int(environ.get("LOCAL_RANK", "0")),
        "host": host_name(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "omp_threads": environ.get("OMP_NUM_THREADS", ""),
    }
    if found["local_rank"] == 0:
        torch = torch_facts()
        found["python"] = python_facts()
        found["torch"] = torch
        found["places"] = [place_facts(path) for path in dict.fromkeys((sys.prefix, torch.get("folder", sys.prefix)))]
        found["limits"] = read_limits()
        found["driver"] = driver_version()
        found["network"] = plugin_facts(environ)
        found["variables"] = compared_variables(environ)
    return found


def main(spec: dict[str, Any]) -> int:
    """Report facts without torch first, then the import, then the collectives. The last report locates a hang."""
    faulthandler.dump_traceback_later(spec["seconds"], exit=True)  # a hanging rank must not block the doctor
    found = facts(spec)
    out = MessageWriter(found["rank"])
    importing = spec["level"] != "quick"
    out.send(**found, importing=importing)
    if importing:
        began = time.perf_counter()
        try:
            torch = importlib.import_module("torch")  # the user's own, if there is one
        except Exception as error:  # a broken installation can raise any exception
            out.send(importing=False, import_error="%s: %s" % (type(error).__name__, error))
            if found["local_rank"] == 0:
                out.send(hiding=hiding_variable(dict(own_environ())))
            time.sleep(_OTHERS_S)
            os._exit(1)  # the others wait for this rank
        out.send(importing=False, import_s=round(time.perf_counter() - began, 3))
        sys.stdout.flush()
        out.send(**collectives.measure(torch, found["rank"], found["local_rank"], spec))
    faulthandler.cancel_dump_traceback_later()
    os._exit(0)  # a collective library may hang during a normal exit
