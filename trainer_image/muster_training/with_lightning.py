"""The callback for Lightning."""

from __future__ import annotations

import copy
import functools
import math
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer import call
from lightning.pytorch.utilities import CombinedLoader

from muster_contract.events import Activity
from muster_training.generators import States, generators_of, read_states, set_states
from muster_training.parts import RANDOM, Copied, Part, part_of, random_parts
from muster_training.protection import Protection
from muster_training.session import checkpoint, current, environment, notify, phase, report, should_save, should_stop

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
        self._protection: Protection | None = None
        self._kept: dict[str, Any] = {}

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
            self._resume(trainer, Path(trainer.ckpt_path).parent / _random_file(trainer.global_rank))
        self._protection = Protection("lightning_callback", current(), _parts(trainer), functools.partial(self._save_alone, trainer))
        self._protection.begin(self._step)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self._step:  # the gradients of several batches are accumulated for one step
            return
        step = self._step = trainer.global_step
        self._finish(trainer)
        report(step=step, total=self._total, loss=outputs.get("loss") if isinstance(outputs, Mapping) else outputs)
        stop = should_stop()
        if stop or step % self._every == 0 or step == self._total or should_save():
            self._save(trainer)
        if stop:
            self._stop(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._saved != self._step:
            self._save(trainer)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Marks a validation that is due at this step as begun. A resumed run then does it first; otherwise Lightning leaves it out."""
        if self._saving and _is_validation_due(trainer):
            _mark_validation(checkpoint["loops"]["fit_loop"])

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._protection:
            self._protection.fail(exception)

    def _finish(self, trainer: Trainer) -> None:
        """Keeps what a rescue saves of this step, apart from weights and moments, which stay until the next step of the optimizer."""
        if self._protection is None or not _is_replicated(trainer):
            return
        is_due = _is_validation_due(trainer)
        loops = copy.deepcopy(trainer.fit_loop.state_dict())
        if is_due:
            _mark_validation(loops)
        self._kept = {
            "epoch": trainer.current_epoch,
            "global_step": self._step,
            "loops": loops,
            "callbacks": copy.deepcopy(call._call_callbacks_state_dict(trainer)) if is_due else None,
            "lr_schedulers": copy.deepcopy([config.scheduler.state_dict() for config in trainer.lr_scheduler_configs]),
            "groups": [copy.deepcopy(_settings(optimizer)) for optimizer in trainer.optimizers],
            "random": self._random_states(trainer),
        }
        self._protection.finish(self._step)
        self._protection.follow()

    def _save_alone(self, trainer: Trainer, folder: Path, states: Mapping[str, object]) -> None:
        """Writes the checkpoint of the last step that is finished, without a collective."""
        kept = self._kept
        checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        checkpoint |= {name: kept[name] for name in ("epoch", "global_step", "lr_schedulers")}
        checkpoint["loops"]["fit_loop"] = kept["loops"]
        if kept["callbacks"] is not None:
            checkpoint["callbacks"] = kept["callbacks"]
        for state, groups in zip(checkpoint["optimizer_states"], kept["groups"], strict=True):
            for group, settings in zip(state["param_groups"], groups, strict=True):
                group |= settings
        torch.save(checkpoint, folder / FILE)
        for rank in range(trainer.world_size):
            torch.save(kept["random"], folder / _random_file(rank))

    def _stop(self, trainer: Any) -> None:
        """Ends the training. The resumed run does what is due at the end of a validation or epoch, which may take longer than the grace."""
        trainer.should_stop = True
        trainer.limit_val_batches = 0
        trainer.callbacks = [each for each in trainer.callbacks if not isinstance(each, Checkpoint | EarlyStopping)]

    def _save(self, trainer: Trainer) -> None:
        self._saving = True
        began = time.monotonic()
        with checkpoint(self._step, shared=self._shared) as folder:
            trainer.save_checkpoint(Path(folder) / FILE)
            torch.save(self._random_states(trainer), Path(folder) / _random_file(trainer.global_rank))
        self._saving = False
        self._saved = self._step
        if self._protection and _is_replicated(trainer):
            self._protection.follow(time.monotonic() - began)

    def _random_states(self, trainer: Trainer) -> dict[str, States]:
        loaders = _loaders(trainer)
        return {EPOCH: loaders.muster_states, NOW: read_states(_generators(loaders))}

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


def _random_file(rank: int) -> str:
    return f"random-{rank}.pt"


def _is_replicated(trainer: Trainer) -> bool:
    """Whether each rank has the whole state. An optimizer with `consolidate_state_dict` divides its state among the ranks."""
    return isinstance(trainer.strategy, DDPStrategy) and not any(hasattr(each, "consolidate_state_dict") for each in trainer.optimizers)


def _parts(trainer: Trainer) -> list[Part]:
    """What must be the same on all ranks, so that one of them can save it for all."""
    if not _is_replicated(trainer):
        return []
    optimizers = [part_of(f"optimizer {number}", each) for number, each in enumerate(trainer.optimizers)]
    loaders = Copied(f"{RANDOM}loaders", lambda: [each.get_state() for each in _generators(_loaders(trainer))], lambda _: None)
    return [part_of("model", trainer.lightning_module), *optimizers, *random_parts(), loaders]


def _settings(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The settings of each group of parameters, such as the learning rate."""
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def _is_validation_due(trainer: Trainer) -> bool:
    loop = trainer.fit_loop
    return bool(trainer.training and loop._data_fetcher and loop.epoch_loop._should_check_val_fx(loop._data_fetcher))


def _mark_validation(loops: dict[str, Any]) -> None:
    for each in _TRACKED:
        batches = loops["epoch_loop.batch_progress"][each]
        batches["completed"] = batches["processed"]
        loops["epoch_loop.val_loop.batch_progress"][each] |= {"ready": 1, "started": 1, "processed": 0, "completed": 0}
