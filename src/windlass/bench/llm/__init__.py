"""A training step of a Llama-style model: tokens/s, TFLOP/s and utilisation per device, each with its formula.

The ceiling that utilisation refers to is measured in the same run (see `windlass bench matmul`)."""
