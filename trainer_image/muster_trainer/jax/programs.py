"""The compiled programs of a step and of an evaluation, each over all devices of the world.

A step is two programs. In the first, each device computes its gradients without waiting for other devices. The second sums the gradients
and updates the parameters. So a rank can measure the time in which it does not wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from muster_trainer.jax.model import Model, Tree
from muster_trainer.jax.world import AXIS, SHARED, WHOLE, World
from muster_trainer.tasks.config import Config


class State(NamedTuple):
    """The state of a training between two steps."""

    parameters: Tree
    optimizer: Tree


class Programs:
    """The two programs of a step.

    `gradients(parameters, batch, weights, seed)` returns each device's gradient of its sum of losses, and these sums with those of the
    weights: shape (devices, 2).
    `update(state, gradients, losses, votes, rate)` returns the next state, and the losses and votes of all devices.
    """

    def __init__(self, world: World, model: Model, optimizer: optax.GradientTransformation, config: Config, *, portions: int) -> None:
        self.gradients = on_devices(world, _gradients(model, portions), (WHOLE, SHARED, SHARED, WHOLE), SHARED)
        arguments, results = (WHOLE, SHARED, SHARED, SHARED, WHOLE), (WHOLE, WHOLE, WHOLE)
        donated = (1,) if keeps_state(world) else (0, 1)
        self.update = on_devices(world, _update(optimizer, config), arguments, results, donate=donated)


def keeps_state(world: World) -> bool:
    """Whether the state before an update stays in memory until the update has ended. It does on CPUs, because hosts have more memory."""
    return world.platform == "cpu"


def on_devices(
    world: World, program: Callable[..., Any], arguments: Any, results: Any, *, donate: tuple[int, ...] = ()
) -> Callable[..., Any]:
    """Compiles `program` for all devices of the world. `arguments` and `results` are PartitionSpecs."""
    mapped = jax.shard_map(program, mesh=world.mesh, in_specs=arguments, out_specs=results, check_vma=False)
    return jax.jit(mapped, donate_argnums=donate)


def _gradients(model: Model, portions: int) -> Callable[..., Any]:
    def loss(parameters: Tree, batch: Any, weights: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return model.loss(model.outputs(parameters, batch[0], key), batch, weights)

    def program(parameters: Tree, batch: Any, weights: jax.Array, seed: jax.Array) -> Any:
        key = jax.random.fold_in(jax.random.key(seed), jax.lax.axis_index(AXIS))

        def portion(sums: Any, part: Any) -> tuple[Any, None]:
            number, (batch, weights) = part
            own, gradients = jax.value_and_grad(loss, has_aux=True)(parameters, batch, weights, jax.random.fold_in(key, number))
            return jax.tree.map(jnp.add, sums, (jnp.stack(own), gradients)), None

        parts = jax.tree.map(lambda one: one.reshape(portions, -1, *one.shape[1:]), (batch, weights))
        zeros = jnp.zeros(2, jnp.float32), jax.tree.map(jnp.zeros_like, parameters)
        (total, gradients), _ = jax.lax.scan(portion, zeros, (jnp.arange(portions), parts))
        return jax.tree.map(lambda one: one[None], (gradients, total))

    return program


def _update(optimizer: optax.GradientTransformation, config: Config) -> Callable[..., Any]:
    def program(state: State, gradients: Tree, losses: jax.Array, votes: jax.Array, rate: jax.Array) -> tuple[State, jax.Array, jax.Array]:
        weight = jax.lax.psum(losses[0, 1], AXIS)
        gradients = jax.tree.map(lambda one: jax.lax.psum(one[0], AXIS) / weight.astype(one.dtype), gradients)
        losses, votes = jax.lax.all_gather((losses[0], votes[0]), AXIS)
        if config.gradientClipNorm:
            gradients = _clipped(gradients, config.gradientClipNorm)
        changes, moments = optimizer.update(gradients, state.optimizer, state.parameters)
        changes = jax.tree.map(lambda one: one * rate.astype(one.dtype), changes)
        after = State(optax.apply_updates(state.parameters, changes), moments)
        if config.nanLoss == "Skip":
            after = jax.tree.map(lambda new, old: jnp.where(jnp.isfinite(losses[:, 0].sum() / weight), new, old), after, state)
        return after, losses, votes

    return program


def evaluation_program(world: World, model: Model) -> Callable[..., Any]:
    """The program (parameters, batch, weights) -> the sums of loss and of each metric for each device: shape (devices,)."""

    def program(parameters: Tree, batch: Any, weights: jax.Array) -> Any:
        sums = model.measure(model.outputs(parameters, batch[0], None), batch, weights)
        return jax.tree.map(lambda one: one[None], sums)

    return on_devices(world, program, (WHOLE, SHARED, SHARED), SHARED)


def _clipped(gradients: Tree, most: float) -> Tree:
    norm = optax.global_norm(gradients)
    return jax.tree.map(lambda one: one * jnp.minimum(1.0, most / norm).astype(one.dtype), gradients)
