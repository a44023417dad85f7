"""The callback for Lightning."""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from muster_training.session import checkpoint, environment, report, should_stop

FILE = "lightning.ckpt"


class MusterCallback(Callback):
    """Reports and saves after steps of the optimizer."""

    def __init__(self, every_steps: int, shared: bool) -> None:
        self._every = every_steps
        self._shared = shared
        self._total: int | None = None
        self._step = 0
        self._saved: int | None = None
        self._handler: Any = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._handler = signal.getsignal(signal.SIGTERM)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._step = self._saved = trainer.global_step
        steps = trainer.estimated_stepping_batches
        self._total = int(steps) if math.isfinite(steps) and steps > 0 else None
        if environment().inside:
            # Lightning's handler waits for a collective of all ranks, but one rank alone may get SIGTERM.
            signal.signal(signal.SIGTERM, self._handler or signal.SIG_DFL)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self._step:  # the gradients of several batches are accumulated for one step
            return
        step = self._step = trainer.global_step
        report(step=step, total=self._total, loss=outputs.get("loss") if isinstance(outputs, Mapping) else outputs)
        stop = should_stop()
        if stop or step % self._every == 0 or step == self._total:
            self._save(trainer)
        if stop:
            trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._saved != self._step:
            self._save(trainer)

    def _save(self, trainer: Trainer) -> None:
        with checkpoint(self._step, shared=self._shared) as folder:
            trainer.save_checkpoint(Path(folder) / FILE)
        self._saved = self._step
