"""The optimizer from the keys of the config: optimizer, learningRate, momentum (of SGD), weightDecay."""

from __future__ import annotations

from typing import Any

import optax

from muster_trainer.tasks.config import Config


def default_optimizer(_model: Any, config: Config) -> optax.GradientTransformation:
    """The optimizer of the config. As in PyTorch, AdamW applies the weight decay to the weights, and others add it to the gradient."""
    rate, decay = config.learningRate, config.weightDecay
    if config.optimizer == "AdamW":
        return optax.adamw(rate, weight_decay=decay)
    base = optax.sgd(rate, momentum=config.momentum or None) if config.optimizer == "SGD" else optax.adam(rate)
    return optax.chain(optax.add_decayed_weights(decay), base) if decay else base
