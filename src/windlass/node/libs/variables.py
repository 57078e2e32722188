"""Changes to a container's environment for the libraries of this node, as a few lines for its shell.

They set search paths of libfabric's providers, a plugin that the image names, and CUDA's compatibility libraries. These
depend on the image and on the node, so they are decided on the node. Runs on nodes: standard library, Python 3.9.
"""

from __future__ import annotations

import re
import shlex
from typing import Iterable, List, NamedTuple, Optional, Tuple

from windlass.node.libs.closure import SystemRoot, version_key

COMPAT = "/usr/local/cuda*/compat"
SET, UNSET, FRONT_OF, WITHOUT = "set", "unset", "front", "without"
_FIRST_DRIVERS = (("11", "450.80.02"), ("12", "525.60.13"), ("13", "580.65.06"))
"""The first driver of each CUDA release. With it or a later one, every program of that release runs."""
_DRIVER = re.compile(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b")


class Variable(NamedTuple):
    """One change. In a value, `{folder}` is the job's directory of host libraries."""

    name: str
    how: str
    value: str
    because: str


class Compat(NamedTuple):
    """The state of the image's CUDA compatibility libraries: `needed`, `harmful`, `optional`, or empty."""

    verdict: str
    because: str


def driver_version(root: SystemRoot) -> str:
    """Return the version of the NVIDIA driver of this host. Empty if there is no driver."""
    text = root.read("/sys/module/nvidia/version", 200).strip() or root.read("/proc/driver/nvidia/version", 400)
    found = _DRIVER.search(text)
    return found.group(1) if found else ""


def judge_compat(compat: str, driver: str) -> Compat:
    """Judge the image's compatibility libraries for driver `compat` on a host that runs `driver`."""
    if not compat or not driver:
        return Compat("", "")
    if version_key(driver) >= version_key(compat):
        return Compat(
            "harmful", "the host's driver %s is as new as them (%s): in front of it they break CUDA" % (driver, compat)
        )
    release, first = ("", compat)
    for name, needed in _FIRST_DRIVERS:
        if version_key(needed) <= version_key(compat):
            release, first = name, needed
    if version_key(driver) >= version_key(first):
        return Compat("optional", "the host's driver %s runs programs of CUDA %s without them" % (driver, release))
    return Compat("needed", "the host's driver %s is older than CUDA %s needs (%s)" % (driver, release, first))


def compat_variables(compat: str, folder: str, driver: str) -> Tuple[Variable, ...]:
    found = judge_compat(compat, driver)
    if found.verdict == "needed":
        return (Variable("LD_LIBRARY_PATH", FRONT_OF, folder, "CUDA's compatibility libraries: " + found.because),)
    if found.verdict == "harmful":
        return (Variable("LD_LIBRARY_PATH", WITHOUT, COMPAT, "CUDA's compatibility libraries: " + found.because),)
    return ()


def provider_variable(placed: bool, of_image: Optional[str], from_host: bool) -> Variable:
    """Set FI_PROVIDER_PATH to the providers of the libfabric that is loaded, and no others."""
    name = "FI_PROVIDER_PATH"
    if placed:
        return Variable(name, SET, "{folder}/providers", "providers that the host's libfabric loads as files")
    if from_host:
        return Variable(name, UNSET, "", "providers of another libfabric do not fit the host's")
    if of_image:
        return Variable(name, SET, of_image, "the image's own libfabric takes the image's providers")
    return Variable(name, UNSET, "", "a folder of the host is not there inside")


def environment_text(variables: Iterable[Variable], folder: str) -> str:
    """Return lines for `sh`, which the shell that starts the command inside the container reads."""
    lines: List[str] = []
    for variable in variables:
        name, value = variable.name, shlex.quote(variable.value.replace("{folder}", folder))
        if variable.how == SET:
            lines.append("export %s=%s" % (name, value))
        elif variable.how == UNSET:
            lines.append("unset %s" % name)
        elif variable.how == FRONT_OF:
            lines.append('export %s=%s"${%s:+:$%s}"' % (name, value, name, name))
        else:
            lines += _without(name, variable.value)
    return "".join(line + "\n" for line in lines)


def _without(name: str, pattern: str) -> List[str]:
    """Remove directories that match the pattern from a search path. Our pattern contains no blanks."""
    return [
        "w_kept= w_rest=${%s-}:" % name,
        'while [ -n "$w_rest" ]; do',
        "  w_part=${w_rest%%:*} w_rest=${w_rest#*:}",
        "  case $w_part in '' | %s | %s/*) ;; *) w_kept=${w_kept:+$w_kept:}$w_part ;; esac" % (pattern, pattern),
        "done",
        'export %s="$w_kept"' % name,
        "unset w_kept w_rest w_part",
    ]
