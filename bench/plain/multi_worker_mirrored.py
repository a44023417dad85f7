"""MultiWorkerMirroredStrategy with a custom loop in an existing cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from muster_trainer.tasks.module import Task


def train(task: Task, batch: int, strategy: tf.distribute.Strategy) -> Iterator[float]:
    """Does a step of `batch` samples at each `next`, and yields its loss."""
    arrays = task.train.batch(range(len(task.train)))
    data = tf.data.Dataset.from_tensor_slices(arrays).shuffle(len(task.train), seed=task.config.seed).repeat()
    batches = iter(strategy.experimental_distribute_dataset(data.batch(batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)))
    with strategy.scope():
        model = task.build_model(task.config)
        optimizer = keras.optimizers.AdamW(task.config.learningRate, weight_decay=0.0)
        optimizer.build(model.trainable_variables)

    def on_replica(batched: Any) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(task.loss(model(batched[0], training=True), batched)) / batch
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def step(batched: Any) -> tf.Tensor:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(on_replica, args=(batched,)), axis=None)

    while True:
        yield float(step(next(batches)))
