"""The bundled task `gpt` in TensorFlow (Keras 3): a decoder-only transformer (Radford et al., 2019)."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from muster_trainer.tasks.config import Config
from muster_trainer.tasks.gpt import CHARACTERS, check, dataset

__all__ = ["build_model", "dataset", "loss", "metrics"]


@keras.saving.register_keras_serializable("muster")
class Places(keras.layers.Layer):  # type: ignore[misc]  # Keras has no types; checkpoints and exports have the name
    """Adds a vector for the position to each of `context` vectors."""

    def build(self, shape: Any) -> None:
        self.places = self.add_weight(shape=shape[1:], initializer="random_normal", name="places")

    def call(self, vectors: tf.Tensor) -> Any:
        return vectors + self.places


def build_model(config: Config) -> keras.Model:
    """The model, from characters (n, context) to logits of the next character after each (n, context, 128)."""
    check(config)
    layers = keras.layers
    characters = keras.Input((config.context,), dtype="int64")
    vectors = Places()(layers.Embedding(CHARACTERS, config.width)(characters))
    for _ in range(config.layers):
        attended = layers.LayerNormalization(epsilon=1e-5)(vectors)
        attended = layers.MultiHeadAttention(config.heads, config.width // config.heads)(attended, attended, use_causal_mask=True)
        vectors = layers.Add()([vectors, layers.Dropout(config.dropout)(attended)])
        dense = layers.Dense(4 * config.width, activation="gelu")(layers.LayerNormalization(epsilon=1e-5)(vectors))
        vectors = layers.Add()([vectors, layers.Dropout(config.dropout)(layers.Dense(config.width)(dense))])
    return keras.Model(characters, layers.Dense(CHARACTERS)(layers.LayerNormalization(epsilon=1e-5)(vectors)))


def loss(outputs: tf.Tensor, batch: Any) -> tf.Tensor:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch[1], logits=outputs), axis=1)


def metrics(outputs: tf.Tensor, batch: Any) -> dict[str, tf.Tensor]:
    return {"accuracy": tf.reduce_mean(tf.cast(tf.equal(tf.argmax(outputs, axis=2), batch[1]), tf.float32), axis=1)}
