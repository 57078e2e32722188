"""Does every precision, parallel mode and way to save memory train like fp32 alone? Loss curves on one device.

    python3 bench/agreement.py --out FILE                  on the accelerator where there is one
    python3 bench/agreement.py --device cpu --toy --out FILE

Same model, data and seed each time; the curves are compared with the fp32 reference (no TF32, nothing compiled, one
device) step by step. A run with another learning rate shows how large the distance of a wrong run is.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from fast_llama.loop import FastLlmOptions, train_fast_llm  # noqa: E402
from fast_resnet.loop import FastResNetOptions, train_fast_resnet  # noqa: E402
from windlass.bench.rank import software  # noqa: E402
from windlass.bench.train.device import Device, find_device  # noqa: E402

Note = Callable[[dict[str, Any]], None]

LLM = {"model": "llama-20m", "sequence": 256, "micro_batch": 4, "accumulation": 2, "steps": 40, "warmup": 0}
LLM_TOY = {"model": "tiny", "sequence": 32, "micro_batch": 2, "accumulation": 2, "steps": 12, "warmup": 0}
RESNET = {"model": "resnet50", "image": 64, "batch": 32, "steps": 20, "warmup": 0, "learning_rate": 1e-3}
RESNET_TOY = {"model": "resnet-tiny", "image": 32, "batch": 16, "steps": 6, "warmup": 0, "learning_rate": 1e-3}

# What is changed, and the largest relative distance of the loss that counts as agreement.
LLM_MODES: tuple[tuple[str, dict[str, Any], float], ...] = (
    ("fp32 compiled", {"compile": True}, 1e-3),
    ("tf32", {"tf32": True}, 1e-3),
    ("bf16 eager", {"precision": "bf16"}, 5e-3),
    ("bf16", {"precision": "bf16", "compile": True}, 5e-3),
    ("bf16, selective checkpointing", {"precision": "bf16", "compile": True, "checkpointing": "selective"}, 5e-3),
    ("bf16, full checkpointing", {"precision": "bf16", "compile": True, "checkpointing": "full"}, 5e-3),
    ("bf16, loss in odd chunks", {"precision": "bf16", "compile": True, "loss_chunk": 100}, 5e-3),
    ("fp8", {"precision": "fp8", "compile": True}, 2e-2),
    ("fp8, full checkpointing", {"precision": "fp8", "compile": True, "checkpointing": "full"}, 2e-2),
    ("fp32 under DDP", {"parallel": "ddp"}, 1e-3),
    ("bf16 under DDP", {"precision": "bf16", "compile": True, "parallel": "ddp"}, 5e-3),
    ("fp32 under FSDP", {"parallel": "fsdp"}, 1e-3),
    ("bf16 under FSDP", {"precision": "bf16", "compile": True, "parallel": "fsdp"}, 5e-3),
    ("fp8 under FSDP", {"precision": "fp8", "compile": True, "parallel": "fsdp"}, 2e-2),
    ("bf16 under FSDP, selective", {"precision": "bf16", "parallel": "fsdp", "checkpointing": "selective"}, 5e-3),
)
RESNET_MODES: tuple[tuple[str, dict[str, Any], float], ...] = (
    ("tf32", {"tf32": True}, 1e-2),
    ("amp", {"precision": "amp"}, 3e-2),
    ("bf16", {"precision": "bf16"}, 3e-2),
    ("bf16, norms by hand", {"precision": "bf16", "norm": "by-hand"}, 3e-2),
    ("bf16, norms by hand, one graph", {"precision": "bf16", "norm": "by-hand", "graphs": True, "compile": True}, 3e-2),
    ("amp under DDP", {"precision": "amp", "parallel": "ddp"}, 3e-2),
)
# Two ranks that share the device and talk through gloo (NCCL wants a device for each). Where the norms of a ResNet see
# half of the batch, its reference is two ranks too: plain DDP in fp32.
PAIR = {"parallel": "ddp"}
PAIR_MODES: tuple[tuple[str, str, dict[str, Any], float], ...] = (
    ("llm", "two ranks, fp32", {**PAIR, "accumulation": 1}, 1e-3),
    ("llm", "two ranks, bf16", {**PAIR, "accumulation": 1, "precision": "bf16", "compile": True}, 5e-3),
    ("resnet", "two ranks, DDP in fp32: the reference", PAIR, 0.0),
    ("resnet", "two ranks, bf16", {**PAIR, "precision": "bf16"}, 3e-2),
    ("resnet", "two ranks, graphs", {**PAIR, "graphs": True}, 1e-2),
    (
        "resnet",
        "two ranks, bf16, norms by hand, graphs",
        {**PAIR, "precision": "bf16", "norm": "by-hand", "graphs": True, "compile": True},
        3e-2,
    ),
)


def run_one(case: str, device: str, toy: bool, changes: dict[str, Any]) -> tuple[float, ...]:
    """The losses of one run: fp32, eager and alone but for the changes."""
    base = {"precision": "fp32", "compile": False, "tf32": False, "device": device}
    if case == "llm":
        return train_fast_llm(FastLlmOptions(**{**(LLM_TOY if toy else LLM), **base, **changes})).losses
    base |= {"graphs": False, "norm": "torch"}
    return train_fast_resnet(FastResNetOptions(**{**(RESNET_TOY if toy else RESNET), **base, **changes})).losses


def as_rank(text: str) -> int:
    """This process as one of two ranks on one device: its collectives are gloo's."""
    from fast_llama import loop
    from fast_resnet import loop as resnet_loop

    asked = json.loads(text)

    def shared(kind: str | None, local_rank: int = 0) -> Device:
        return replace(find_device(kind, 0), collective="gloo")

    loop.find_device = resnet_loop.find_device = shared
    losses = run_one(asked["case"], asked["device"], asked["toy"], asked["changes"])
    if os.environ["RANK"] == "0":
        print("losses " + json.dumps(losses), flush=True)
    return 0


def run_pair(case: str, device: str, toy: bool, changes: dict[str, Any]) -> tuple[float, ...]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    text = json.dumps({"case": case, "device": device, "toy": toy, "changes": changes})
    env = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    env |= {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT / "src")}
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--as-rank", text],
            env=env | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(" | ".join((err.strip().splitlines() or ["?"])[-1] for _, err in said))
    line = next(line for line in said[0][0].splitlines() if line.startswith("losses "))
    return tuple(json.loads(line.removeprefix("losses ")))


def pairs(device: str, toy: bool, reference: tuple[float, ...], note: Note) -> None:
    """Two ranks against one (the language model) and against two in fp32 (the ResNet)."""
    references: dict[str, tuple[float, ...]] = {"llm": reference}
    for case, name, changes, limit in PAIR_MODES:
        started = time.monotonic()
        line: dict[str, Any] = {"case": case, "mode": name, "changes": changes}
        try:
            losses = run_pair(case, device, toy, changes)
        except Exception as error:  # as below
            note(line | {"failed": str(error)[:400]})
            print(f"{case}: {name}: FAILED {error!r}"[:500], flush=True)
            continue
        far = [abs(a - b) / a for a, b in zip(references.setdefault(case, losses), losses, strict=True)]
        line |= {"losses": losses, "limit": limit, "largest": max(far), "mean": sum(far) / len(far)}
        line["agrees"] = max(far) <= limit
        note(line)
        word = "agrees" if line["agrees"] else "FAR"
        took = time.monotonic() - started
        print(f"{case}: {name:<40} largest {max(far):.5f} mean {line['mean']:.5f} {word} ({took:.1f} s)", flush=True)


def curves(case: str, device: str, toy: bool, note: Note) -> None:
    """One line per mode: its losses, and how far they are from the reference."""

    def run(**changes: Any) -> tuple[float, ...]:
        return run_one(case, device, toy, changes)

    rate = {"learning_rate": 6e-4} if case == "llm" else {"learning_rate": 2e-3}
    modes = (LLM_MODES if case == "llm" else RESNET_MODES) + (("control: twice the learning rate", rate, 0.0),)
    reference = run()
    note({"case": case, "mode": "fp32, the reference", "losses": reference})
    print(f"{case}: reference {reference[0]:.4f} to {reference[-1]:.4f}", flush=True)
    for name, changes, limit in modes:
        started = time.monotonic()
        try:
            losses = run(**changes)
        except Exception as error:  # a mode that this device lacks must not cost the others
            note({"case": case, "mode": name, "changes": changes, "failed": str(error).splitlines()[0][:200]})
            print(f"{case}: {name}: FAILED {error!r}"[:300], flush=True)
            continue
        far = [abs(a - b) / a for a, b in zip(reference, losses, strict=True)]
        line = {"case": case, "mode": name, "changes": changes, "losses": losses, "limit": limit}
        line |= {"largest": max(far), "mean": sum(far) / len(far), "agrees": max(far) <= limit}
        note(line)
        word = "agrees" if line["agrees"] else "FAR" if limit else "as a wrong run looks"
        print(
            f"{case}: {name:<36} largest {max(far):.5f} mean {sum(far) / len(far):.5f} {word} "
            f"({time.monotonic() - started:.1f} s)",
            flush=True,
        )


def main() -> int:
    asked = argparse.ArgumentParser()
    asked.add_argument("--device")
    asked.add_argument("--toy", action="store_true")
    asked.add_argument("--out", type=Path)
    asked.add_argument("--as-rank", help="for this program's own use")
    asked.add_argument("--commit")
    arguments = asked.parse_args()
    if arguments.as_rank:
        return as_rank(arguments.as_rank)
    if arguments.out is None:
        asked.error("--out FILE is needed")
    device = find_device(arguments.device)
    lines: list[dict[str, Any]] = []
    common: dict[str, Any] = {
        "what": "loss curves against fp32 on one device",
        "command": ["python3", "bench/agreement.py", *(["--toy"] if arguments.toy else [])],
        "device": {"kind": device.kind, "name": device.name},
        "software": software() | ({"commit": arguments.commit} if arguments.commit else {}),
        "options": {
            "llm": asdict(FastLlmOptions(**(LLM_TOY if arguments.toy else LLM))),
            "resnet": asdict(FastResNetOptions(**(RESNET_TOY if arguments.toy else RESNET))),
        },
    }

    def note(line: dict[str, Any]) -> None:
        """After every curve, so that a run that is cut short keeps what it has."""
        lines.append(line)
        arguments.out.write_text(json.dumps(common | {"curves": lines}, indent=1, default=str) + "\n")

    for case in ("llm", "resnet"):
        curves(case, device.kind, arguments.toy, note)
    pairs(device.kind, arguments.toy, lines[0]["losses"], note)
    bad = [line["mode"] for line in lines if "failed" in line or (line.get("limit") and not line["agrees"])]
    print(f"{len(lines)} curves, not as expected: {', '.join(bad) or 'none'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
