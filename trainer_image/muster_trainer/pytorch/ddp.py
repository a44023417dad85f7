"""PyTorch DistributedDataParallel: every process holds a copy of the model."""

from __future__ import annotations

import time
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from muster_trainer.contract import BadConfiguration
from muster_trainer.pytorch.engine import TorchEngine

POWER_SGD_RANK = 4
POWER_SGD_FIRST_STEPS = 10
"""Sent whole after each start: PowerSGD's memory is not in a checkpoint."""


class Ddp(TorchEngine):
    """One rank of a DDP world; also the strategy of a single process."""

    averages_gradients = True
    shares_buffers = True
    whole = True

    def _lay_out(self, model: nn.Module) -> nn.Module:
        self._lower(model)
        self.parallel = DistributedDataParallel(model)
        self.settled = self.world <= 2  # a sum of two is the same in any order
        self._watch_gradients()
        self._compress(self.spec.options.get("gradientCompression") or "None")
        return model

    def _watch_gradients(self) -> None:
        """Has the moment noted at which the last gradient of a step is computed. Which one that is, the first step shows."""
        self._gradient_at = 0.0
        hooks = {}

        def note(parameter: nn.Parameter) -> None:
            self._gradient_at = time.monotonic()
            self._last_gradient = parameter

        for parameter in self.parallel.parameters():
            if parameter.requires_grad:
                hooks[parameter] = parameter.register_post_accumulate_grad_hook(note)
        self._gradient_hooks = hooks

    def _settle(self, indices: np.ndarray, samples: Any, step: int) -> None:
        """Passes through the model once for nothing: DDP lays its buckets out anew after its first backward pass, and where in a bucket
        a gradient lies says in which order the ranks' parts of it are added up. So all steps that count have one order, as if the
        training had never been interrupted."""
        if self.settled:
            return
        self.settled = True
        buffers = [buffer.clone() for buffer in self.model.buffers()]
        self._differentiate(indices, samples)
        self._put_back(buffers)
        self.optimizer.zero_grad(set_to_none=True)
        self._seed(step)

    def _ready(self) -> float:
        for parameter in [one for one in self._gradient_hooks if one is not self._last_gradient]:
            self._gradient_hooks.pop(parameter).remove()
        return self._gradient_at

    def _compress(self, how: str) -> None:
        """How gradients travel (`options.gradientCompression`). PowerSGD: Vogels et al., 2019."""
        if how == "None":
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch 2.6's hooks make Python 3.13 warn, ten times
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
        if how == "FP16":
            self.parallel.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif how == "BF16":
            try:
                self.parallel.register_comm_hook(None, default_hooks.bf16_compress_hook)
            except TypeError as error:  # by a torch that was built without CUDA
                raise BadConfiguration(f"spec.options.gradientCompression: BF16 is refused here ({error}); write FP16") from error
        elif how == "PowerSGD":
            if self.task.config.nanLoss != "Stop":
                raise BadConfiguration(
                    f"spec.trainer.config.nanLoss: {self.task.config.nanLoss} cannot be combined with PowerSGD, which would remember "
                    "what is no number for all further steps; write Stop, or options.gradientCompression: BF16"
                )
            self.refuses = frozenset({"nanLoss: Skip", "nanLoss: Continue"})
            memory = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=POWER_SGD_RANK, start_powerSGD_iter=POWER_SGD_FIRST_STEPS)
            self.parallel.register_comm_hook(memory, powerSGD_hook.powerSGD_hook)
        else:
            raise BadConfiguration(f"spec.options.gradientCompression: {how!r} is none of None, FP16, BF16, PowerSGD")

    def _forward(self, inputs: Any) -> Any:
        return self.parallel(inputs)

    def _reducing(self, last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last else self.parallel.no_sync()
