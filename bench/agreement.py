"""Does every precision, parallel mode and way to save memory train like fp32 alone? Loss curves on one device.

    python3 bench/agreement.py --out FILE                  on the accelerator where there is one
    python3 bench/agreement.py --device cpu --toy --out FILE

Same model, data and seed each time; the curves are compared with the fp32 reference (no TF32, nothing compiled, one
device) step by step. A run with another learning rate shows how large the distance of a wrong run is.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from windlass.bench.train.device import find_device  # noqa: E402
from windlass.bench.train.environment import software  # noqa: E402
from windlass.bench.train.options import LlmOptions, ResNetOptions  # noqa: E402

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
    ("bf16, gradients added by autograd", {"precision": "bf16", "compile": True, "fuse_accumulation": False}, 5e-3),
    ("bf16, micro-step as a graph", {"precision": "bf16", "compile": True, "graphs": True}, 5e-3),
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


def curves(case: str, device: str, toy: bool) -> list[dict[str, Any]]:
    """One line per mode: its losses, and how far they are from the reference."""
    from windlass.bench.train.loop import train_llm
    from windlass.bench.train.resnet_loop import train_resnet

    def run(**changes: Any) -> tuple[float, ...]:
        if case == "llm":
            common = LLM_TOY if toy else LLM
            base = {"precision": "fp32", "compile": False, "tf32": False, "device": device}
            return train_llm(LlmOptions(**{**common, **base, **changes})).losses
        common = RESNET_TOY if toy else RESNET
        base = {"precision": "fp32", "compile": False, "tf32": False, "graphs": False, "norm": "torch"}
        return train_resnet(ResNetOptions(**{**common, **base, "device": device, **changes})).losses

    rate = {"learning_rate": 6e-4} if case == "llm" else {"learning_rate": 2e-3}
    modes = (LLM_MODES if case == "llm" else RESNET_MODES) + (("control: twice the learning rate", rate, 0.0),)
    reference = run()
    found: list[dict[str, Any]] = [{"case": case, "mode": "fp32, the reference", "losses": reference}]
    print(f"{case}: reference {reference[0]:.4f} to {reference[-1]:.4f}", flush=True)
    for name, changes, limit in modes:
        started = time.monotonic()
        try:
            losses = run(**changes)
        except Exception as error:  # a mode that this device lacks must not cost the others
            found.append({"case": case, "mode": name, "changes": changes, "failed": str(error).splitlines()[0][:200]})
            print(f"{case}: {name}: FAILED {error!r}"[:300], flush=True)
            continue
        far = [abs(a - b) / a for a, b in zip(reference, losses, strict=True)]
        line = {"case": case, "mode": name, "changes": changes, "losses": losses, "limit": limit}
        line |= {"largest": max(far), "mean": sum(far) / len(far), "agrees": max(far) <= limit}
        found.append(line)
        word = "agrees" if line["agrees"] else "FAR" if limit else "as a wrong run looks"
        print(
            f"{case}: {name:<36} largest {max(far):.5f} mean {sum(far) / len(far):.5f} {word} "
            f"({time.monotonic() - started:.1f} s)",
            flush=True,
        )
    return found


def main() -> int:
    asked = argparse.ArgumentParser()
    asked.add_argument("--device")
    asked.add_argument("--toy", action="store_true")
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--commit")
    arguments = asked.parse_args()
    device = find_device(arguments.device)
    lines = [line for case in ("llm", "resnet") for line in curves(case, device.kind, arguments.toy)]
    made = {
        "what": "loss curves against fp32 on one device",
        "command": ["python3", "bench/agreement.py", *(["--toy"] if arguments.toy else [])],
        "device": {"kind": device.kind, "name": device.name},
        "software": software() | ({"commit": arguments.commit} if arguments.commit else {}),
        "options": {
            "llm": asdict(LlmOptions(**(LLM_TOY if arguments.toy else LLM))),
            "resnet": asdict(ResNetOptions(**(RESNET_TOY if arguments.toy else RESNET))),
        },
        "curves": lines,
    }
    arguments.out.write_text(json.dumps(made, indent=1, default=str) + "\n")
    bad = [line["mode"] for line in lines if "failed" in line or (line.get("limit") and not line["agrees"])]
    print(f"{len(lines)} curves, not as expected: {', '.join(bad) or 'none'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
