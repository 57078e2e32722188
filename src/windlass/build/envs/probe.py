"""What of this machine decides which wheels work: CPU, C library, drivers. Reads files, runs nothing."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import msgspec

from windlass.node.sys.reading import read_text
from windlass.build.envs.plan import MachineFacts

_NVIDIA = Path("/proc/driver/nvidia/version")
_ROCM = Path("/opt/rocm/.info/version")


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that a check runs on."""

    machine: str
    glibc: str
    vendor: str = ""
    driver: str = ""
    runtime: str = ""


def probe_host(root: Path = Path("/")) -> HostFacts:
    """Look. What is not there is empty."""

    def read(path: Path) -> str:
        try:
            return read_text(root / str(path).lstrip("/"), errors="replace", follow=True)
        except OSError:
            return ""

    driver = parse_nvidia_version(read(_NVIDIA))
    vendor = "nvidia" if driver else "amd" if (root / "sys/module/amdgpu").exists() else ""
    rocm = re.match(r"\d+(\.\d+)+", read(_ROCM).strip())
    return HostFacts(
        machine=platform.machine(),
        glibc=platform.libc_ver()[1],
        vendor=vendor,
        driver=driver,
        runtime=rocm[0] if rocm else "",
    )


def parse_nvidia_version(text: str) -> str:
    """The driver's version in the text of /proc/driver/nvidia/version."""
    found = re.search(r"Kernel Module(?: for \S+)?\s+(\d+\.\d+(?:\.\d+)?)", text)
    return found[1] if found else ""


def machine_facts(host: HostFacts) -> MachineFacts:
    return MachineFacts(vendor=host.vendor, machine=host.machine, driver=host.driver, runtime=host.runtime)
