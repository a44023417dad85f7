"""The bundled task `recommender` in TensorFlow (Keras 3): matrix factorisation with biases (Koren et al., 2009)."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from muster_trainer.tasks.config import Config
from muster_trainer.tasks.recommender import FIRST_SCALE, dataset

__all__ = ["build_model", "dataset", "loss", "metrics"]


def build_model(config: Config) -> keras.Model:
    """The model, from (user, item) pairs (n, 2) to the logits that the user likes the item (n,)."""
    pairs = keras.Input((2,), dtype="int64")
    vectors, biases = [], []
    for side, rows in enumerate((config.users, config["items"])):
        rows_of_side = pairs[:, side]
        vectors.append(_table(rows, config.embedding, scale=FIRST_SCALE)(rows_of_side))
        biases.append(_table(rows, 1, scale=0.0)(rows_of_side))
    match = keras.layers.Dot(axes=1)(vectors)
    return keras.Model(pairs, keras.layers.Add()([match, *biases])[:, 0])


def _table(rows: int, width: int, *, scale: float) -> keras.layers.Layer:
    first: Any = keras.initializers.RandomNormal(stddev=scale) if scale else "zeros"
    return keras.layers.Embedding(rows, width, embeddings_initializer=first)


def loss(outputs: tf.Tensor, batch: Any) -> tf.Tensor:
    return tf.nn.sigmoid_cross_entropy_with_logits(labels=batch[1], logits=outputs)


def metrics(outputs: tf.Tensor, batch: Any) -> dict[str, tf.Tensor]:
    return {"accuracy": tf.cast(tf.equal(outputs > 0, batch[1] > 0.5), tf.float32)}
