"""A TensorFlow program that knows nothing of Muster: MultiWorkerMirroredStrategy finds its peers in TF_CONFIG."""

import json
import os

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

EPOCHS = 5
GLOBAL_BATCH = 64


def main() -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else of TensorFlow
    chief = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0) == 0

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = (images[order] / 16).astype("float32"), labels[order]
    train, test = slice(0, 1437), slice(1437, None)
    samples = tf.data.Dataset.from_tensor_slices((images[train], labels[train])).shuffle(1437, seed=0)
    batches = samples.batch(GLOBAL_BATCH, drop_remainder=True)
    shared = strategy.experimental_distribute_dataset(batches)

    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
        optimizer = keras.optimizers.Adam(0.005)
        optimizer.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(y, model(x, training=True), from_logits=True)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=GLOBAL_BATCH)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
        return loss

    @tf.function
    def distributed_step(x, y):
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step, args=(x, y)), axis=None)

    for epoch in range(EPOCHS):
        for x, y in shared:
            loss = distributed_step(x, y)
        if chief:
            print(f"epoch {epoch}: loss {float(loss):.4f}", flush=True)

    if chief:
        accuracy = float(np.mean(np.argmax(model(images[test]).numpy(), axis=1) == labels[test]))
        print(f"test accuracy {accuracy:.4f} with {strategy.num_replicas_in_sync} replicas in sync", flush=True)


if __name__ == "__main__":
    main()
