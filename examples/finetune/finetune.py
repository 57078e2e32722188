"""Fine-tuning a small causal language model with the Hugging Face Trainer, the way LUMI's workshop fine-tunes GPT-neo.

Nothing is downloaded: text, tokens (one per byte) and model are made here. `--model PATH` takes a folder with a model
and its tokenizer instead. Nothing in here knows windlass: the Trainer finds RANK, WORLD_SIZE and MASTER_ADDR by itself.

    windlass run --ranks-per-node 2 finetune.py
    windlass run --ranks-per-node 2 finetune.py --deepspeed zero1.json --gradient-checkpointing
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Mapping
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # compute nodes reach no hub: a missing file should say so at once

import accelerate
import torch
import transformers  # its parts are loaded where they are used: a spawned loader process needs none of the Trainer

WORDS = ("the", "a", "film", "actor", "plot", "scene", "was", "seemed", "felt", "dull", "bright", "and", "but", "never")


def review(generator: random.Random) -> str:
    """A sentence in the manner of a film review. Few words and one grammar: a model learns it in seconds."""
    return " ".join(generator.choices(WORDS, k=12)) + ". "


class Reviews(torch.utils.data.Dataset[Mapping[str, torch.Tensor]]):
    """Blocks of tokens, each a few reviews long. Made when asked for, the same for the same index."""

    def __init__(self, count: int, length: int, folder: str | None) -> None:
        self.count, self.length = count, length
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder) if folder else None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Mapping[str, torch.Tensor]:
        generator = random.Random(index)
        text = "".join(review(generator) for _ in range(1 + self.length // 40))
        ids = self.tokenizer(text)["input_ids"] if self.tokenizer else list(text.encode())
        block = torch.tensor((ids * (1 + self.length // len(ids)))[: self.length])
        return {"input_ids": block, "labels": block.clone()}


def build_model(args: argparse.Namespace) -> transformers.PreTrainedModel:
    if args.model:
        return transformers.AutoModelForCausalLM.from_pretrained(args.model)
    config = transformers.GPTNeoConfig(
        vocab_size=256,
        hidden_size=args.width,
        num_layers=args.layers,
        num_heads=4,
        attention_types=[[["global", "local"], args.layers // 2]],
        max_position_embeddings=args.block_size,
        bos_token_id=None,
        eos_token_id=None,
    )
    return transformers.GPTNeoForCausalLM(config)


def tflops_lines(config: transformers.PretrainedConfig, parameters: int, tokens_per_s: float, s: int) -> list[str]:
    """Tokens per second of one device as TFLOP/s, by the formulas that people mean. Recomputing counts in none."""
    attention = config.num_hidden_layers * config.hidden_size * s
    work = {
        "samples/s * 6 * N * s, as HPE's guide": 6 * parameters,
        "(6*N + 12*L*h*s) * tokens/s, PaLM": 6 * parameters + 12 * attention,
        "(6*N + 6*L*h*s) * tokens/s, attention as it is computed": 6 * parameters + 6 * attention,
    }
    return [f"{each * tokens_per_s / 1e12:.6f} TFLOP/s per device [{name}]" for name, each in work.items()]


def deepspeed_on_cpus() -> dict[str, bool]:
    """To try DeepSpeed where there is no device: accelerate starts it over devices alone, and otherwise either passes
    it over (ACCELERATE_USE_CPU) or takes every rank for the only one. A machine with devices needs nothing of this."""
    os.environ.pop("ACCELERATE_USE_CPU", None)
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    accelerate.PartialState(backend="gloo")
    return {"use_configured_state": True}


def arguments(args: argparse.Namespace) -> transformers.TrainingArguments:
    devices = torch.accelerator.is_available()
    return transformers.TrainingArguments(
        output_dir=args.output_path,
        max_steps=args.steps,
        per_device_train_batch_size=args.batch_size,
        learning_rate=args.learning_rate,
        gradient_checkpointing=args.gradient_checkpointing,
        deepspeed=args.deepspeed,
        bf16=args.bf16,
        use_cpu=not devices and not args.deepspeed,
        accelerator_config=deepspeed_on_cpus() if args.deepspeed and not devices else None,
        dataloader_num_workers=args.num_workers,
        logging_steps=max(1, args.steps // 4),
        save_strategy="steps" if args.save_steps else "no",
        save_steps=args.save_steps or 500,
        report_to="none",
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
        seed=args.seed,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", metavar="PATH", help="a model folder (default: a small GPT-neo made here)")
    parser.add_argument("--output-path", default="train-output")
    parser.add_argument("--num-workers", type=int, default=0, help="loader processes per rank")
    parser.add_argument("--batch-size", type=int, default=4, help="blocks per rank and step")
    parser.add_argument("--block-size", type=int, default=64, help="tokens of a block")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save-steps", type=int, default=0, help="a checkpoint every so many steps; goes on from it")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--deepspeed", metavar="CONFIG", help="a DeepSpeed configuration, such as zero1.json")
    parser.add_argument("--gradient-checkpointing", action="store_true", help="compute activations twice, keep fewer")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    transformers.set_seed(args.seed)
    settings = arguments(args)  # starts torch.distributed
    model = build_model(args)
    parameters = model.num_parameters()  # before DeepSpeed has a chance to cut them up
    ranks = settings.world_size
    data = Reviews(args.steps * args.batch_size * ranks, args.block_size, args.model)
    trainer = transformers.Trainer(
        model=model, args=settings, train_dataset=data, data_collator=transformers.default_data_collator
    )
    result = trainer.train(resume_from_checkpoint=bool(list(Path(args.output_path).glob("checkpoint-*"))))
    if trainer.is_world_process_zero():
        trainer.log_metrics("train", result.metrics)
        tokens_per_s = result.metrics["train_samples_per_second"] * args.block_size / ranks
        engine = trainer.accelerator.distributed_type.value.lower()
        print(f"{ranks} ranks by {engine}: {tokens_per_s:,.0f} tokens/s each, {parameters:,} parameters")
        print(*tflops_lines(model.config, parameters, tokens_per_s, args.block_size), sep="\n", flush=True)


if __name__ == "__main__":
    # Loader processes forked out of a process with running threads (RCCL's, the profiler's) can hang; spawned ones
    # start clean: pytorch/pytorch#119845. They import this file anew, so keep heavy imports out of its first lines.
    torch.multiprocessing.set_start_method("spawn")
    main()
