"""What DDP costs, from one device to all nodes: percentiles of the time per iteration and of the examples per second.

The method is that of the published tables (fp32 with TF32 convolutions, eager). --fast takes the training loop's own
choices for this device instead: lower precision, compiled, graphs."""
