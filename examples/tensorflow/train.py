"""Data-parallel training in TensorFlow with MultiWorkerMirroredStrategy, one worker per rank."""

from __future__ import annotations

import argparse

import tensorflow as tf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    wanted = tf.constant([[2.0], [-3.0], [0.5], [1.0]])
    with strategy.scope():
        weights = tf.Variable(tf.zeros((4, 1)))

    @tf.function
    def step() -> tf.Tensor:
        def replica() -> tf.Tensor:
            inputs = tf.random.normal((64, 4))
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((inputs @ weights - inputs @ wanted) ** 2)
            context = tf.distribute.get_replica_context()
            grad = context.all_reduce("MEAN", tape.gradient(loss, weights))
            weights.assign_sub(0.1 * grad)
            return context.all_reduce("MEAN", loss)

        return strategy.reduce("MEAN", strategy.run(replica), axis=None)

    loss = 0.0
    for _ in range(args.steps):
        loss = float(step())
    task = strategy.cluster_resolver.task_id
    print(f"worker {task}: {strategy.num_replicas_in_sync} replicas, loss {loss:.6f}", flush=True)


if __name__ == "__main__":
    main()
