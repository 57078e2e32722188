"""Data-parallel training in JAX: the processes join, share the batch, and sum their gradients with psum."""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    jax.distributed.initialize()
    local, count = jax.local_device_count(), jax.device_count()
    wanted = jnp.array([2.0, -3.0, 0.5, 1.0])

    def step(weights: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        inputs = jax.random.normal(key, (64, 4))
        loss, grad = jax.value_and_grad(lambda w: jnp.mean((inputs @ w - inputs @ wanted) ** 2))(weights)
        grad, loss = jax.lax.pmean((grad, loss), "ranks")
        return weights - 0.1 * grad, loss

    parallel = jax.pmap(step, axis_name="ranks")
    weights = jnp.zeros((local, 4))
    loss = jnp.zeros(local)
    for number in range(args.steps):
        # Each device draws its own part of the batch.
        first = number * count + jax.process_index() * local
        weights, loss = parallel(weights, jnp.stack([jax.random.key(first + index) for index in range(local)]))
    told = jax.pmap(lambda one: jax.lax.psum(one, "ranks"), axis_name="ranks")(jnp.ones(local))
    print(f"process {jax.process_index()} of {jax.process_count()}: {int(told[0])} devices, loss {float(loss[0]):.6f}")
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
