"""Callbacks for training libraries that have their own loops. Creating a callback imports its library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from muster_training.saves import Checkpoint

if TYPE_CHECKING:
    from lightning.pytorch import Callback
    from transformers import TrainerCallback


def lightning_callback(*, every_steps: int, shared: bool = False) -> Callback:
    """Returns a callback for `lightning.pytorch.Trainer`.

    It reports each step. It saves after every `every_steps` steps, at the end, when a node of the job goes, and when the job is asked
    to stop. A stop also ends the training. To resume, call `trainer.fit(model, ckpt_path=newest / "lightning.ckpt")`, where `newest` is
    the result of `latest()`. `shared` has the meaning that it has in `checkpoint()`: set it for FSDP and DeepSpeed, because all ranks
    write there.

    Raises ImportError if Lightning is not installed.
    """
    from muster_training.with_lightning import MusterCallback

    return MusterCallback(every_steps, shared)


def transformers_callback() -> TrainerCallback:
    """Returns a callback for the `Trainer` of Hugging Face transformers.

    It reports each step, and makes each `checkpoint-N` of Trainer a checkpoint of the job. When a node of the job goes, Trainer
    saves on all ranks after the same step. When the job is asked to stop, it also ends the training. To resume, call
    `trainer.train(resume_from_checkpoint=str(newest.folder))`, where `newest` is the result of `latest()`.

    Raises ImportError if transformers is not installed.
    """
    from muster_training.with_transformers import MusterCallback

    return MusterCallback()


def keras_callback(checkpoint: Checkpoint | None, *, every_steps: int) -> Any:
    """Returns a callback for `fit` of Keras 3, in one process.

    It resumes from `checkpoint`, the result of `latest()`, and reports each step. It saves after every `every_steps` steps, at the
    end, when a node of the job goes, and when the job is asked to stop. A stop also ends the training.

    Give `fit` a value for `steps_per_epoch`, and endless data that begin with the samples after step `checkpoint.step`. Put the
    callback first in `callbacks`.

    Raises ImportError if Keras is not installed, and BadConfiguration in a world of several processes.
    """
    from muster_training.with_keras import MusterCallback

    return MusterCallback(checkpoint, every_steps)
