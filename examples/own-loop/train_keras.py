"""A program with `fit` of Keras, in one process. A callback of muster_training reports, saves, and ends the training at a stop."""

import sys
import time
from collections.abc import Iterator

import keras
import numpy as np

import muster_training as muster

EPOCHS, STEPS_PER_EPOCH, SAVE_EVERY, BATCH = 4, 15, 10, 64
PAUSE = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0  # seconds after each step, to have time to watch it


def batches(step: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Samples from this step on. They depend on the step alone, so a resumed run sees the same ones."""
    while True:
        x = np.random.default_rng(step).normal(size=(BATCH, 16)).astype(np.float32)
        yield x, x.sum(axis=1, keepdims=True)
        step += 1


def main() -> None:
    keras.utils.set_random_seed(0)
    layers = [keras.Input((16,)), keras.layers.Dense(32, "relu"), keras.layers.Dropout(0.1), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
    newest = muster.latest()
    done = newest.step if newest else 0
    model.fit(
        batches(done),
        steps_per_epoch=STEPS_PER_EPOCH,
        initial_epoch=done // STEPS_PER_EPOCH,
        epochs=EPOCHS,
        callbacks=[
            muster.keras_callback(newest, every_steps=SAVE_EVERY),
            keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: time.sleep(PAUSE)),
        ],
        verbose=0,
    )


if __name__ == "__main__":
    main()
