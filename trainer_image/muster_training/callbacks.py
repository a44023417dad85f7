"""Ready callbacks for training libraries with loops of their own. A library is imported when its callback is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning.pytorch import Callback


def lightning_callback(*, every_steps: int, shared: bool = False) -> Callback:
    """A callback for `lightning.pytorch.Trainer`. It reports each step, saves every `every_steps` steps, at the end and at a stop, and
    ends the training at a stop.

    `trainer.fit(model, ckpt_path=found / "lightning.ckpt")` resumes from `found`, the result of `latest()`. `shared` is that of
    `checkpoint()`: set it for FSDP and DeepSpeed, where all ranks write.
    """
    from muster_training.with_lightning import MusterCallback

    return MusterCallback(every_steps, shared)
