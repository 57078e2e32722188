"""Images/s per device on one fixed batch, mean ± 1.96 σ, as Horovod's synthetic benchmark tells it.

DDP by default, with gradients sent as fp16 where asked; Horovod or TensorFlow where they are installed."""
