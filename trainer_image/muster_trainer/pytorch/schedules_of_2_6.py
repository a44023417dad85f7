"""Pipeline schedules of torch 2.6, which lack three things that later versions have.

Gradients are never divided by the number of micro-batches, without being told. Of the messages that a schedule begins together only
the last is kept, and Gloo drops what nobody keeps. What the last stage gives is detached in place, which a view of something else (a
dense layer's output for sequences, say) does not allow.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import ScheduleGPipe, schedules

NEEDED = "scale_grads" not in inspect.signature(ScheduleGPipe.__init__).parameters
UNSCALED = {} if NEEDED else {"scale_grads": False}
"""What a schedule is told, so that it leaves gradients as they are."""


def mend(last: nn.Module | None) -> None:
    """Keeps messages until they have arrived, and makes what the stage `last` gives its own."""
    schedules._batch_p2p = _begun_together  # type: ignore[assignment]
    if last is not None:
        last.register_forward_hook(_of_its_own)


class _Together(list[dist.Work]):
    """Messages under way, to be waited for as if they were one."""

    def wait(self) -> None:
        for work in self:
            work.wait()


def _begun_together(messages: list[dist.P2POp], desc: str | None = None) -> _Together:
    return _Together(dist.batch_isend_irecv(messages) if messages else ())


def _of_its_own(part: nn.Module, inputs: Any, outputs: torch.Tensor) -> torch.Tensor:
    return outputs.clone() if outputs._is_view() else outputs
