"""A Keras model in a loop of its own, with MultiWorkerMirrored. Every replica holds all variables, so rank 0 saves them."""

import sys
import time

import keras
import numpy as np
import tensorflow as tf

import muster_training as muster

STEPS, SAVE_EVERY, BATCH = 60, 10, 64
PAUSE = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0  # seconds after each step, to have time to watch it


def main() -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # it finds the world in TF_CONFIG
    rank, world = muster.environment().rank, muster.environment().world
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(0.01)
        model.compile(optimizer)  # so that the weights of the optimizer are saved with those of the model
        optimizer.build(model.trainable_variables)

    @tf.function
    def train(x: tf.Tensor) -> tf.Tensor:
        def step(x: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - tf.reduce_sum(x, axis=1, keepdims=True)) ** 2) / world
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.reduce("SUM", strategy.run(step, args=(x,)), axis=None)

    done = 0
    if newest := muster.latest():
        with strategy.scope():
            model.load_weights(newest / "keras.weights.h5")
        done = newest.step

    while done < STEPS:
        # The samples depend on the step alone, so a resumed run sees the same ones.
        x = np.random.default_rng(done).normal(size=(BATCH, 16)).astype(np.float32)[rank::world]
        loss = float(train(tf.constant(x)))
        done += 1
        time.sleep(PAUSE)
        muster.report(step=done, total=STEPS, loss=loss, samples=BATCH)
        stop = muster.should_stop()
        if stop or muster.should_save() or done % SAVE_EVERY == 0 or done == STEPS:
            with muster.checkpoint(done) as folder:
                if rank == 0:
                    model.save_weights(folder / "keras.weights.h5")
        if stop:
            break


if __name__ == "__main__":
    main()
