"""1,000 small tasks on all nodes: `ray.init()` connects to the Ray that windlass started."""

from __future__ import annotations

import argparse
import time

import ray


@ray.remote(num_cpus=0.5)
def square(number: int) -> tuple[int, str]:
    return number * number, ray.get_runtime_context().get_node_id()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=0.0, help="go on for this long")
    args = parser.parse_args()
    ray.init()
    started = time.monotonic()
    while True:
        done = ray.get([square.remote(number) for number in range(args.tasks)])
        total, used = sum(value for value, _ in done), len({node for _, node in done})
        print(f"{len(done)} tasks, sum {total}, on {used} of {len(ray.nodes())} nodes", flush=True)
        if time.monotonic() - started >= args.seconds:
            break


if __name__ == "__main__":
    main()
