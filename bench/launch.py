"""What `windlass run` costs over a bare `srun` of the same ranks, measured side by side on a real Slurm.

    python bench/launch.py [--repeats 11] [--before PYTHON] [--json FILE]

Starts a Slurm of four nodes on this machine (as root, with Debian's slurm-wlm), takes an allocation and runs the cases
interleaved inside a batch job: an empty Python, a bare srun of 8 ranks, `windlass run` of the same 8 ranks. `--before`
names the Python of another checkout, whose `windlass run` is measured in turn with this one's.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SRUN = ("srun", "--nodes=4", "--ntasks=8", "--ntasks-per-node=2", "--overcommit", "--kill-on-bad-exit=1")


def cases(before: str | None) -> dict[str, tuple[str, ...]]:
    words = ("-m", "windlass", "run", "--quiet", "--ranks-per-node", "2", "--site", "generic-slurm")
    windlass = (sys.executable, *words)
    other = {"windlass-before": (before, *words, "--", "true")} if before else {}
    return {
        **other,
        "python": (sys.executable, "-c", "pass"),
        "srun": (*SRUN, "true"),
        "windlass": (*windlass, "--", "true"),
        "srun-python": (*SRUN, sys.executable, "-c", "pass"),
        "windlass-python": (*windlass, "--", sys.executable, "-c", "pass"),
    }


def measure(repeats: int, out: Path, before: str | None) -> None:
    """Inside the job: run every case in turn and write the samples."""
    samples: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"WINDLASS_RUNS": folder}
        for turn in range(repeats + 1):
            for name, argv in cases(before).items():
                start = time.perf_counter()
                subprocess.run(argv, check=True, env=env, stdout=subprocess.DEVNULL, timeout=120)
                if turn:  # the first turn warms caches
                    samples.setdefault(name, []).append(time.perf_counter() - start)
    out.write_text(json.dumps(samples))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--before", metavar="PYTHON", help="the Python of another checkout, to compare with")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        measure(args.repeats, args.inside, args.before)
        return
    sys.path[:0] = [str(ROOT / "tests")]
    from cluster.slurm import Shape, SlurmCluster  # the cluster of the tests

    with SlurmCluster(Shape(flavour="bound")) as cluster, tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "samples.json"
        words = (sys.executable, __file__, "--inside", str(out), "--repeats", str(args.repeats))
        words += ("--before", args.before) if args.before else ()
        script = Path(folder) / "job.sh"
        script.write_text(f"#!/bin/bash\n#SBATCH -N4 --exclusive -o {folder}/job.log\nexec {shlex.join(words)}\n")
        subprocess.run(
            ["sbatch", "--wait", "--parsable", str(script)],
            env=cluster.env(),
            check=False,
            timeout=900,
            stdout=subprocess.DEVNULL,
        )
        if not out.exists():
            raise SystemExit((Path(folder) / "job.log").read_text())
        samples = json.loads(out.read_text())
    print(f"{'case':<18}{'median s':>10}{'least s':>10}{'most s':>10}")
    for name, values in samples.items():
        print(f"{name:<18}{statistics.median(values):>10.3f}{min(values):>10.3f}{max(values):>10.3f}")
    python = statistics.median(samples["python"])
    for kind in ("", "-python"):
        over = statistics.median(samples["windlass" + kind]) - statistics.median(samples["srun" + kind])
        print(f"windlass over srun{kind}: {over:.3f} s; beyond starting Python once: {over - python:.3f} s")
    if args.json:
        record = {
            "version": 1,
            "benchmark": "launch",
            "command": f"python bench/launch.py --repeats {args.repeats}",
            "machine": {"cores": os.cpu_count(), "arch": platform.machine(), "python": platform.python_version()},
            "shape": "4 nodes x 2 ranks of a Slurm on one machine",
            "samples": samples,
        }
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
