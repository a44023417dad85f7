"""A TensorFlow program that knows nothing of Muster: tf.distribute's parameter servers, found by TF_CONFIG."""

import json
import os

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

STEPS = 60


def main() -> None:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        server = tf.distribute.Server(resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc")
        print(f"{resolver.task_type} {resolver.task_id} serves", flush=True)
        server.join()
        return
    workers = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype("float32"), labels.astype("int32")

    with strategy.scope():
        weights = tf.Variable(np.zeros((64, 10), "float32"))

    def batches() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(1797).repeat().batch(64)

    @tf.function
    def step(iterator):
        def replica(x, y):
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=x @ weights)
                loss = tf.reduce_mean(losses)
            weights.assign_sub(0.5 * tape.gradient(loss, weights))
            return loss

        return strategy.run(replica, args=next(iterator))

    data = iter(coordinator.create_per_worker_dataset(batches))
    for _ in range(STEPS):
        coordinator.schedule(step, args=(data,))
    coordinator.join()
    accuracy = float(np.mean(np.argmax(images @ weights.numpy(), axis=1) == labels))
    print(f"accuracy {accuracy:.3f} after {STEPS} steps on {workers} workers", flush=True)


if __name__ == "__main__":
    main()
