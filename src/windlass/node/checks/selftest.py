"""The report of a rank about itself in a self-test. Runs with the user's interpreter. Stdlib only.

Sends one message: the node as the rank sees it, its CPUs and devices, and the transport that a first all-reduce used.
It uses torch if torch is installed. If torch is missing, the report contains that.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from windlass.node.checks.collectives import pick_device
from windlass.node.sys.identity import own_environ
from windlass.node.sys.messages import MessageWriter

VARIABLES = re.compile(
    r"\A(?!.*(TOKEN|SECRET|PASS|CREDENTIAL|COOKIE|KEY|AUTH))"
    r"((NCCL|RCCL|CCL|FI|GLOO|HSA|ZE|ROCR|HIP|CUDA_VISIBLE|MIOPEN|OMP|PALS|PMI|MASTER)_"
    r"|SLURM_(JOB_NUM|NNODES|NTASKS|PROCID|LOCALID|NODEID|CPUS|CPU_BIND)|PMIX_RANK|FLUX_(JOB_SIZE|TASK)"
    r"|(RANK|LOCAL_RANK|WORLD_SIZE)\Z)"
)
"""Variables that may be shown to others: those of collective libraries and launchers, by their prefix."""


def report() -> dict[str, Any]:
    """Return all facts of this rank about its placement."""
    environ = own_environ()
    return {
        "rank": int(environ.get("RANK", "-1")),
        "local_rank": int(environ.get("LOCAL_RANK", "-1")),
        "host": socket.gethostname(),
        "kernel": platform.release(),
        "arch": platform.machine(),
        "python": platform.python_version(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "cpu_count": os.cpu_count(),
        "variables": {k: v for k, v in sorted(environ.items()) if VARIABLES.match(k)},
        "interfaces": sorted(path.name for path in Path("/sys/class/net").glob("*")),
        "libraries": loaded_libraries(),
        "torch": torch_report(int(environ.get("LOCAL_RANK", "0"))),
    }


def loaded_libraries() -> list[str]:
    """Return the collective and network libraries that are mapped into this process."""
    wanted = re.compile(r"lib(nccl|rccl|ccl|fabric|cxi|mpi|ucp|nccl-net|rccl-net|gloo)[^/]*\.so")
    try:
        with open("/proc/self/maps", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    return sorted({line.split()[-1] for line in lines if wanted.search(line)})


def torch_report(local_rank: int) -> dict[str, Any]:
    """Report devices, backend and one checked all-reduce through torch."""
    try:
        torch = importlib.import_module("torch")  # the user's own, if there is one
        dist = importlib.import_module("torch.distributed")
    except ImportError as error:
        return {"missing": str(error)}
    answer: dict[str, Any] = {"version": torch.__version__}
    backend, device, _ = pick_device(torch, local_rank)
    answer |= {"backend": backend, "device": str(device)}
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=300))
        value = torch.ones(1 << 20, device=device) * (dist.get_rank() + 1)
        start = time.perf_counter()
        dist.all_reduce(value)
        expected = dist.get_world_size() * (dist.get_world_size() + 1) / 2
        answer |= {
            "all_reduce_right": bool((value == expected).all().item()),
            "all_reduce_first_s": round(time.perf_counter() - start, 4),
            "libraries_after": loaded_libraries(),
        }
        dist.destroy_process_group()
    except Exception as error:  # the report of an error is the purpose
        answer["failed"] = f"{type(error).__name__}: {error}"
    return answer


def main(_: dict[str, Any]) -> int:
    found = report()
    sys.stdout.flush()
    MessageWriter(found["rank"]).send(**found)
    return 0
