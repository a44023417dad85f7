"""The model of a task as pure functions, with checks of their results."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from muster_contract.errors import TrainerError, UserError
from muster_trainer.tasks.averages import TOLERANCE, TOLERANCE_IN_HALF, WEIGHT, check, samples_checked, values_and_weights
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

    def loss(self, outputs: Tree, batch: Any, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The sum of the losses, and the sum of their weights, by which the whole step is divided. Both are without padding, which has the
        weight 0 in `weights`; samples have 1."""
        total, weight = self._sums(self._losses(outputs, batch), weights, "loss")
        return total, jnp.sum(weights, dtype=jnp.float32) if weight is None else jax.lax.stop_gradient(weight)

    def measure(self, outputs: Tree, batch: Any, weights: jax.Array) -> dict[str, jax.Array]:
        """The sums of loss and metrics by name, without padding, for `averages`."""
        sums: dict[str, jax.Array] = {}
        for name, result in {"loss": self._losses(outputs, batch), **self.task.metrics(outputs, batch)}.items():
            sums[name], weight = self._sums(result, weights, name)
            if weight is not None:
                sums[name + WEIGHT] = weight
        return sums

    def _losses(self, outputs: Tree, batch: Any) -> Any:
        values = self.task.loss(outputs, batch)
        return values if len(batch) == 2 else values * self.task.weights_for(values, batch)

    def _sums(self, result: Any, weights: jax.Array, name: str) -> tuple[jax.Array, jax.Array | None]:
        values, own = values_and_weights(result)
        return self._sum(values, weights, name), None if own is None else self._sum(own, weights, name + WEIGHT)

    def _sum(self, values: Any, weights: jax.Array, name: str) -> jax.Array:
        shape = np.shape(values)
        if shape != weights.shape:
            raise UserError(
                f"{self.task.title}: {name} must have the shape (n,), a value per sample, in JAX, where shares of a batch are filled up "
                f"to one size; it has {shape} for n = {len(weights)}"
            )
        return jnp.sum(values * weights, dtype=jnp.float32)

    # the check

    def check(self, parameters: Tree, samples: Any) -> None:
        """Checks with a few `samples` that loss and metrics may be computed in parts. Raises UserError."""
        rows = len(jax.tree.leaves(samples)[0])
        outputs = jax.jit(lambda parameters, inputs: self.outputs(parameters, inputs, None))(parameters, samples[0])
        rows = min(rows, samples_checked(sum(one.size for one in jax.tree.leaves(outputs)) // rows))
        outputs, samples = _rows((outputs, samples), slice(0, rows))
        of_loss = jax.jit(jax.grad(self.loss, allow_int=True, has_aux=True))
        of_metrics = jax.jit(self.measure)

        def loss(part: slice) -> list[np.ndarray]:
            gradients, weight = of_loss(*_rows((outputs, samples), part), jnp.ones(part.stop - part.start))
            return [np.asarray(weight), *(np.asarray(one) for one in jax.tree.leaves(gradients) if jnp.issubdtype(one.dtype, jnp.floating))]

        def metric(name: str, part: slice) -> list[np.ndarray]:
            return [np.asarray(of_metrics(*_rows((outputs, samples), part), jnp.ones(part.stop - part.start))[name])]

        tolerance = TOLERANCE_IN_HALF if self._lowers else TOLERANCE
        check(self.task.title, "loss", loss, rows=rows, tolerance=tolerance)
        if self.task.test is not None:
            for name in of_metrics(outputs, samples, jnp.ones(rows)).keys() - {"loss", f"loss{WEIGHT}"}:
                check(self.task.title, name, partial(metric, name), rows=rows, tolerance=tolerance)


def seed_of(*words: int) -> np.uint32:
    """A seed for random numbers. It is a function of `words`, which SeedSequence mixes."""
    seed: np.uint32 = np.random.SeedSequence(words).generate_state(1, np.uint32)[0]
    return seed


def _rows(tree: Tree, part: slice) -> Tree:
    return jax.tree.map(lambda one: one[part], tree)


def _cast(tree: Tree, source: Any, target: Any) -> Tree:
    return jax.tree.map(lambda one: one.astype(target) if one.dtype == source else one, tree)
