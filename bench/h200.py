"""Measures of the training step on one GPU, in stages that fit a short lease of the machine.

    python3 bench/h200.py --stage probe|main|... --out FOLDER

Every case is a process of its own with a time limit, so that one that fails or hangs costs its own time only. Records
go to FOLDER as JSON; a short table is printed last.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SEVEN = ("llm", "--model", "llama2-7b", "--sequence", "4096", "--micro-batch", "1")

# name, limit in seconds, arguments of `python bench/train_step.py` (or "micro:..." for a part of this file)
Case = tuple[str, int, tuple[str, ...]]

SEVEN_RATE = ("--learning-rate", "3e-5")
FULL = ("--accumulation", "16", "--warmup", "2", "--steps", "8", "--profile")
QUICK = ("--accumulation", "16", "--warmup", "1", "--steps", "4", "--profile")

STAGES: dict[str, tuple[Case, ...]] = {
    "toy": (
        ("micro", 100, ("micro", "toy")),
        ("llm", 100, ("llm", "--model", "tiny", "--steps", "6", "--warmup", "1", "--profile")),
        (
            "resnet",
            100,
            ("resnet", "--model", "resnet-tiny", "--image", "64", "--batch", "4", "--steps", "6", "--profile"),
        ),
    ),
    "probe": (
        ("micro", 120, ("micro", "full")),
        (
            "bf16-a8",
            150,
            (*SEVEN, "--precision", "bf16", "--accumulation", "8", "--warmup", "2", "--steps", "5", "--profile"),
        ),
        (
            "fp8-a8",
            150,
            (*SEVEN, "--precision", "fp8", "--accumulation", "8", "--warmup", "2", "--steps", "5", "--profile"),
        ),
        ("rn50-b32", 120, ("resnet", "--batch", "32", "--steps", "100", "--profile")),
        ("rn50-b32-mm", 120, ("resnet", "--batch", "32", "--steps", "100", "--pointwise-as-matmul", "--profile")),
        ("rn50-b96", 120, ("resnet", "--batch", "96", "--steps", "100", "--profile")),
    ),
    "final": (
        ("matmul", 60, ("matmul",)),
        ("llama2-7b-bf16", 120, (*SEVEN, *SEVEN_RATE, *FULL, "--precision", "bf16")),
        ("llama2-7b-fp8", 110, (*SEVEN, *SEVEN_RATE, *FULL, "--precision", "fp8")),
        ("resnet50-b32", 80, ("resnet", "--batch", "32", "--steps", "500", "--profile")),
        ("resnet50-b96", 80, ("resnet", "--batch", "96", "--steps", "500", "--profile")),
        ("resnet101-b32", 80, ("resnet", "--model", "resnet101", "--batch", "32", "--steps", "500", "--profile")),
        ("curves", 110, ("micro", "curves")),
        ("llama2-7b-bf16-a1", 60, (*SEVEN, *SEVEN_RATE, "--precision", "bf16", "--warmup", "2", "--steps", "10")),
    ),
    "second": (
        ("bf16-a16", 110, (*SEVEN, *SEVEN_RATE, *QUICK, "--precision", "bf16")),
        ("fp8-a16", 100, (*SEVEN, *SEVEN_RATE, *QUICK, "--precision", "fp8")),
        ("rn50-b32", 70, ("resnet", "--batch", "32", "--steps", "100", "--profile")),
        ("rn50-b96", 70, ("resnet", "--batch", "96", "--steps", "100", "--profile")),
        ("rn101-b32", 70, ("resnet", "--model", "resnet101", "--batch", "32", "--steps", "100")),
        ("rn50-b96-torchnorm", 90, ("resnet", "--batch", "96", "--steps", "100", "--norm", "torch")),
        (
            "rn50-b32-conv",
            70,
            ("resnet", "--batch", "32", "--steps", "100", "--no-pointwise-as-matmul", "--no-stem-patches"),
        ),
    ),
}


def run_case(case: Case, out: Path, deadline: float, commit: str | None) -> dict[str, object]:
    name, limit, arguments = case
    record = out / f"{name}.json"
    if arguments[0] == "micro":
        argv = [sys.executable, str(Path(__file__).resolve()), "--micro", arguments[1], "--out", str(out)]
    elif arguments[0] == "matmul":
        argv = [
            sys.executable,
            "-m",
            "windlass",
            "bench",
            "matmul",
            "--run-dir",
            str(out / "matmul-run"),
            "--out",
            str(record),
        ]
    else:
        argv = [sys.executable, str(ROOT / "bench" / "train_step.py"), *arguments, "--json", str(record)]
    left = min(limit, deadline - time.monotonic())
    if left < 20:
        return {"case": name, "state": "skipped: no time left"}
    env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    started = time.monotonic()
    try:
        done = subprocess.run(
            argv, env=env, timeout=left, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        state, text = ("ok" if done.returncode == 0 else f"exit {done.returncode}"), done.stdout
    except subprocess.TimeoutExpired as error:
        state, text = "timeout", (error.stdout or b"").decode(errors="replace")
    if commit and record.exists():
        made = json.loads(record.read_text())
        if isinstance(made, dict):
            made["commit"] = commit
            record.write_text(json.dumps(made, indent=1) + "\n")
    print(f"--- {name}: {state} in {time.monotonic() - started:.0f} s\n{text[-2500:]}", flush=True)
    return {"case": name, "state": state, "wall_s": time.monotonic() - started}


def table(results: list[dict[str, object]], out: Path) -> None:
    print("=" * 100)
    for result in results:
        path = out / f"{result['case']}.json"
        line = f"{result['case']:<22} {result['state']}"
        if path.exists():
            record = json.loads(path.read_text())
            if isinstance(record, dict) and record.get("case") in {"llm", "resnet"}:
                (row,) = record["rows"]
                figures, steps, losses = row["figures"], row["samples"]["step_s"], row["samples"]["loss"]
                main = figures.get("tflops_6n") or figures["images_per_s_per_device"]
                line += f"  {main['value']:>9.1f} {main['unit']}  step {statistics.median(steps) * 1e3:.2f} ms"
                line += f"  loss {losses[0]:.3f}->{losses[-1]:.3f}"
                line += f"  {figures.get('peak_memory', {'value': 0})['value']:.0f} GiB"
        print(line, flush=True)


def micro(size: str, out: Path) -> None:
    """Rates of the parts: products by shape and type, casts, attention."""
    sys.path.insert(0, str(ROOT / "src"))
    import torch

    from fast_llama.pieces import make_pieces
    from windlass.bench.matmul.product import measure_matmul
    from windlass.bench.train.device import StepClock, find_device
    from windlass.bench.train.llama import ATTENTION

    device = find_device(None)
    toy = size == "toy"
    lines: list[dict[str, object]] = []

    def note(**values: object) -> None:
        lines.append(values)
        print(" ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in values.items()), flush=True)
        (out / "micro.json").write_text(json.dumps(lines, indent=1))

    def timed(function: object, repeats: int = 20) -> float:
        for _ in range(3):
            function()  # type: ignore[operator]
        clock = StepClock(device)
        clock.mark()
        for _ in range(repeats):
            function()  # type: ignore[operator]
            clock.mark()
        return sorted(clock.intervals_s())[repeats // 2]

    edge = 256 if toy else 8192
    for kind in ("bf16", "fp8", "fp8_fast"):
        r = measure_matmul(kind, (edge, edge, edge), seconds=0.1 if toy else 3.0)  # type: ignore[arg-type]
        note(what="matmul", type=kind, edge=edge, burst=r.burst.value, sustained=r.sustained.value)

    t, h, f = (64, 64, 128) if toy else (4096, 4096, 11008)
    where, low = device.torch, torch.bfloat16
    fp8 = device.fp8 or (low, low)
    for name, n, k in (("qkv", 3 * h, h), ("out", h, h), ("gate_up", 2 * f, h), ("down", h, f)):
        x, w, dy = (torch.randn(s, device=where, dtype=low) for s in ((t, k), (n, k), (t, n)))
        total = torch.zeros(n, k, device=where)
        operations = 2 * t * n * k / 1e12
        rates = {
            "fwd": lambda x=x, w=w: x @ w.t(),
            "dgrad": lambda dy=dy, w=w: dy @ w,
            "wgrad": lambda dy=dy, x=x: dy.t() @ x,
        }
        if device.kind == "cuda":
            rates["wgrad32"] = lambda dy=dy, x=x: torch.mm(dy.t(), x, out_dtype=torch.float32)
            rates["wgrad32_add"] = lambda dy=dy, x=x, total=total: torch.addmm(
                total, dy.t(), x, out_dtype=torch.float32, out=total
            )
            total.zero_()
            rates["wgrad32_add"]()
            rates["wgrad32_add"]()
            reference = dy.t().float() @ x.float()
            note(what="wgrad32_add error", shape=name, error=float((total / 2 - reference).norm() / reference.norm()))
        note(what="bf16 TFLOP/s", shape=name, **{key: operations / timed(fn) for key, fn in rates.items()})
        x8, w8, dy8 = x.to(fp8[0]), w.to(fp8[0]), dy.to(fp8[1])
        xt, wt, dyt = (v.t().contiguous() for v in (x8, w8, dy8))
        one = torch.ones((), device=where)

        def scaled(a: torch.Tensor, b: torch.Tensor, fast: bool, one: torch.Tensor = one) -> object:
            return lambda: torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=low, use_fast_accum=fast)

        note(
            what="fp8 TFLOP/s",
            shape=name,
            **{
                f"{key}{'_fast' if fast else ''}": operations / timed(scaled(a, b, fast))
                for key, a, b in (("fwd", x8, w8), ("dgrad", dy8, wt), ("wgrad", dyt, xt))
                for fast in (True, False)
            },
        )
        note(what="fp8 add grad us", shape=name, add=timed(lambda total=total, w=w: total.add_(w)) * 1e6)

    pieces = make_pieces(compile=not toy)
    for rows, columns in ((t, h), (t, f), (t, 2 * f)):
        x = torch.randn(rows, columns, device=where, dtype=low)
        us = timed(lambda x=x: pieces.to_fp8(x, fp8[0])) * 1e6
        small, turned, scale = pieces.to_fp8(x, fp8[0])
        error = float((small.float() * scale - x.float()).norm() / x.float().norm())
        same = bool((small.t().float() == turned.float()).all())
        note(
            what="to_fp8", rows=rows, columns=columns, us=us, tb_s=rows * columns * 6 / us / 1e6, error=error, same=same
        )

    heads, width = (2, 32) if toy else (32, 128)
    for backend in ATTENTION[device.vendor][:2]:
        q, k, v = (
            torch.randn(1, t, heads, width, device=where, dtype=low).transpose(1, 2).requires_grad_() for _ in range(3)
        )
        with torch.nn.attention.sdpa_kernel(backend):
            o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            do = torch.randn_like(o)
            qkv = (q, k, v)
            forward = timed(lambda qkv=qkv: torch.nn.functional.scaled_dot_product_attention(*qkv, is_causal=True))
            backward = timed(lambda qkv=qkv, o=o, do=do: torch.autograd.grad(o, qkv, do, retain_graph=True))
        work = 4 * t * t * heads * width / 2 / 1e12
        note(what="attention TFLOP/s", backend=str(backend), fwd=work / forward, bwd=2.5 * work / backward)


CURVE = {"model": "llama-160m", "sequence": 512, "micro_batch": 8, "steps": 200, "warmup": 0, "learning_rate": 1e-4}


def curves(out: Path) -> None:
    """The same model, data and seed in fp32, bf16 and fp8: how far apart are the losses?"""
    sys.path.insert(0, str(ROOT / "src"))
    from fast_llama.loop import FastLlmOptions
    from train_step import record_of, trained_by
    from windlass.bench.rank import about_torch
    from windlass.bench.record import write_record
    from windlass.bench.train.device import find_device

    losses = {}
    for precision in ("fp32", "bf16", "fp8"):
        trained = trained_by(FastLlmOptions(**CURVE, precision=precision))  # type: ignore[arg-type]
        command = ("python3", "bench/h200.py", "--micro", "curves")
        write_record(out / f"curve-{precision}.json", record_of(trained, about_torch(find_device(None), None), command))
        losses[precision] = trained["losses"]
    for other in ("bf16", "fp8"):
        far = [abs(a - b) / a for a, b in zip(losses["fp32"], losses[other], strict=True)]
        print(
            f"{other} against fp32: largest relative distance {max(far):.4%}, mean {sum(far) / len(far):.4%}, "
            f"last {losses['fp32'][-1]:.4f} and {losses[other][-1]:.4f}",
            flush=True,
        )


# Rows, channels, warps, programs per multiprocessor.
BATCHES = (96, 32)
POOL_EDGE = 112
TILE_SETTINGS = (
    (64, 64, 4, 4),
    (64, 64, 4, 8),
    (32, 64, 4, 8),
    (128, 64, 8, 4),
    (32, 128, 4, 8),
    (64, 128, 8, 4),
    (32, 64, 4, 16),
    (16, 128, 4, 16),
)
# Channels, edge, shortcut, how often: the norms of a ResNet-50.
NORMS = (
    (64, 56, False, 6), (128, 56, False, 1), (128, 28, False, 7), (256, 28, False, 1), (256, 14, False, 11),
    (512, 14, False, 1), (512, 7, False, 5), (256, 56, True, 3), (512, 28, True, 4),
    (1024, 14, True, 6), (2048, 7, True, 3),
)  # fmt: skip


def norm_sweep(only: int | None, out: Path) -> None:
    """Time the norm kernels per shape for each tile setting. With `only`, compile that setting and leave."""
    sys.path.insert(0, str(ROOT / "src"))
    import torch

    from fast_resnet import norm
    from step_profile import kind_of, profiled
    from windlass.bench.train.device import find_device

    device = find_device(None)
    rows: list[dict[str, object]] = []
    for number, (r, c, warps, programs) in enumerate(TILE_SETTINGS):
        if only is not None and only != number:
            continue
        for key in ("sums", "apply", "back_sums", "back_sums_joined", "back_input"):
            norm.TILES[key] = ((0, norm.Tile(rows=r, channels=c, warps=warps, programs=programs)),)
        small = norm.Tile(rows=max(16, r // 2), channels=64, warps=warps, programs=programs)
        norm.TILES["pool"] = norm.TILES["pool_back"] = ((0, small),)
        for batch in BATCHES:
            totals: dict[str, float] = {}
            for channels, edge, shortcut, count in (*NORMS, (64, POOL_EDGE, None, 1)):
                table = norm.NormTable()
                one = table.add(channels)
                table.build()
                table.to(device.torch)
                sets = [
                    [
                        torch.randn(batch, edge, edge, channels, device=device.torch, dtype=torch.bfloat16).permute(
                            0, 3, 1, 2
                        )
                        for _ in range(4)
                    ]
                    for _ in range(3)
                ]

                def work(
                    turns: int,
                    table: object = table,
                    one: object = one,
                    sets: object = sets,
                    shortcut: object = shortcut,
                ) -> None:
                    for turn in range(turns):
                        x, s, d1, d2 = sets[turn % 3]  # type: ignore[index]
                        x = x.detach().requires_grad_()
                        if shortcut is None:
                            y, _ = one.pooled(x)  # type: ignore[attr-defined]
                            torch.autograd.backward(
                                [y], [d1[:, :, ::2, ::2].contiguous(memory_format=torch.channels_last)]
                            )
                        elif shortcut:
                            y, y2 = one(x, s.detach().requires_grad_())  # type: ignore[operator]
                            torch.autograd.backward([y, y2], [d1, d2])
                        else:
                            y, _ = one(x)  # type: ignore[operator]
                            torch.autograd.backward([y], [d1])

                work(1 if only is not None else 3)
                if only is not None:
                    continue
                found = profiled(lambda: work(9), device)
                assert found is not None
                for name, calls, ms in found.kernels:
                    if kind_of(name) == "by hand":
                        us = ms * 1e3 / calls
                        key = f"{name}{'_pool' if shortcut is None else '_short' if shortcut else ''}"
                        totals[key] = totals.get(key, 0.0) + us * count
                        rows.append(
                            {
                                "setting": number,
                                "batch": batch,
                                "channels": channels,
                                "edge": edge,
                                "kernel": key,
                                "us": us,
                            }
                        )
            if only is None:
                print(
                    f"{number} {TILE_SETTINGS[number]} b{batch} "
                    + " ".join(f"{k}={v:.0f}" for k, v in sorted(totals.items()))
                    + f" all={sum(totals.values()):.0f}",
                    flush=True,
                )
                (out / "norm-sweep.json").write_text(json.dumps(rows))


def main() -> int:
    asked = argparse.ArgumentParser()
    asked.add_argument("--stage", choices=sorted(STAGES))
    asked.add_argument("--only", help="names of cases, comma separated")
    asked.add_argument("--micro")
    asked.add_argument("--commit", help="what to write into the records where the copy of the tree has no history")
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--budget-s", type=float, default=560)
    arguments = asked.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.micro and arguments.micro.startswith("norm"):
        norm_sweep(int(arguments.micro[4:]) if arguments.micro[4:] else None, arguments.out)
        return 0
    if arguments.micro == "curves":
        curves(arguments.out)
        return 0
    if arguments.micro:
        micro(arguments.micro, arguments.out)
        return 0
    deadline = time.monotonic() + arguments.budget_s
    only = set((arguments.only or "").split(",")) - {""}
    cases = [c for c in STAGES[arguments.stage] if not only or c[0] in only]
    results = [run_case(case, arguments.out, deadline, arguments.commit) for case in cases]
    table(results, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
