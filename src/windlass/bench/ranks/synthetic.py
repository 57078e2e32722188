"""One rank of `bench synthetic`: images/s of a ResNet on one fixed batch, in rounds, as Horovod's benchmark does it.

The method is that of the published tables: the same batch again and again, ten rounds of ten batches, a rate per round.
Gradients are averaged by DDP (fp16 in transit where asked), by Horovod or by TensorFlow where those are installed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from windlass.bench.lines import Teller
from windlass.bench.ranks.program import Place, about_torch, guarded, my_place
from windlass.errors import MachineError

Step = Callable[[], Any]


def main(argv: Sequence[str]) -> int:
    return guarded(_work, argv)


def _work(argv: Sequence[str], teller: Teller) -> None:
    args = _parser().parse_args(argv)
    place = my_place()
    makers = {"ddp": _ddp, "horovod": _horovod, "tensorflow": _tensorflow}
    step, wait, about, close = makers[args.engine](args, place)
    try:
        if place.first:
            teller.tell("about", **about)
        for _ in range(args.warmup):
            step()
        wait()
        loss: Any = None
        for number in range(args.rounds):
            if place.first:
                teller.tell("progress", text=f"round {number + 1}", done=number, total=args.rounds)
            start = time.perf_counter()
            for _ in range(args.batches):
                loss = step()
            wait()
            teller.tell("round", rank=place.rank, seconds=time.perf_counter() - start)
            if place.first:
                teller.tell("loss", value=float(loss))
        if place.first:
            teller.tell("end")
    finally:
        close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="synthetic")
    parser.add_argument("--engine", choices=("ddp", "horovod", "tensorflow"), default="ddp")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--fp16-allreduce", action="store_true")
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--device")
    return parser


def _torch_parts(args: argparse.Namespace, device: Any) -> tuple[Any, Any, Any]:
    import torch

    from windlass.bench.train.device import allow_tf32
    from windlass.bench.train.options import resnet_blocks
    from windlass.bench.train.resnet import ResNet

    torch.manual_seed(1234)
    allow_tf32(device.kind == "cuda")
    torch.backends.cudnn.benchmark = True
    model = ResNet(resnet_blocks(args.model), 1000).to(device.torch).to(memory_format=torch.channels_last)
    images = torch.randn(args.batch, 3, args.image, args.image, device=device.torch)
    labels = torch.randint(1000, (args.batch,), device=device.torch)
    return model, images.contiguous(memory_format=torch.channels_last), labels


def _torch_step(args: argparse.Namespace, device: Any, model: Any, optimizer: Any, images: Any, labels: Any) -> Step:
    import torch

    low = torch.autocast(device.kind, torch.bfloat16) if args.amp else nullcontext()

    def step() -> Any:
        optimizer.zero_grad()
        with low:
            loss = model(images, labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _ddp(args: argparse.Namespace, place: Place) -> tuple[Step, Step, dict[str, Any], Step]:
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    from torch.nn.parallel import DistributedDataParallel

    from windlass.bench.train.device import find_device, synchronize

    device = find_device(args.device, place.local_rank)
    extra = {} if device.kind == "cpu" else {"device_id": device.torch}
    dist.init_process_group(device.collective, timeout=timedelta(seconds=300), **extra)
    plain, images, labels = _torch_parts(args, device)
    model = DistributedDataParallel(plain, device_ids=None if device.kind == "cpu" else [device.index])
    if args.fp16_allreduce:
        model.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = _torch_step(args, device, model, optimizer, images, labels)
    return step, lambda: synchronize(device), about_torch(device, device.collective), dist.destroy_process_group


def _horovod(args: argparse.Namespace, place: Place) -> tuple[Step, Step, dict[str, Any], Step]:
    if find_spec("horovod") is None:
        raise MachineError("Horovod is not installed for this interpreter", hint="use --engine ddp, or its container")
    import torch

    from windlass.bench.train.device import find_device, synchronize

    hvd: Any = import_module("horovod.torch")
    hvd.init()
    device = find_device(args.device, place.local_rank)
    model, images, labels = _torch_parts(args, device)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size()),
        named_parameters=model.named_parameters(),
        compression=compression,
    )
    step = _torch_step(args, device, model, optimizer, images, labels)
    return step, lambda: synchronize(device), about_torch(device, "horovod"), hvd.shutdown


def _tensorflow(args: argparse.Namespace, place: Place) -> tuple[Step, Step, dict[str, Any], Step]:
    """Keras' own ResNet50 under Horovod for TensorFlow; alone with one rank."""
    if find_spec("tensorflow") is None:
        raise MachineError("TensorFlow is not installed for this interpreter", hint="use --engine ddp")
    if place.size > 1 and find_spec("horovod") is None:
        raise MachineError("TensorFlow over several ranks needs Horovod, which is not installed", hint="use one rank")
    tf: Any = import_module("tensorflow")

    from windlass.bench.ranks.program import allowed_environment

    devices = tf.config.list_physical_devices("GPU")
    if devices:
        mine = devices[place.local_rank % len(devices)]
        tf.config.experimental.set_memory_growth(mine, True)
        tf.config.set_visible_devices(mine, "GPU")
    hvd: Any = None
    if place.size > 1:
        hvd = import_module("horovod.tensorflow")
        hvd.init()
    keras = {"resnet50": "ResNet50", "resnet101": "ResNet101"}.get(args.model)
    if keras is None:
        raise MachineError(f"Keras has no {args.model}", hint="use resnet50 or resnet101")
    model = getattr(tf.keras.applications, keras)(weights=None)
    optimizer = tf.optimizers.SGD(0.01)
    images = tf.random.uniform([args.batch, args.image, args.image, 3])
    labels = tf.random.uniform([args.batch, 1], minval=0, maxval=999, dtype=tf.int64)

    def train() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.losses.SparseCategoricalCrossentropy()(labels, model(images, training=True))
        if hvd is not None:
            how = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
            tape = hvd.DistributedGradientTape(tape, compression=how)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    about = {
        "device": {"kind": "cuda" if devices else "cpu", "name": devices[0].name if devices else "CPU"},
        "software": {"tensorflow": tf.__version__},
        "environment": allowed_environment(),
        "backend": "horovod" if hvd else None,
    }
    return tf.function(train), lambda: None, about, (hvd.shutdown if hvd else lambda: None)
