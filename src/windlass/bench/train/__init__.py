"""The training steps of `bench llm` and `bench ddp`: a Llama-style model and a ResNet, in plain PyTorch.

`options` imports no torch. All other modules of this package import torch at their top and are loaded only when a step
is about to run.
"""
