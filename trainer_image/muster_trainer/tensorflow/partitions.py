"""Large variables in parts that lie on several parameter servers, for Keras 3, which knows of no such variables.

tf.distribute makes a ShardedVariable where its partitioner says so. Keras holds it, reads it as one tensor and calls
`assign` on it; what Keras lacks is here: gradients and optimizer state of each part, lookups of rows, and checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf

PART_BYTES = 4 << 20
"""The least that a part has: below it, one server more costs more than it spares."""
_KEY = "VARIABLE_VALUE"  # what TensorFlow calls the value of a variable in a checkpoint


def partitioner(servers: int) -> Any:
    """Cuts a variable of at least 2 x PART_BYTES by its first axis, into a part for each server at most."""
    return tf.distribute.experimental.partitioners.MinSizePartitioner(min_shard_bytes=PART_BYTES, max_shards=servers)


def trainable_parts(model: keras.Model) -> list[keras.Variable]:
    """The trainable variables, with the parts in place of one that is cut up."""
    found: list[keras.Variable] = []
    for variable in model.trainable_variables:
        parts = _parts(variable)
        found += [keras.Variable(part, name=f"{variable.name}_part_{number}") for number, part in enumerate(parts)] or [variable]
    return found


def adapt(model: keras.Model) -> None:
    """Lets embeddings fetch the rows that a batch names, where Keras fetches the whole table, and lets parts be saved as the
    one variable that they are, so that a checkpoint does not depend on the number of servers."""
    for layer in model._flatten_layers():
        if type(layer) is keras.layers.Embedding:
            layer.call = partial(_look_up, layer)
    for variable in model.variables:
        if _parts(variable):
            variable._serialize_to_tensors = partial(_whole, variable)
            variable._restore_from_tensors = partial(_restore, variable)


def _parts(variable: keras.Variable) -> Sequence[tf.Variable]:
    return getattr(variable.value, "variables", ())


def _look_up(layer: keras.layers.Embedding, inputs: Any) -> tf.Tensor:
    rows = tf.nn.embedding_lookup(layer.embeddings.value, tf.cast(inputs, tf.int64))
    return tf.cast(rows, layer.compute_dtype)


def _whole(variable: keras.Variable) -> dict[str, tf.Tensor]:
    return {_KEY: tf.convert_to_tensor(variable.value)}


def _restore(variable: keras.Variable, restored: dict[str, tf.Tensor]) -> None:
    variable.assign(tf.ensure_shape(restored[_KEY], variable.shape))
