"""One rank of `bench synthetic`: images/s of a ResNet on one fixed batch, in rounds, as Horovod's benchmark does it.

The method is that of the published tables: the same batch again and again, ten rounds of ten batches, a rate per round.
Gradients are averaged by DDP (fp16 in transit where asked), by Horovod or by TensorFlow where those are installed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from windlass.bench.messages import MessageWriter
from windlass.bench.options import from_values
from windlass.bench.rank import World, about_torch, allowed_environment, guarded, read_world
from windlass.bench.synthetic.options import SyntheticOptions
from windlass.errors import MachineError

Step = Callable[[], Any]


def main(values: dict[str, Any]) -> int:
    return guarded(lambda out: _work(from_values(SyntheticOptions, values), out))


def _work(options: SyntheticOptions, out: MessageWriter) -> None:
    world = read_world()
    makers = {"ddp": _ddp, "horovod": _horovod, "tensorflow": _tensorflow}
    step, wait, about, close = makers[options.engine](options, world)
    try:
        if world.first:
            out.send("about", **about)
        for _ in range(options.warmup):
            step()
        wait()
        loss: Any = None
        for number in range(options.rounds):
            if world.first:
                out.send("progress", text=f"round {number + 1}", done=number, total=options.rounds)
            start = time.perf_counter()
            for _ in range(options.batches):
                loss = step()
            wait()
            out.send("round", rank=world.rank, seconds=time.perf_counter() - start)
            if world.first:
                out.send("loss", value=float(loss))
        if world.first:
            out.send("end")
    finally:
        close()


def _torch_parts(options: SyntheticOptions, device: Any) -> tuple[Any, Any, Any]:
    import torch

    from windlass.bench.train.device import allow_tf32
    from windlass.bench.train.options import resnet_blocks
    from windlass.bench.train.resnet import ResNet

    torch.manual_seed(1234)
    allow_tf32(device.kind == "cuda")
    torch.backends.cudnn.benchmark = True
    model = ResNet(resnet_blocks(options.model), 1000).to(device.torch).to(memory_format=torch.channels_last)
    images = torch.randn(options.batch, 3, options.image, options.image, device=device.torch)
    labels = torch.randint(1000, (options.batch,), device=device.torch)
    return model, images.contiguous(memory_format=torch.channels_last), labels


def _torch_step(options: SyntheticOptions, device: Any, model: Any, optimizer: Any, images: Any, labels: Any) -> Step:
    import torch

    low = torch.autocast(device.kind, torch.bfloat16) if options.amp else nullcontext()

    def step() -> Any:
        optimizer.zero_grad()
        with low:
            loss = model(images, labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _ddp(options: SyntheticOptions, world: World) -> tuple[Step, Step, dict[str, Any], Step]:
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    from torch.nn.parallel import DistributedDataParallel

    from windlass.bench.train.device import find_device, synchronize

    device = find_device(options.device, world.local_rank)
    extra = {} if device.kind == "cpu" else {"device_id": device.torch}
    dist.init_process_group(device.collective, timeout=timedelta(seconds=300), **extra)
    plain, images, labels = _torch_parts(options, device)
    model = DistributedDataParallel(plain, device_ids=None if device.kind == "cpu" else [device.index])
    if options.fp16_allreduce:
        model.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = _torch_step(options, device, model, optimizer, images, labels)
    return step, lambda: synchronize(device), about_torch(device, device.collective), dist.destroy_process_group


def _horovod(options: SyntheticOptions, world: World) -> tuple[Step, Step, dict[str, Any], Step]:
    if find_spec("horovod") is None:
        raise MachineError("Horovod is not installed for this interpreter", hint="use --engine ddp, or its container")
    import torch

    from windlass.bench.train.device import find_device, synchronize

    hvd: Any = import_module("horovod.torch")
    hvd.init()
    device = find_device(options.device, world.local_rank)
    model, images, labels = _torch_parts(options, device)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    compression = hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size()),
        named_parameters=model.named_parameters(),
        compression=compression,
    )
    step = _torch_step(options, device, model, optimizer, images, labels)
    return step, lambda: synchronize(device), about_torch(device, "horovod"), hvd.shutdown


def _tensorflow(options: SyntheticOptions, world: World) -> tuple[Step, Step, dict[str, Any], Step]:
    """Keras' own ResNet50 under Horovod for TensorFlow; alone with one rank."""
    if find_spec("tensorflow") is None:
        raise MachineError("TensorFlow is not installed for this interpreter", hint="use --engine ddp")
    if world.size > 1 and find_spec("horovod") is None:
        raise MachineError("TensorFlow over several ranks needs Horovod, which is not installed", hint="use one rank")
    tf: Any = import_module("tensorflow")

    devices = tf.config.list_physical_devices("GPU")
    if devices:
        mine = devices[world.local_rank % len(devices)]
        tf.config.experimental.set_memory_growth(mine, True)
        tf.config.set_visible_devices(mine, "GPU")
    hvd: Any = None
    if world.size > 1:
        hvd = import_module("horovod.tensorflow")
        hvd.init()
    keras = {"resnet50": "ResNet50", "resnet101": "ResNet101"}.get(options.model)
    if keras is None:
        raise MachineError(f"Keras has no {options.model}", hint="use resnet50 or resnet101")
    model = getattr(tf.keras.applications, keras)(weights=None)
    optimizer = tf.optimizers.SGD(0.01)
    images = tf.random.uniform([options.batch, options.image, options.image, 3])
    labels = tf.random.uniform([options.batch, 1], minval=0, maxval=999, dtype=tf.int64)

    def train() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.losses.SparseCategoricalCrossentropy()(labels, model(images, training=True))
        if hvd is not None:
            how = hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none
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
