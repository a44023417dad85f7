"""The bundled task `digits` in JAX, by the contract of `muster_trainer.tasks.module`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from muster_trainer.tasks.config import Config
from muster_trainer.tasks.digits import SIDE, Convolution, Dense, Layer, dataset, layers

__all__ = ["build_model", "dataset", "loss", "metrics"]

Parameters = dict[str, dict[str, jax.Array]]


@dataclass(frozen=True)
class Model:
    """Pure functions: `init` creates the parameters of each layer, and `apply` computes logits of shape (n, 10)."""

    layers: tuple[Layer, ...]

    def init(self, key: jax.Array, inputs: jax.Array) -> Parameters:
        """The initial parameters (Glorot, 2010). The weight of a convolution has the shape (height, width, channels, filters)."""
        parameters: Parameters = {}
        hidden = inputs if isinstance(self.layers[0], Dense) else _images(inputs)
        for number, layer in enumerate(self.layers):
            if isinstance(layer, Dense | Convolution):
                dense = isinstance(layer, Dense)
                hidden = _flat(hidden) if dense else hidden
                width = layer.units if isinstance(layer, Dense) else layer.filters
                shape = (hidden.shape[-1], width) if dense else (3, 3, hidden.shape[-1], width)
                weight = jax.nn.initializers.glorot_uniform()(jax.random.fold_in(key, number), shape)
                parameters[str(number)] = {"weight": weight, "bias": jnp.zeros(width)}
            hidden = _layer(layer, parameters.get(str(number), {}), hidden)
        return parameters

    def apply(self, parameters: Parameters, inputs: jax.Array) -> jax.Array:
        hidden = inputs if isinstance(self.layers[0], Dense) else _images(inputs)
        for number, layer in enumerate(self.layers):
            hidden = _layer(layer, parameters.get(str(number), {}), hidden)
        return hidden


def build_model(config: Config) -> Model:
    return Model(layers(config))


def loss(outputs: jax.Array, batch: Any) -> jax.Array:
    values: jax.Array = optax.softmax_cross_entropy_with_integer_labels(outputs, batch[1])
    return values


def metrics(outputs: jax.Array, batch: Any) -> dict[str, jax.Array]:
    return {"accuracy": (outputs.argmax(axis=1) == batch[1]).astype(jnp.float32)}


def _layer(layer: Layer, parameters: dict[str, jax.Array], hidden: jax.Array) -> jax.Array:
    if isinstance(layer, Dense):
        hidden = _flat(hidden) @ parameters["weight"] + parameters["bias"]
        return jax.nn.relu(hidden) if layer.relu else hidden
    if isinstance(layer, Convolution):
        layout = ("NHWC", "HWIO", "NHWC")
        hidden = jax.lax.conv_general_dilated(hidden, parameters["weight"], (1, 1), "SAME", dimension_numbers=layout)
        return jax.nn.relu(hidden + parameters["bias"])
    largest: jax.Array = jax.lax.reduce_window(hidden, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return largest


def _images(inputs: jax.Array) -> jax.Array:
    return inputs.reshape(-1, SIDE, SIDE, 1)


def _flat(hidden: jax.Array) -> jax.Array:
    return hidden.reshape(len(hidden), -1)
