"""The bundled task `skewed` in TensorFlow."""

from muster_trainer.tensorflow.digits import build_model, dataset, loss, metrics

__all__ = ["build_model", "dataset", "loss", "metrics"]
