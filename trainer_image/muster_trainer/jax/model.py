"""The model of a task as pure functions, with checks of their results."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from muster_contract.errors import TrainerError, UserError
from muster_trainer.tasks.batches import read_batch
from muster_trainer.tasks.module import Task, describe

Tree = Any
"""Nested dicts, lists or tuples of arrays (a pytree)."""


class Model:
    """The result of `build_model`. With `precision: BFloat16`, the forward pass computes in bfloat16, and parameters stay in float32."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.model = task.build_model(task.config)
        for name in ("init", "apply"):
            if not callable(getattr(self.model, name, None)):
                raise UserError(
                    f"{task.title}: build_model must return an object with init(key, inputs) and apply(parameters, inputs); "
                    f"it returned {type(self.model).__name__}"
                )
        self._takes_key = "key" in inspect.signature(self.model.apply).parameters
        self._lowers = task.config.precision == "BFloat16"

    def first_parameters(self) -> Tree:
        """The initial parameters. They depend on the seed and the first sample only. Raises UserError."""
        inputs = jax.tree.map(np.asarray, read_batch(self.task, self.task.train, np.arange(1))[0])
        try:
            parameters = self.model.init(jax.random.key(seed_of(self.task.config.seed)), inputs)
            return jax.tree.map(jnp.asarray, parameters)
        except (Exception, SystemExit) as error:
            raise UserError(f"{self.task.title}: init of the model failed: {describe(error)}") from error

    def outputs(self, parameters: Tree, inputs: Tree, key: jax.Array | None) -> Tree:
        """The outputs of the model. `key` is the key of its random numbers in training, and None in an evaluation. Raises UserError."""
        if self._lowers:
            parameters, inputs = _cast((parameters, inputs), jnp.float32, jnp.bfloat16)
        try:
            outputs = self.model.apply(parameters, inputs, key=key) if self._takes_key else self.model.apply(parameters, inputs)
        except TrainerError:
            raise
        except (Exception, SystemExit) as error:
            raise UserError(f"{self.task.title}: apply of the model failed: {describe(error)}") from error
        return _cast(outputs, jnp.bfloat16, jnp.float32)

    def loss(self, outputs: Tree, batch: Any, weights: jax.Array) -> jax.Array:
        """The sum of the losses, times `weights`: 1 for a sample, and 0 for padding."""
        values = self.task.loss(outputs, batch)
        if len(batch) > 2:
            values = values * self.task.weights_for(values, batch)
        return self._sum(values, weights, "loss")

    def measure(self, outputs: Tree, batch: Any, weights: jax.Array) -> dict[str, jax.Array]:
        """The sums of loss and metrics, times `weights`: 1 for a sample, and 0 for padding."""
        metrics = {name: self._sum(values, weights, name) for name, values in self.task.metrics(outputs, batch).items()}
        return {"loss": self.loss(outputs, batch, weights), **metrics}

    def _sum(self, values: Any, weights: jax.Array, name: str) -> jax.Array:
        shape = np.shape(values)
        if shape != weights.shape:
            raise UserError(
                f"{self.task.title}: {name} must have the shape ({len(weights)},), a value per sample, in JAX, where shares of a batch "
                f"are filled up to one size; it has {shape}"
            )
        return jnp.sum(values * weights, dtype=jnp.float32)


def seed_of(*words: int) -> np.uint32:
    """A seed for random numbers. It is a function of `words`, which SeedSequence mixes."""
    seed: np.uint32 = np.random.SeedSequence(words).generate_state(1, np.uint32)[0]
    return seed


def _cast(tree: Tree, source: Any, target: Any) -> Tree:
    return jax.tree.map(lambda one: one.astype(target) if one.dtype == source else one, tree)
