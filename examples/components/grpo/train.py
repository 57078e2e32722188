"""The trainer: a loop in the shape of GRPO. Advantages are the rewards of a group, centred and scaled."""

import argparse

import torch
from web import ask

parser = argparse.ArgumentParser()
parser.add_argument("--server", required=True)
parser.add_argument("--reward", required=True)
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--group", type=int, default=64)
args = parser.parse_args()

torch.manual_seed(0)
policy = torch.nn.Parameter(torch.zeros(8, 16))
optimizer = torch.optim.Adam([policy], lr=0.2)
for step in range(args.steps):
    texts = ask(f"{args.server}/sample", args.group)
    rewards = torch.tensor(ask(f"{args.reward}/reward", texts))
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
    tokens = torch.tensor(texts)
    chosen = policy.log_softmax(-1).expand(args.group, -1, -1).gather(-1, tokens[:, :, None]).squeeze(-1)
    loss = -(advantages[:, None] * chosen).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ask(f"{args.server}/weights", policy.tolist())
    if step % 10 == 0 or step == args.steps - 1:
        print(f"step {step} reward {rewards.mean():.2f}", flush=True)
