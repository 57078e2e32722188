"""How long a run stands still when a rank is killed, and what the watch on a node costs.

    python bench/supervise.py [--repeats 5] [--note TEXT] [--json FILE] [--nodes 2]

Starts a Slurm of four nodes on this machine (as root, with Debian's slurm-wlm), trains on two of them and kills a rank.
The time from the kill to the next step is split where it is known to whom:
  detect   until windlass knows that a rank failed
  end      until the last of the other ranks is gone
  decide   the look at all nodes, the cause, the decision
  launch   until the new ranks are started by their scripts
  import   until torch is imported
  meet     until all ranks have met
  load     until the snapshot is loaded
  step     the first step
Each repeat kills twice: a rank whose node has a standby process, which forks, and a rank in its second step, before
there is one. Both start again in place, with the same step of srun.

The watch: processor time and memory of an agent beside 12 ranks that show a sign of life once a second.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

from cluster.command import allocated, windlass_argv, windlass_env  # noqa: E402
from cluster.slurm import Shape, SlurmCluster  # noqa: E402

SCRIPT = ROOT / "tests" / "unit" / "supervise" / "training.py"
PARTS = ("detect", "end", "decide", "launch", "import", "meet", "load", "step")
WINDOW_S = 10
BEATING = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from windlass.runtime.ledger import Heartbeat
beat = Heartbeat(os.environ.get("WINDLASS_HEARTBEAT"))
for step in range(int(sys.argv[2])):
    beat.beat(step, time.monotonic())
    time.sleep(1)
"""


KILLS = {"fork": ("warm:18:1", "5"), "fresh": ("kill:1:1", "1")}
"""Fault and steps between two snapshots. A standby exists only after three steps."""


def one_kill(cluster: SlurmCluster, folder: Path, nodes: int, way: str) -> dict[str, float]:
    """Seconds of each part, of one run with one killed rank."""
    fault, every = KILLS[way]
    marks = folder / "marks"
    marks.mkdir(parents=True)
    losses, times = folder / "losses", folder / "times"
    words = (str(SCRIPT), str(folder / "ckpt"), "30", "--losses", str(losses), "--marks", str(marks))
    words += ("--pause", "0.1", "--times", str(times), "--fault", fault, "--every-steps", every)
    with allocated(cluster, folder, f"-N{nodes}", "--exclusive") as job:
        done = job.run_python("-r", "1", "--restarts", "1", "--hang-after", "120", *words, timeout_s=300)
    if done.code != 0:
        raise SystemExit(done.text)
    (run,) = (folder / "runs").iterdir()
    verdict = json.loads((run / "attempt-1" / "verdict.json").read_text())["times"]
    told = (run / "out" / "node-0001.log").read_text().count("fresh interpreter")
    if told or (run / "attempt-1" / "launcher.log").exists():
        raise SystemExit(f"{folder}: this run did not start again in place as a {way}")
    killed = float(next(marks.iterdir()).read_text().split()[0])
    started = min(path.stat().st_mtime for path in (run / "where").iterdir())
    imported, met = (float(word) for word in times.read_text().splitlines()[1].split())
    loaded = next((float(line.split("\t")[0]) for line in _ledger(run) if line.split("\t")[1] == "loaded"), met)
    stepped = next(at for at in (float(line.split()[2]) for line in losses.read_text().splitlines()) if at > loaded)
    moments = [
        killed,
        verdict["noticed"],
        verdict["ended"],
        verdict["decided"],
        started,
        imported,
        met,
        loaded,
        stepped,
    ]
    spent = {name: moments[at + 1] - moments[at] for at, name in enumerate(PARTS)}
    return {**spent, "total": stepped - killed}


def _ledger(run: Path) -> list[str]:
    return (run / "snapshots.tsv").read_text().splitlines()


def agent_cost(folder: Path, ranks: int, seconds: int) -> dict[str, Any]:
    """Processor time per second and memory of the one agent of a run on this machine, in windows of WINDOW_S."""
    script = folder / "beating.py"
    script.write_text(BEATING)
    words = ("--scheduler", "none", "-q", "-r", str(ranks), "--cpu-bind", "none", "--hang-after", "600")
    words += ("--python", sys.executable, str(script), str(ROOT / "src"), str(seconds + 15))
    env = {**os.environ, **windlass_env(folder)}
    shares, memory = [], []
    with subprocess.Popen(windlass_argv("run", *words), env=env, cwd=folder, stdout=subprocess.DEVNULL) as child:
        time.sleep(10)
        agent = _agent_below(child.pid)
        for _ in range(max(1, seconds // WINDOW_S)):
            first, began = _cpu_s(agent), time.monotonic()
            time.sleep(WINDOW_S)
            shares.append((_cpu_s(agent) - first) / (time.monotonic() - began))
            memory.append(_memory_mb(agent))
        child.wait(timeout=seconds + 60)
    return {
        "ranks": ranks,
        "window_s": WINDOW_S,
        "cpu_share": statistics.median(shares),
        "cpu_share_samples": [round(share, 5) for share in shares],
        "memory_mb": round(max(memory), 1),
    }


def _memory_mb(pid: int) -> float:
    status = _read(f"/proc/{pid}/status").splitlines()
    return int(next(line for line in status if line.startswith("VmRSS")).split()[1]) / 1024


def _agent_below(root: int) -> int:
    front = [root]
    while front:
        pid = front.pop()
        if "windlass.node.agent" in _read(f"/proc/{pid}/cmdline"):
            return pid
        front += [int(word) for word in _read(f"/proc/{pid}/task/{pid}/children").split()]
    raise SystemExit("no agent found")


def _cpu_s(pid: int) -> float:
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _read(path: str) -> str:
    return Path(path).read_text(errors="replace")


def summary(samples: list[dict[str, float]]) -> dict[str, Any]:
    return {
        name: {
            "median_s": round(statistics.median(one[name] for one in samples), 3),
            "low_s": round(min(one[name] for one in samples), 3),
            "high_s": round(max(one[name] for one in samples), 3),
        }
        for name in (*PARTS, "total")
    }


def _commit() -> str:
    argv = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(argv, check=False, capture_output=True, text=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--agent-seconds", type=int, default=50, help="how long the agent is watched")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--note", default="", help="how the machine was: quiet, or shared with other work")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    load = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder, SlurmCluster(Shape(flavour="wide")) as cluster:
        samples: dict[str, list[dict[str, float]]] = {way: [] for way in KILLS}
        for turn in range(args.repeats):
            for way, found in samples.items():
                found.append(one_kill(cluster, Path(folder) / f"{way}-{turn}", args.nodes, way))
                print(way, {name: round(value, 3) for name, value in found[-1].items()}, flush=True)
        (Path(folder) / "agent").mkdir()
        agent = agent_cost(Path(folder) / "agent", 12, args.agent_seconds)
    record = {
        "version": 3,
        "what": f"from a killed rank to the next step; {args.nodes} nodes x 1 rank of a real Slurm on one machine",
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d"),
        "machine": {
            "cpus": os.cpu_count(),
            "system": platform.platform(),
            "load_before": [round(x, 1) for x in load],
            "load_after": [round(x, 1) for x in os.getloadavg()],
        },
        "note": args.note,
        "ways": {
            way: {
                "parts": summary(found),
                "samples": [{name: round(value, 4) for name, value in one.items()} for one in found],
            }
            for way, found in samples.items()
        },
        "agent": agent,
    }
    text = json.dumps(record, indent=1)
    if args.json:
        Path(args.json).write_text(text + "\n")
    for way, found in samples.items():
        for name, part in summary(found).items():
            print(f"{way:<6} {name:<8} {part['median_s']:>8.2f} s   ({part['low_s']:.2f} to {part['high_s']:.2f})")
    print(f"agent: {agent['cpu_share']:.2%} of a core, {agent['memory_mb']:.0f} MB beside {agent['ranks']:.0f} ranks")


if __name__ == "__main__":
    main()
