"""PyTorch DistributedDataParallel: every process holds a copy of the model."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from muster_trainer.pytorch.engine import TorchEngine


class Ddp(TorchEngine):
    """One rank of a DDP world; also the strategy of a single process."""

    averages_gradients = True

    def _lay_out(self, model: nn.Module) -> nn.Module:
        self.parallel = DistributedDataParallel(model)
        return model

    def _forward(self, inputs: Any) -> Any:
        return self.parallel(inputs)

    def _reducing(self, last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last else self.parallel.no_sync()

    def _share_buffers(self) -> None:
        """DDP does it in its forward pass."""
