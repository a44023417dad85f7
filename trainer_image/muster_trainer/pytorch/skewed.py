"""The bundled task `skewed` in PyTorch."""

from muster_trainer.pytorch.digits import build_model, dataset, loss, metrics, tensor_parallel_plan

__all__ = ["build_model", "dataset", "loss", "metrics", "tensor_parallel_plan"]
