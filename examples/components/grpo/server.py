"""The inference server: it samples tokens from the policy and takes new weights from the trainer."""

import sys

import torch
from web import serve

logits = torch.zeros(8, 16)  # for each position of a text, a score of each token


def sample(count: int) -> list[list[int]]:
    return torch.multinomial(logits.softmax(-1), count, replacement=True).T.tolist()


def load(weights: list[list[float]]) -> bool:
    logits.copy_(torch.tensor(weights))
    return True


serve(int(sys.argv[1]), {"/sample": sample, "/weights": load})
