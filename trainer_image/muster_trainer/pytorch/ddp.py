"""PyTorch DistributedDataParallel: every process holds a copy of the model. Also the strategy of a single process."""

from __future__ import annotations

import time
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn

from muster_contract.errors import BadConfiguration
from muster_contract.options import GradientCompression
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.pytorch import compat
from muster_trainer.pytorch.engine import TorchEngine
from muster_trainer.pytorch.parallel import Batch, Context, Layout, ParallelModel, broadcast_together, restore_buffers
from muster_trainer.pytorch.preparation import train_once
from muster_trainer.tasks.module import Task
from muster_trainer.training.engine import Engine


def engine(task: Task, spec: TrainerSpec) -> Engine:
    return TorchEngine(task, spec, DdpModel)


def prepare(_: TrainerSpec) -> None:
    train_once(lambda model, mesh: compat.ddp(model))


class DdpModel(ParallelModel):
    """One rank of a DDP world. DDP averages gradients during the backward pass. Buffers are sent at the end of a step and not at the
    start of the next one, so that every rank has the whole state in between."""

    rejoins = True

    def __init__(self, context: Context, model: nn.Module) -> None:
        context.lower_precision(model)
        self._ddp = compat.ddp(model, send_state=not context.has_survivors)
        world_size = context.world_size
        layout = Layout(world_size, context.rank, gradient_copies=world_size, holds_whole_model=True)
        super().__init__(context, layout, model, gradient_scale=world_size)
        self._is_primed = world_size <= 2  # a sum of two is the same in any order
        self._clock = _GradientClock(self._ddp)
        self._compress_gradients(context.spec.options.gradient_compression)

    def rejoin(self) -> None:
        compat.release_ddp(self._ddp)
        self._clock.close()
        self._ddp = compat.ddp(self.module, send_state=False)
        self._is_primed = self.context.world_size <= 2
        self._clock = _GradientClock(self._ddp)
        self._compress_gradients(self.context.spec.options.gradient_compression)

    def start_step(self, batch: Batch) -> None:
        if not self._is_primed:
            self._prime_bucket_order(batch)
            self._is_primed = True

    def _prime_bucket_order(self, batch: Batch) -> None:
        """Runs the passes once, and drops the gradients.

        DDP lays its buckets out anew after its first backward pass. The position of a gradient in a bucket decides in which order the
        parts of the ranks are added up. After priming all steps have one order, also those after a resume.
        """
        buffers = [buffer.clone() for buffer in self.module.buffers()]
        try:
            self.forward_backward(batch)
        finally:  # also if a peer is lost: the state is then that before the step
            restore_buffers(self.module, buffers)
        self.optimizer.zero_grad(set_to_none=True)
        self.seed(batch.step)

    def forward(self, inputs: Any) -> Any:
        return self._ddp(inputs)

    def micro_batch(self, *, last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last else self._ddp.no_sync()

    def finish_passes(self) -> None:
        if self.layout.data_parallel_size > 1:
            broadcast_together(self.module.buffers(), source=0)

    def gradients_ready_at(self) -> float:
        return self._clock.read()

    def _compress_gradients(self, compression: GradientCompression) -> None:
        """Registers the hook of `options.gradientCompression`."""
        if compression is GradientCompression.NONE:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # the hooks of PyTorch 2.6 make Python 3.13 warn ten times
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
        if compression is GradientCompression.FP16:
            self._ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
            return
        try:
            self._ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)
        except TypeError as error:  # raised by a PyTorch that was built without CUDA
            raise BadConfiguration(f"spec.options.gradientCompression: BF16 is refused here ({error}); write FP16") from error


class _GradientClock:
    """The time when the last gradient of a step was computed. The first step shows which parameter has it."""

    def __init__(self, module: nn.Module) -> None:
        self._at = 0.0
        self._last: nn.Parameter | None = None
        self._hooks = {one: one.register_post_accumulate_grad_hook(self._note) for one in module.parameters() if one.requires_grad}

    def _note(self, parameter: nn.Parameter) -> None:
        self._at, self._last = time.monotonic(), parameter

    def close(self) -> None:
        for hook in self._hooks.values():
            hook.remove()

    def read(self) -> float:
        for parameter in [one for one in self._hooks if one is not self._last]:
            self._hooks.pop(parameter).remove()
        return self._at
