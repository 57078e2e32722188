"""Programs that run as ranks of a benchmark. They import torch where they use it, and tell results by `lines`."""
