"""Pretended nodes with planted faults, and what `windlass doctor` says about them.

Every node has its own name, mounts and processes (namespaces). The doctor, the launcher's protocol, the node programs
and the ranks are real. A fault is a shell text that runs on its node before each task.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import windlass
from standins.sites import Site, pbs_site

NODES = ("node1", "node2", "node3", "node4")
_SOURCE = Path(windlass.__file__).parents[1]
_TASK = """\
[ -n "$NODE_CORPUS" ] || NODE_CORPUS=inside exec unshare --mount --pid --fork --kill-child --mount-proc sh "$0" "$@"
unset NODE_CORPUS
mount -t tmpfs tmpfs /run
{plant}
"$@"
exit $?
"""
SITES = {
    "plain": """
kind = "site"
name = "pretended"
title = "A pretended PBS machine"
status = "for tests"
[scheduler]
kind = "pbs"
[launcher]
kind = "pals"
[rendezvous]
address = "host"
[storage]
local = "/tmp"
""",
    "devices": """
network = "slingshot-11"
drop = ["--*"]
[node]
cores = 2
threads_per_core = 1
nics = ["hsn0"]
nic_gbits = 200
[[node.domains]]
cpus = "0-1"
devices = [0, 1]
""",
}
_DEVICES = {
    "nvidia": ("CUDA_VISIBLE_DEVICES", "cuda", "nccl"),
    "amd": ("ROCR_VISIBLE_DEVICES", "cuda", "nccl"),
    "intel": ("ZE_AFFINITY_MASK", "xpu", "xccl"),
}


@dataclass(frozen=True)
class Diagnosis:
    """What the doctor found: `(kind, severity, hosts, advice)` of what is not fine."""

    findings: list[dict[str, str]]
    seconds: float
    text: str


@dataclass(frozen=True)
class Nodes:
    site: Site

    def doctor(
        self,
        plants: Mapping[str, str] = {},
        *,
        words: tuple[str, ...] = (),
        level: str = "--quick",
        vendor: str = "",
        env: Mapping[str, str] = {},
        hosts: tuple[str, ...] = NODES,
    ) -> Diagnosis:
        folder = self.site.folder
        base = _WITH_DEVICES.format(vendor=vendor) if vendor else ""
        for host in NODES:
            text = _TASK.format(plant="\n".join((base, plants.get(host, ""))))
            (folder / "faults").mkdir(exist_ok=True)
            (folder / "faults" / host).write_text(text)
        (folder / "nodefile").write_text("".join(f"{host}\n" for host in hosts))
        (folder / "site.toml").write_text(_site_text(vendor))
        environ = self.site.env | {
            "PBS_JOBID": "7.head",
            "PBS_NODEFILE": str(folder / "nodefile"),
            "PYTHONPATH": str(_SOURCE),
            "STANDIN_FAULTS": str(folder / "faults"),
            "CORPUS": str(folder),
            "PYTHON": sys.executable,
            "NODE1": (folder / "holders" / hosts[0]).read_text(),
            **env,
        }
        level_words = (level,) if level else ()
        options = ("doctor", *level_words, "--json", "--site", str(folder / "site.toml"), "-r", "1")
        where = ("nsenter", "--uts", "--mount", "--target", environ["NODE1"], f"--wd={self.site.home}", "--")
        began = time.monotonic()
        done = subprocess.run(
            [*where, sys.executable, "-m", "windlass", *options, *words],
            env=environ,
            text=True,
            timeout=120,
            capture_output=True,
            stdin=subprocess.DEVNULL,
        )
        seconds = time.monotonic() - began
        assert done.stdout.startswith("{"), done.stdout + done.stderr
        found = json.loads(done.stdout)["findings"]
        bad = [one for one in found if one["severity"] in {"error", "warning"}]
        return Diagnosis(findings=bad, seconds=seconds, text=done.stdout + done.stderr)


def _site_text(vendor: str) -> str:
    if not vendor:
        return SITES["plain"]
    visibility, torch_type, backend = _DEVICES[vendor]
    devices = f"""
[devices]
vendor = "{vendor}"
name = "{vendor} device"
visibility = "{visibility}"
mode = "all"
memory_gb = 40
torch_type = "{torch_type}"
backend = "{backend}"
"""
    head, _, rest = SITES["plain"].partition("[scheduler]")
    network, _, node = SITES["devices"].partition("[node]")
    return f"{head}{network}[scheduler]{rest}[node]{node}{devices}"


_TOOLS = {
    "nvidia/nvidia-smi": """#!/bin/sh
sed '1,/^exit/d' "$0"
exit
0, NVIDIA A100-SXM4-40GB, 40960, 4, 570.124.06, 0, 0x0000000000000000, 1410, 1410, No, No
1, NVIDIA A100-SXM4-40GB, 40960, 4, 570.124.06, 0, 0x0000000000000000, 1410, 1410, No, No
""",
    "amd/rocm-smi": """#!/bin/sh
sed '1,/^exit/d' "$0"
exit
{"card0": {"VRAM Total Memory (B)": "42949672960", "VRAM Total Used Memory (B)": "10960896", "Card series": "AMD"},
"card1": {"VRAM Total Memory (B)": "42949672960", "VRAM Total Used Memory (B)": "10960896", "Card series": "AMD"},
"system": {"Driver version": "6.3.6"}}
""",
    "intel/xpu-smi": """#!/bin/sh
[ "$1" = health ] && { echo '{"device_list": [{"device_id": 0, "memory": {"status": "OK"}}]}'; exit; }
sed '1,/^exit/d' "$0"
exit
{"device_list": [
{"device_id": 1, "device_name": "Intel Max 1550", "device_type": "GPU", "memory_physical_size_byte": "42949672960"},
{"device_id": 0, "device_name": "Intel Max 1550", "device_type": "GPU", "memory_physical_size_byte": "42949672960"}
]}
""",
    "fi_info": "#!/bin/sh\nprintf 'cxi:\\n    version: 1\\ntcp:\\n    version: 1\\n'\n",
}
_BUILT_FOR = {"nvidia": "cuda = '12.8'", "amd": "hip = '6.3.6'", "intel": "xpu = '20250101'"}
_AHEAD = """#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t which, struct timespec *at) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int code = real(which, at);
  if (which == CLOCK_REALTIME) at->tv_sec += 500;
  return code;
}
"""
_SLOW = """#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
#define SLOW(name) int name(const char *path, void *found) { \\
  static int (*real)(const char *, void *); \\
  if (!real) real = dlsym(RTLD_NEXT, #name); \\
  usleep(2000); \\
  return real(path, found); \\
}
SLOW(stat)
SLOW(stat64)
"""
_WITH_DEVICES = """
mount -t tmpfs tmpfs /sys/class
for name in lo hsn0; do
  mkdir -p /sys/class/net/$name
  echo up > /sys/class/net/$name/operstate; echo 1 > /sys/class/net/$name/carrier
  echo 9000 > /sys/class/net/$name/mtu; echo 200000 > /sys/class/net/$name/speed
done
export PATH=$CORPUS/tools/{vendor}:$CORPUS/tools:$PATH PYTHONPATH=$CORPUS/torch-{vendor}:$PYTHONPATH
export LD_LIBRARY_PATH=$CORPUS/plugin
"""


def _equip(folder: Path) -> None:
    """Stand-ins of the vendors' tools, torch as built for their devices, and libraries that change clock or stat."""
    for name, text in _TOOLS.items():
        path = folder / "tools" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    for vendor, built in _BUILT_FOR.items():
        torch = folder / f"torch-{vendor}" / "torch"
        torch.mkdir(parents=True)
        (torch / "__init__.py").write_text("")
        (torch / "version.py").write_text(f"__version__ = '2.9.0'\n{built}\n")
    (folder / "plugin").mkdir()
    shutil.copy(find_library(), folder / "plugin" / "libnccl-net.so")
    for name, text in (("ahead", _AHEAD), ("slow", _SLOW)):
        (folder / f"{name}.c").write_text(text)
        argv = ["cc", "-shared", "-fPIC", "-o", folder / f"{name}.so", folder / f"{name}.c"]
        subprocess.run(argv, check=True, timeout=60)


def find_library() -> Path:
    """Any library that loads by itself."""
    return next(path for path in map(Path, ("/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6")) if path.exists())


@contextlib.contextmanager
def nodes(folder: Path) -> Iterator[Nodes]:
    with pbs_site(folder / "pbs", NODES) as site:
        _equip(site.folder)
        yield Nodes(site)
