"""Registered state: a program names its objects, and Muster restores and saves them."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import SupportsFloat

from muster_contract.errors import UserError
from muster_contract.events import Activity
from muster_contract.trainer_spec import CheckpointSpec
from muster_trainer.checkpoint import files
from muster_trainer.training.agreement import agree
from muster_trainer.training.interval import SaveInterval
from muster_training import trees
from muster_training.parts import RANDOM, Part, parts_of, random_parts
from muster_training.protection import Protection
from muster_training.saves import Checkpoint
from muster_training.session import Session, current
from muster_training.trees import Packed

SHARED = "state.muster"


def register(**objects: object) -> State:
    """Registers the state of the program, and restores the newest checkpoint. Call it on every rank, once, before the first step.

    An object of PyTorch is a module (also in DDP), an optimizer, or a generator. An `Accelerator` stands for all that it has prepared, and
    for what its `register_for_checkpointing` got. Every other object has `state_dict()` and
    `load_state_dict()`, such as a scheduler, a scaler, or a loader, or is a pair of functions `(save, restore)`. `save` is called after
    each step, so the state of such an object should be small. The default random generators of Python, NumPy and PyTorch are registered
    too.

    Raises UserError if an object cannot be saved, or differs from the checkpoint after it was restored, and as `latest` does.
    """
    if not objects:
        raise UserError("register: name the objects that training changes, such as register(model=model, optimizer=optimizer)")
    session = current()
    parts = [part for name, each in objects.items() for part in parts_of(name, each)]
    state = State(session, [*parts, *random_parts()])
    state.begin(session.latest())
    return state


class State:
    """The registered state of one process. `step` is the number of steps that are finished."""

    def __init__(self, session: Session, parts: list[Part]) -> None:
        self._session, self._parts = session, parts
        self._protection = Protection("register", session, parts, lambda folder, states: trees.write(folder / SHARED, states))
        self._is_first = True
        self._interval: SaveInterval | None = None
        self._save_began = time.monotonic()

    @property
    def step(self) -> int:
        return self._protection.step

    def finish_step(
        self, *, total: int | None = None, loss: SupportsFloat | None = None, samples: int | None = None, **metrics: SupportsFloat
    ) -> bool:
        """Finishes a step: reports it, and saves if a save is due, also because a node of the job goes. Call it on every rank, after the
        optimizer and everything else that changes the state. The arguments are those of `report`. Returns whether the program must end
        now: after the last step, and after a request to stop.

        Raises as `checkpoint` and `should_stop` do.
        """
        self._protection.finish(self.step + 1)
        session = self._session
        session.report(step=self.step, total=total, loss=loss, samples=samples, metrics=metrics)
        if self._is_first:
            self._is_first = False
            self._name_the_uncovered()
            self._protection.arm()
        is_last = total is not None and self.step >= total
        stops = session.should_stop()
        if stops or is_last or self._session.should_save() or self._is_due():
            self._save()
        return stops or is_last

    def begin(self, newest: Checkpoint | None) -> None:
        """Restores the newest checkpoint, and prepares for the first step after it. Raises UserError."""
        if newest:
            self._restore(newest)
        self._protection.begin(newest.step if newest else 0)
        atexit.register(self._end, os.getpid())
        self._session.phase(Activity.TRAINING)
        if spec := self._spec:
            replica = self._session.replica
            assert replica is not None
            self._interval = SaveInterval(spec, job_created=replica.job_created, failures=replica.attempt)

    def _end(self, process: int) -> None:
        """Names the steps that a program loses because it ends, for example by `sys.exit`, without an error and before its last step."""
        if os.getpid() == process and self._session.saves and not self._protection.is_saved and not hasattr(sys, "last_value"):
            self._session.notify_once(
                f"register: the program ended after step {self.step}, which is not saved; give finish_step the number of all steps "
                "(total=), and end when it returns True"
            )

    def _restore(self, newest: Checkpoint) -> None:
        """Restores a checkpoint, and compares the checksums of all objects. Raises UserError."""
        saved = dict(self._read(newest))
        parts = {part.name: part for part in self._parts}
        if missing := [name for name in parts if name not in saved and not name.startswith(RANDOM)]:
            names = ", ".join(name for name in saved if not name.startswith(RANDOM)) or "nothing"
            raise UserError(f"register: the checkpoint of step {newest.step} has no {', '.join(missing)}, but {names}")
        if unknown := [name for name in saved if name not in parts and not name.startswith(RANDOM)]:
            self._session.notify_once(f"register: the checkpoint also has {', '.join(unknown)}, which is not registered and not restored")
        for name, part in parts.items():
            if name in saved:
                _restore(part, *saved[name], step=newest.step)

    def _read(self, newest: Checkpoint) -> Iterator[tuple[str, tuple[Packed, str]]]:
        own = newest / _own_file(self._session.environment.rank)
        with files.storage(newest.folder):
            if not (newest / SHARED).is_file():
                raise UserError(f"register: the checkpoint of step {newest.step} has no registered state; read it with latest() instead")
            yield from trees.read(newest / SHARED).items()
            if own.is_file():
                yield from trees.read(own).items()

    @property
    def _spec(self) -> CheckpointSpec | None:
        return self._session.replica.trainer_spec.checkpoint if self._session.replica else None

    def _name_the_uncovered(self) -> None:
        if "torch" in sys.modules and self._session.saves is not None:
            from muster_training import tensors

            if found := tensors.uncovered(self._parts):
                self._session.notify_once(f"register: not registered, so neither saved nor restored: {', '.join(found)}")

    # saves

    def _is_due(self) -> bool:
        """Whether a save is due after this step, the same on all ranks."""
        spec, interval = self._spec, self._interval
        if spec is None or interval is None or self._session.saves is None:
            return False
        if spec.every_steps is not None and self.step % spec.every_steps == 0:
            return True
        if interval.seconds is None:
            return False
        seconds = interval.seconds
        return agree(self._session.ranks, lambda: time.monotonic() - self._save_began >= seconds)

    def _save(self) -> None:
        if self._session.saves is None or self._protection.is_saved:
            return
        self._save_began = time.monotonic()
        states = self._protection.compare()
        with self._session.checkpoint(self.step, shared=False) as folder:
            self._write(folder, states)
        seconds = time.monotonic() - self._save_began
        self._protection.saved(seconds)
        if self._interval:
            self._interval.measure(seconds=seconds, blocked=seconds)

    def _write(self, folder: Path, states: dict[str, Packed]) -> None:
        rank, owned = self._session.environment.rank, self._protection.own
        with files.storage(folder):
            if rank == 0:
                trees.write(folder / SHARED, {name: each for name, each in states.items() if name not in owned})
            if own := {name: each for name, each in states.items() if name in owned}:
                trees.write(folder / _own_file(rank), own)


def _restore(part: Part, state: Packed, digest: str, *, step: int) -> None:
    try:
        part.restore(state)
    except Exception as error:
        raise UserError(f"register: the state of {part.name} at step {step} cannot be restored: {error}") from error
    if part.now().digest != digest:
        raise UserError(
            f"register: {part.name} has another state after it was restored than it had at step {step}, so the training would go on "
            "differently; its restore must set all that its save returns"
        )


def _own_file(rank: int) -> str:
    return f"state-of-rank-{rank}.muster"
