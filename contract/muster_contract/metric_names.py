"""Which figures of a program describe the model. Training libraries also log how fast they were."""

from __future__ import annotations

from collections.abc import Mapping

_OF_THE_TRAINING = {"total_flos", "train_loss", "grad_norm", "learning_rate"}
"""Names of figures that `Trainer` of transformers logs with the loss, or at the end of the training."""
_OF_SPEED = ("_runtime", "_per_second")


def of_the_model(metrics: Mapping[str, float]) -> dict[str, float]:
    """The figures without those of the speed and of the training itself."""
    return {name: value for name, value in metrics.items() if name not in _OF_THE_TRAINING and not name.endswith(_OF_SPEED)}
