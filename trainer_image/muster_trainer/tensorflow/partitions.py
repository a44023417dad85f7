"""Cuts large variables into parts on several parameter servers. Keras 3 itself does not support this.

The partitioner of tf.distribute decides which variables become a ShardedVariable. Keras can only read and assign it as one tensor. This
module adds gradients and optimizer state for each part, lookups of rows, and checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from muster_trainer.tensorflow import compat

PART_BYTES = 4 << 20
"""The smallest part in bytes. For smaller parts, one more server costs more time than it saves."""


def partitioner(servers: int) -> Any:
    """A partitioner that cuts variables of at least 2 x PART_BYTES along the first axis, into at most one part for each server."""
    return tf.distribute.experimental.partitioners.MinSizePartitioner(min_shard_bytes=PART_BYTES, max_shards=servers)


def trainable_parts(model: keras.Model) -> list[keras.Variable]:
    """The trainable variables. A variable that is cut is replaced by its parts."""
    variables: list[keras.Variable] = []
    for variable in model.trainable_variables:
        parts = _parts(variable)
        variables += [keras.Variable(part, name=f"{variable.name}_part_{number}") for number, part in enumerate(parts)] or [variable]
    return variables


def adapt(model: keras.Model) -> None:
    """Makes embeddings fetch only the rows of a batch, because Keras fetches the whole table. Makes checkpoints save the parts of a
    variable as one variable, so that they do not depend on the number of servers."""
    for layer in compat.all_layers(model):
        if type(layer) is keras.layers.Embedding:
            layer.call = partial(_look_up, layer)
    for variable in model.variables:
        if _parts(variable):
            compat.save_by(variable, read=partial(_whole, variable), restore=partial(_restore, variable))


def _parts(variable: keras.Variable) -> Sequence[tf.Variable]:
    return getattr(variable.value, "variables", ())


def _look_up(layer: keras.layers.Embedding, inputs: Any) -> tf.Tensor:
    rows: tf.Tensor = tf.nn.embedding_lookup(layer.embeddings.value, tf.cast(inputs, tf.int64))
    dtype: str = layer.compute_dtype
    return tf.cast(rows, dtype)


def _whole(variable: keras.Variable) -> tf.Tensor:
    return tf.convert_to_tensor(variable.value)


def _restore(variable: keras.Variable, value: tf.Tensor) -> None:
    variable.assign(tf.ensure_shape(value, variable.shape))
