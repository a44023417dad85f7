"""Builds a Keras model: its precision, its variables and its random numbers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from muster_contract.errors import UserError
from muster_trainer.tasks.batches import read_batch
from muster_trainer.tasks.module import Task


def build(task: Task) -> keras.Model:
    """The task's model with all its variables. If its layers have no input shape, a call with a sample creates the variables."""
    policy = keras.config.dtype_policy()
    if task.config.precision == "BFloat16":
        # Layers compute in bfloat16. Variables, loss and updates stay in float32. The loss is not scaled, because the range is the same.
        keras.config.set_dtype_policy("mixed_bfloat16")
    with tf.variable_creator_scope(_updated_by_first_device):
        try:
            model = task.build_model(task.config)
        finally:
            keras.config.set_dtype_policy(policy)
        if not isinstance(model, keras.Model):
            raise UserError(f"{task.title}: build_model must return a keras.Model; it returned {type(model).__name__}")
        if not model.built:
            batch = read_batch(task, task.train, np.arange(1))
            model(tf.nest.map_structure(tf.convert_to_tensor, batch[0]))
    return model


def _updated_by_first_device(create: Callable[..., Any], **options: Any) -> Any:
    """Creates a variable. With CentralStorage, layers of all devices update one copy of random states and running averages. Keras does not
    say which update counts, and TensorFlow then refuses all. So the first device's counts, as with the other strategies."""
    is_central = isinstance(tf.distribute.get_strategy(), tf.distribute.experimental.CentralStorageStrategy)
    if is_central and options.get("trainable") is False:
        options["aggregation"] = tf.VariableAggregation.ONLY_FIRST_REPLICA
    return create(**options)


def in_float32(outputs: Any) -> Any:
    """The outputs of a model, with bfloat16 cast to float32 for the loss."""
    return tf.nest.map_structure(lambda one: tf.cast(one, tf.float32) if one.dtype == tf.bfloat16 else one, outputs)


class RandomState:
    """Makes all random numbers of a step a function of (seed, step, rank), by setting the variables of the layers' generators."""

    def __init__(self, model: keras.Model, *, seed: int, rank: int) -> None:
        self._seed, self._rank = seed, rank
        self._generators = [v for v in model.non_trainable_variables if v.path.endswith("seed_generator_state")]

    def set(self, step: int) -> None:
        words = np.random.SeedSequence([self._seed, step, self._rank]).generate_state(2, np.uint32)
        random.seed(int(words[0]))
        np.random.seed(int(words[0]))
        for number, variable in enumerate(self._generators):
            variable.assign(words + np.uint32(number))
