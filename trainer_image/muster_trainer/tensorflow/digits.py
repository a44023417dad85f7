"""The bundled task `digits` in TensorFlow (Keras 3), by the contract of `muster_trainer.tasks.module`."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from muster_trainer.tasks.config import Config
from muster_trainer.tasks.digits import SIDE, Convolution, Dense, dataset, layers

__all__ = ["build_model", "dataset", "loss", "metrics"]


def build_model(config: Config) -> keras.Model:
    model = keras.Sequential([keras.Input((SIDE * SIDE,))])
    flat = config.model == "mlp"
    if not flat:
        model.add(keras.layers.Reshape((SIDE, SIDE, 1)))
    for layer in layers(config):
        if isinstance(layer, Dense):
            if not flat:
                model.add(keras.layers.Flatten())
                flat = True
            model.add(keras.layers.Dense(layer.units, activation="relu" if layer.relu else None))
        elif isinstance(layer, Convolution):
            model.add(keras.layers.Conv2D(layer.filters, 3, padding="same", activation="relu"))
        else:
            model.add(keras.layers.MaxPooling2D(2))
    return model


def loss(outputs: tf.Tensor, batch: Any) -> tf.Tensor:
    losses: tf.Tensor = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch[1], logits=outputs)
    return losses


def metrics(outputs: tf.Tensor, batch: Any) -> dict[str, tf.Tensor]:
    return {"accuracy": tf.cast(tf.equal(tf.argmax(outputs, axis=1), batch[1]), tf.float32)}
