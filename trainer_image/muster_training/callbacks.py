"""Ready callbacks for training libraries with loops of their own. A library is imported when its callback is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from muster_training.saves import Checkpoint

if TYPE_CHECKING:
    from lightning.pytorch import Callback
    from transformers import TrainerCallback


def lightning_callback(*, every_steps: int, shared: bool = False) -> Callback:
    """A callback for `lightning.pytorch.Trainer`. It reports each step, saves every `every_steps` steps, at the end and at a stop, and
    ends the training at a stop.

    `trainer.fit(model, ckpt_path=found / "lightning.ckpt")` resumes from `found`, the result of `latest()`. `shared` is that of
    `checkpoint()`: set it for FSDP and DeepSpeed, where all ranks write.
    """
    from muster_training.with_lightning import MusterCallback

    return MusterCallback(every_steps, shared)


def transformers_callback() -> TrainerCallback:
    """A callback for the `Trainer` of Hugging Face transformers. It reports each step, and makes each `checkpoint-N` of Trainer a
    checkpoint of the job. At a stop it has Trainer save on all ranks at one step, and end the training.

    `trainer.train(resume_from_checkpoint=str(found.folder))` resumes from `found`, the result of `latest()`.
    """
    from muster_training.with_transformers import MusterCallback

    return MusterCallback()


def keras_callback(checkpoint: Checkpoint | None, *, every_steps: int) -> Any:
    """A callback for `fit` of Keras 3, in one process.

    It resumes from `checkpoint`, the result of `latest()`, and reports each step. It saves every `every_steps` steps, at the end and at a
    stop, and ends the training at a stop.

    `fit` needs `steps_per_epoch`, and data without end that begin at step `checkpoint.step`. Put the callback first in `callbacks`.

    Raises BadConfiguration in a world of several processes.
    """
    from muster_training.with_keras import MusterCallback

    return MusterCallback(checkpoint, every_steps)
