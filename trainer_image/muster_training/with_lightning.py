"""The callback for Lightning."""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping
from lightning.pytorch.utilities import CombinedLoader

from muster_contract.events import Activity
from muster_training.generators import States, generators_of, read_states, set_states
from muster_training.session import checkpoint, environment, notify, phase, report, should_stop

FILE = "lightning.ckpt"
EPOCH = "epoch"
NOW = "now"
_TRACKED = ("total", "current")


def _remember_the_states_before_each_epoch() -> None:
    """A new iterator draws the order of the epoch and the seeds of its workers. Lightning has no hook before it creates one."""
    create = CombinedLoader.__iter__

    def remember(loaders: Any) -> Any:
        loaders.muster_states = read_states(_generators(loaders))
        return create(loaders)

    setattr(CombinedLoader, "__iter__", remember)  # noqa: B010 (a type checker refuses the plain assignment)


_remember_the_states_before_each_epoch()


class MusterCallback(Callback):
    """Reports and saves after steps of the optimizer.

    Lightning's checkpoint has neither the states of random generators nor the place in the data. So each rank saves the states at the
    step, and those before the epoch. A resume begins the epoch again, skips the batches that are done, and then sets the states.
    """

    def __init__(self, every_steps: int, shared: bool) -> None:
        self._every = every_steps
        self._shared = shared
        self._total: int | None = None
        self._step = 0
        self._saved: int | None = None
        self._saving = False
        self._handler: Any = None

    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        self._handler = signal.getsignal(signal.SIGTERM)
        # It runs last, so that its checkpoint has what the others do at the same step, for example a save of ModelCheckpoint.
        trainer.callbacks = [*(each for each in trainer.callbacks if each is not self), self]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._step = self._saved = trainer.global_step
        steps = trainer.estimated_stepping_batches
        self._total = int(steps) if math.isfinite(steps) and steps > 0 else None
        if environment().inside:
            # Lightning's handler waits for a collective of all ranks, but one rank alone may get SIGTERM.
            signal.signal(signal.SIGTERM, self._handler or signal.SIG_DFL)
        if trainer.ckpt_path and trainer.fit_loop.restarting:
            self._resume(trainer, Path(trainer.ckpt_path).parent / _random_file(trainer))

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self._step:  # the gradients of several batches are accumulated for one step
            return
        step = self._step = trainer.global_step
        report(step=step, total=self._total, loss=outputs.get("loss") if isinstance(outputs, Mapping) else outputs)
        stop = should_stop()
        if stop or step % self._every == 0 or step == self._total:
            self._save(trainer)
        if stop:
            self._stop(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._saved != self._step:
            self._save(trainer)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Marks a validation that is due at this step as begun. A resumed run then does it first; otherwise Lightning leaves it out."""
        loop = trainer.fit_loop
        if self._saving and trainer.training and loop._data_fetcher and loop.epoch_loop._should_check_val_fx(loop._data_fetcher):
            loops = checkpoint["loops"]["fit_loop"]
            for each in _TRACKED:
                batches = loops["epoch_loop.batch_progress"][each]
                batches["completed"] = batches["processed"]
                loops["epoch_loop.val_loop.batch_progress"][each] |= {"ready": 1, "started": 1, "processed": 0, "completed": 0}

    def _stop(self, trainer: Any) -> None:
        """Ends the training. The resumed run does what is due at the end of a validation or epoch, which may take longer than the grace."""
        trainer.should_stop = True
        trainer.limit_val_batches = 0
        trainer.callbacks = [each for each in trainer.callbacks if not isinstance(each, Checkpoint | EarlyStopping)]

    def _save(self, trainer: Trainer) -> None:
        self._saving = True
        with checkpoint(self._step, shared=self._shared) as folder:
            trainer.save_checkpoint(Path(folder) / FILE)
            loaders = _loaders(trainer)
            states = {EPOCH: loaders.muster_states, NOW: read_states(_generators(loaders))}
            torch.save(states, Path(folder) / _random_file(trainer))
        self._saving = False
        self._saved = self._step

    def _resume(self, trainer: Trainer, path: Path) -> None:
        if not path.is_file():
            notify(f"the checkpoint has no {path.name}, so the random generators and the order of samples begin anew")
            return
        states = torch.load(path, weights_only=True)
        phase(Activity.RESTORING)
        loaders = _loaders(trainer)
        loop = trainer.fit_loop.epoch_loop
        done = loop.batch_progress.current.ready
        is_over = loop.batch_progress.is_last_batch or done >= trainer.num_training_batches
        if any(hasattr(each, "load_state_dict") for each in loaders.flattened):  # Lightning has restored their places
            set_states(states[NOW], _generators(loaders))
        elif not is_over:
            _begin_epoch(trainer, states[EPOCH])
            _skip(trainer, done)
            set_states(states[NOW], _generators(loaders))
        elif loop.restarted_on_last:  # the validation at the end of the epoch is due, and Lightning creates the iterator after it
            set_states(states[NOW], _generators(loaders))
        else:
            _begin_epoch(trainer, states[NOW])
        if trainer.current_epoch and any(_has_lasting_workers(each) for each in loaders.flattened):
            notify(
                "persistent_workers: random numbers that the data set draws in a worker differ after a resume; write False if it draws any"
            )
        phase(Activity.TRAINING)


def _begin_epoch(trainer: Trainer, states: States) -> None:
    """Creates the iterator of the epoch again, from `states`."""
    loaders = _loaders(trainer)
    for loader in loaders.flattened:
        for sampler in (getattr(loader, "sampler", None), getattr(getattr(loader, "batch_sampler", None), "sampler", None)):
            if callable(set_epoch := getattr(sampler, "set_epoch", None)):
                set_epoch(trainer.current_epoch)  # Lightning does it later, when workers have drawn the first batches already
    if trainer.current_epoch == 0:
        loaders.reset()  # as in the first attempt, persistent workers begin with the iterator; in later epochs they exist already
    set_states(states, _generators(loaders))
    fetcher: Any = trainer.fit_loop._data_fetcher
    iter(fetcher)


def _skip(trainer: Trainer, batches: int) -> None:
    """Reads the `batches` of the epoch that are done, so that workers also draw as they did. A loader that may begin elsewhere is left."""
    if unknown := [name for each in _loaders(trainer).flattened if (name := _with_unknown_place(each))]:
        notify(
            f"the training resumes within an epoch, after {batches} batches. Muster cannot tell where {unknown[0]} begins: begin it at "
            "trainer.global_step, or give the loader state_dict() and load_state_dict()"
        )
        return
    fetcher: Any = trainer.fit_loop._data_fetcher
    for _ in range(batches):
        next(fetcher)
    fetcher.fetched -= batches  # Lightning adds them


def _with_unknown_place(loader: object) -> str | None:
    """The name of the part of `loader` that may begin at another place than the start of the epoch; None if no part does so."""
    if not isinstance(loader, torch.utils.data.DataLoader):
        return f"{type(loader).__name__} (the loader)"
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return f"{type(loader.dataset).__name__} (an IterableDataset)"
    inner = getattr(getattr(loader.sampler, "dataset", None), "_sampler", None)  # of Lightning's DistributedSamplerWrapper
    for sampler in (loader.sampler, loader.batch_sampler, inner):
        if sampler is not None and not type(sampler).__module__.startswith(("torch.utils.data", "lightning.")):
            return f"{type(sampler).__name__} (a sampler)"
    return None


def _has_lasting_workers(loader: object) -> bool:
    """Whether the workers of `loader` live for several epochs. The states of their generators then come from all earlier epochs."""
    return bool(getattr(loader, "persistent_workers", False))


def _loaders(trainer: Trainer) -> Any:
    return trainer.fit_loop._combined_loader


def _generators(loaders: Any) -> list[torch.Generator]:
    return [generator for loader in loaders.flattened for generator in generators_of(loader)]


def _random_file(trainer: Trainer) -> str:
    return f"random-{trainer.global_rank}.pt"
