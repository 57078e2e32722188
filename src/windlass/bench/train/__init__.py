"""The training step: a Llama-style model and a ResNet of our own, one loop, plain PyTorch.

Run it with `python -m windlass.bench.train llm --model tiny` or `... resnet --model resnet50`; under a launcher it
reads the usual RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. `options` holds what can be asked and
imports no torch; all other modules of this package import torch at their top and are loaded only when a step is about
to run.
"""
