"""Mixed precision: layers compute in bfloat16, while variables, loss and updates stay in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf


@contextmanager
def computing_in(precision: str) -> Iterator[None]:
    """Layers that are made here compute in `precision`. It has the range of float32, so that no loss needs to be scaled."""
    before = keras.config.dtype_policy()
    if precision == "BFloat16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def single(outputs: Any) -> Any:
    """A model's outputs in float32, as the loss wants them."""
    return tf.nest.map_structure(lambda one: tf.cast(one, tf.float32) if one.dtype == tf.bfloat16 else one, outputs)
