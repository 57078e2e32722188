"""Every `windlass bench` command on a machine with one GPU, as a user types it; in sets that fit a short lease.

    python3 bench/h200_commands.py --set first --out FOLDER [--commit COMMIT]
    python3 bench/h200_commands.py --set toy --out FOLDER          the same ways on a CPU, in a minute or two

Each command is a process of its own with a time limit, so that one that fails or hangs costs its own time only. The
record goes to FOLDER/NAME.json, what the command printed to FOLDER/NAME.txt; the end of each is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRATCH = "SCRATCH"  # stands for a folder of this run


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """One command line. `code`: how it must end; `said`: what it must say then."""

    name: str
    words: tuple[str, ...]
    limit_s: int = 90
    code: int = 0
    said: str = ""


def bench(name: str, *words: str, limit_s: int = 90, code: int = 0, said: str = "") -> Command:
    return Command(name=name, words=words, limit_s=limit_s, code=code, said=said)


SEVEN = ("llm", "--model", "llama2-7b")
EIGHT = ("llm", "--model", "llama3-8b")
MANY = ("--accumulation", "16", "--warmup", "2", "--steps", "6")
FEW = ("--accumulation", "4", "--warmup", "2", "--steps", "6")

FIRST = (
    bench("collectives", "collectives", "--op", "all_reduce,all_gather,reduce_scatter", limit_s=120),
    bench("collectives-every-op", "collectives", "--op", "all", "--sizes", "64K:64M:32"),
    bench(
        "collectives-skipped", "collectives", "--sizes", "1G,128G", "--iters", "5", said="skipped: all_reduce of 128"
    ),
    bench("collectives-two-ranks", "collectives", "-r", "2", "--sizes", "1M", code=-1),
    bench("matmul", "matmul", limit_s=120),
    bench("ddp", "ddp", "--model", "resnet50,resnet101", limit_s=150),
    bench("ddp-b96", "ddp", "--batch", "96"),
    bench("ddp-b96-fp16", "ddp", "--batch", "96", "--fp16-allreduce"),
    bench("ddp-b96-fp16-bf16", "ddp", "--batch", "96", "--fp16-allreduce", "--precision", "bf16"),
    bench("io", "io", SCRATCH, "--need", "5704"),
    bench("scale-ddp", "scale", "ddp", "--nodes", "1"),
)

LLM = (
    bench("llama2-7b-bf16-cli", *SEVEN, *MANY, "--precision", "bf16", limit_s=120),
    bench("llama2-7b-ddp", *SEVEN, *FEW, "--parallel", "ddp", "--checkpointing", "selective", limit_s=90),
    bench("llama2-7b-fsdp", *SEVEN, "--parallel", "fsdp", "--checkpointing", "full", "--steps", "6", limit_s=90),
    bench("llama3-8b-fsdp", *EIGHT, "--parallel", "fsdp", "--checkpointing", "full", "--steps", "6", limit_s=90),
    bench("llama2-7b-selective", *SEVEN, *FEW, "--checkpointing", "selective", limit_s=80),
    bench("llama2-7b-full", *SEVEN, *FEW, "--checkpointing", "full", limit_s=80),
    bench("llama3-8b-none", *EIGHT, limit_s=60, code=3, said="ran out of memory"),
)

SMALL = ("--model", "resnet-tiny", "--image", "32", "--batch", "2")
TINY = ("llm", "--model", "tiny", "--sequence", "32", "--warmup", "1", "--steps", "6", "--ceiling", "0.1")
TOY = (
    bench("collectives", "collectives", "--op", "all_reduce,all_gather", "--sizes", "1K,64K,4T", said="skipped: all_"),
    bench("collectives-every-op", "collectives", "--op", "all", "--sizes", "64K", "-r", "2"),
    bench("matmul", "matmul", "--size", "64", "--seconds", "0.1"),
    bench("ddp", "ddp", *SMALL, "--steps", "3"),
    bench("ddp-bf16", "ddp", "--precision", "bf16", *SMALL, "--steps", "3"),
    bench("ddp-fp16", "ddp", *SMALL, "--steps", "3", "--fp16-allreduce"),
    bench("io", "io", SCRATCH, "--samples", "50", "--need", "100"),
    bench("scale-ddp", "scale", "ddp", "--nodes", "1", *SMALL, "--steps", "3"),
    bench("llm-bf16", *TINY, "--precision", "bf16"),
    bench("llm-ddp", *TINY, "--parallel", "ddp", "--checkpointing", "selective"),
    bench("llm-fsdp", *TINY, "--parallel", "fsdp", "--checkpointing", "full"),
    bench("llm-too-large", "llm", "--model", "llama2-13b", "--device", "cpu", code=3, said="GiB for its state"),
)
SETS = {"first": FIRST, "llm": LLM, "toy": TOY}


def run_command(command: Command, out: Path, scratch: Path, left_s: float) -> tuple[bool, str]:
    """Run one and say how it went. Past its limit the command is interrupted, as a user would; then killed."""
    words = tuple(str(scratch) if word == SCRATCH else word for word in command.words)
    argv = [sys.executable, "-m", "windlass", "bench", *words, "--output", str(out / f"{command.name}.json")]
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), os.environ.get("PYTHONPATH", ""))),
        "WINDLASS_RUNS": str(scratch / "runs"),
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }
    started = time.monotonic()
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            text, _ = process.communicate(timeout=min(command.limit_s, left_s))
            state = f"exit {process.returncode}"
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                text, _ = process.communicate(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                text, _ = process.communicate()
            state = f"stopped after {time.monotonic() - started:.0f} s"
    (out / f"{command.name}.txt").write_text(f"$ windlass bench {' '.join(words)}\n{text}")
    if command.code >= 0:
        well = state == f"exit {command.code}"
    else:
        well = state.startswith("exit") and state != "exit 0"
    well = well and command.said in text
    word = "as expected" if well else "NOT AS EXPECTED"
    print(f"--- {command.name}: {state}, {word}, {time.monotonic() - started:.0f} s\n{_short(text)}", flush=True)
    return well, state


def _short(text: str) -> str:
    kept = text.splitlines()
    return "\n".join(line[:240] for line in (kept if len(kept) <= 24 else [*kept[:6], "…", *kept[-16:]]))


def stamp(out: Path, commit: str) -> None:
    """Write the commit into records made from a copy of the tree without its history; leave out where they were put."""
    for path in out.glob("*.json"):
        made = json.loads(path.read_text())
        if made.get("record") == "windlass.bench":
            made["commit"] = commit
            made["command"] = [word for word in made["command"] if word != "--output" and not word.startswith(str(out))]
            path.write_text(json.dumps(made, indent=1) + "\n")


def keep_failed_logs(runs: Path, out: Path) -> None:
    """The ends of all ranks' output, in one file: what to read where a command failed."""
    with (out / "ranks.log").open("w") as log:
        for path in sorted(runs.glob("**/out/*")):
            tail = path.read_text(errors="replace").splitlines()[-60:]
            kept = [line[:400] for line in tail if "@windlass-bench" not in line]
            log.write(f"=== {path.relative_to(runs)}\n" + "\n".join(kept) + "\n")


def main(argv: Sequence[str]) -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--set", choices=sorted(SETS), required=True)
    asked.add_argument("--only", help="names of commands, comma separated")
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--commit", help="what to write into the records where this copy of the tree has no history")
    asked.add_argument("--budget-s", type=float, default=560)
    args = asked.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    only = set((args.only or "").split(",")) - {""}
    deadline = time.monotonic() + args.budget_s
    scratch = Path(tempfile.mkdtemp(prefix="windlass-commands-"))
    lines = []
    try:
        for command in SETS[args.set]:
            if only and command.name not in only:
                continue
            left = deadline - time.monotonic()
            if left < 15:
                lines.append((command.name, False, "skipped: no time left"))
                continue
            lines.append((command.name, *run_command(command, args.out, scratch, left)))
        keep_failed_logs(scratch / "runs", args.out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if args.commit:
        stamp(args.out, args.commit)
    print("=" * 80)
    for name, well, state in lines:
        print(f"{'ok ' if well else 'BAD'} {name:<26} {state}")
    return 0 if all(well for _, well, _ in lines) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
