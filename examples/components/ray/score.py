"""Ray tasks on all nodes make texts and ask the reward worker for their value."""

import json
import random
import sys
import urllib.request

import ray


@ray.remote(num_cpus=0.5)
def score(url: str, seed: int) -> tuple[int, str]:
    """Return how many of the rewards of 20 texts are above 0, and the node."""
    rnd = random.Random(seed)
    texts = [[rnd.randrange(8) for _ in range(10)] for _ in range(20)]
    with urllib.request.urlopen(f"{url}/reward", json.dumps(texts).encode(), timeout=30) as answer:
        rewards = json.load(answer)
    return sum(reward > 0 for reward in rewards), ray.get_runtime_context().get_node_id()


ray.init()
rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 1
for _ in range(rounds):
    scored = ray.get([score.remote(sys.argv[1], seed) for seed in range(100)])
    good, used = sum(value for value, _ in scored), len({node for _, node in scored})
    print(f"{good} of {20 * len(scored)} texts have a reward, scored on {used} of {len(ray.nodes())} nodes", flush=True)
