"""How long planning takes, and how much memory: 10,000 nodes x 12 ranks of Aurora, and the commands a person types.

Each command runs in a process of its own, several times, interleaved; a bare Python beside them shows the floor.
    python bench/plan.py [--repeats 7] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

WINDLASS = (sys.executable, "-m", "windlass")
CASES: dict[str, tuple[str, ...]] = {
    "python": (sys.executable, "-c", "pass"),
    "help": (*WINDLASS, "--help"),
    "plan-workstation": (*WINDLASS, "plan", "--", "true"),
    "plan-aurora-10000": (
        *WINDLASS, "plan", "--site", "aurora", "--nodes", "10000", "--account", "A", "--time", "1h", "--", "true",
    ),
    "plan-frontier-9000-json": (*WINDLASS, "plan", "--json", "--site", "frontier", "--nodes", "9000", "--", "true"),
}  # fmt: skip


def once(argv: tuple[str, ...]) -> dict[str, float]:
    start = time.perf_counter()
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(argv)} ended with {child.returncode}")
    return {"seconds": seconds, "cpu_seconds": usage.ru_utime + usage.ru_stime, "peak_mb": usage.ru_maxrss / 1024}


def imported(argv: tuple[str, ...]) -> list[str]:
    """Heavy modules that a command pulled in, which should be none."""
    code = "import sys, runpy; sys.argv = ['windlass', *sys.argv[1:]]\n"
    code += "try: runpy.run_module('windlass', run_name='__main__')\nexcept SystemExit: pass\n"
    code += "print('MODULES', [m for m in ('torch', 'numpy') if m in sys.modules], file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code, *argv[3:]], capture_output=True, text=True, timeout=60, check=False
    )
    return [line for line in done.stderr.splitlines() if line.startswith("MODULES")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in CASES}
    for _ in range(args.repeats):
        for name, argv in CASES.items():
            samples[name].append(once(argv))
    print(f"{'case':<26}{'median s':>10}{'least s':>10}{'most s':>10}{'peak MB':>10}")
    for name, rows in samples.items():
        seconds = [row["seconds"] for row in rows]
        peak = max(row["peak_mb"] for row in rows)
        print(f"{name:<26}{statistics.median(seconds):>10.3f}{min(seconds):>10.3f}{max(seconds):>10.3f}{peak:>10.1f}")
    heavy = imported(CASES["plan-aurora-10000"])
    print("heavy modules imported by plan:", *heavy)
    if args.json:
        record = {
            "version": 1,
            "benchmark": "plan",
            "command": "python bench/plan.py --repeats " + str(args.repeats),
            "machine": {"cores": os.cpu_count(), "arch": platform.machine(), "python": platform.python_version()},
            "samples": samples,
            "heavy_modules": heavy,
        }
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
