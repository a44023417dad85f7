"""Registered state: a program names its objects, and Muster restores and saves them. A rank that loses its peers saves its last step."""

from __future__ import annotations

import functools
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import SupportsFloat

from muster_contract.environment import RESCUE_SECONDS
from muster_contract.errors import PeerLost, UserError
from muster_contract.events import Activity, Registered, WholeState
from muster_contract.trainer_spec import CheckpointSpec
from muster_trainer.checkpoint import files
from muster_trainer.training.agreement import agree, gather
from muster_trainer.training.interval import SaveInterval
from muster_training import trees
from muster_training.parts import RANDOM, Changed, Part, part_of, random_parts
from muster_training.saves import Checkpoint
from muster_training.session import Session, current
from muster_training.trees import Packed

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]
SHARED = "state.muster"
LONGEST_LINE = 1000  # characters of an error that are searched for the loss of a peer


def register(**objects: object) -> State:
    """Registers the state of the program, and restores the newest checkpoint. Call it on every rank, once, before the first step.

    An object of PyTorch is a module (also in DDP), an optimizer, or a generator. Every other object has `state_dict()` and
    `load_state_dict()`, such as a scheduler, a scaler, or a loader, or is a pair of functions `(save, restore)`. `save` is called after
    each step, so the state of such an object should be small. The default random generators of Python, NumPy and PyTorch are registered
    too.

    Raises UserError if an object cannot be saved, or differs from the checkpoint after it was restored, and as `latest` does.
    """
    if not objects:
        raise UserError("register: name the objects that training changes, such as register(model=model, optimizer=optimizer)")
    session = current()
    parts = [part_of(name, each) for name, each in objects.items()]
    state = State(session, [*parts, *random_parts()])
    if newest := session.latest():
        state.restore(newest)
    state.begin()
    return state


class State:
    """The registered state of one process. `step` is the number of steps that are finished."""

    def __init__(self, session: Session, parts: list[Part]) -> None:
        self.step = 0
        self._session, self._parts = session, parts
        self._saved: int | None = None
        self._save_seconds = 0.0
        self._agreed = False
        self._interval: SaveInterval | None = None
        self._save_began = time.monotonic()
        self._first: dict[str, str] = {}
        self._own: frozenset[str] = frozenset()
        """The names of the objects whose states differ between the ranks."""
        self._process = os.getpid()
        self._peer_lost = session.replica.trainer_spec.strategy.framework.peer_lost if session.replica else ()

    def finish_step(
        self, *, total: int | None = None, loss: SupportsFloat | None = None, samples: int | None = None, **metrics: SupportsFloat
    ) -> bool:
        """Finishes a step: reports it, and saves if a save is due. Call it on every rank, after the optimizer and everything else that
        changes the state. The arguments are those of `report`. Returns whether the program must end now: after the last step, and after
        a request to stop.

        Raises as `checkpoint` and `should_stop` do.
        """
        self.step += 1
        for part in self._parts:
            part.keep()
        session = self._session
        session.report(step=self.step, total=total, loss=loss, samples=samples, metrics=metrics)
        if not self._agreed:
            self._agree()
        is_last = total is not None and self.step >= total
        stops = session.should_stop()
        if stops or is_last or self._is_due():
            self._save()
        return stops or is_last

    def restore(self, newest: Checkpoint) -> None:
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
        self.step = self._saved = newest.step

    def _read(self, newest: Checkpoint) -> Iterator[tuple[str, tuple[Packed, str]]]:
        own = newest / _own_file(self._session.environment.rank)
        with files.storage(newest.folder):
            if not (newest / SHARED).is_file():
                raise UserError(f"register: the checkpoint of step {newest.step} has no registered state; read it with latest() instead")
            yield from trees.read(newest / SHARED).items()
            if own.is_file():
                yield from trees.read(own).items()

    def begin(self) -> None:
        """Prepares for the first step."""
        self._session.sender.send(Registered())
        self._session.phase(Activity.TRAINING)
        self._first = {part.name: part.now().digest for part in self._parts if part.name.startswith(RANDOM)}
        if spec := self._spec:
            replica = self._session.replica
            assert replica is not None
            self._interval = SaveInterval(spec, job_created=replica.job_created, failures=replica.attempt)

    @property
    def _spec(self) -> CheckpointSpec | None:
        return self._session.replica.trainer_spec.checkpoint if self._session.replica else None

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
        if self._session.saves is None or self.step == self._saved:
            return
        self._save_began = time.monotonic()
        states = self._kept()
        self._compare(states)
        with self._session.checkpoint(self.step, shared=False) as folder:
            self._write(folder, states)
        self._saved, self._save_seconds = self.step, time.monotonic() - self._save_began
        if self._interval:
            self._interval.measure(seconds=self._save_seconds, blocked=self._save_seconds)

    def _kept(self) -> dict[str, Packed]:
        return {part.name: part.kept() for part in self._parts}

    def _compare(self, states: dict[str, Packed]) -> None:
        """Finds out which states differ between the ranks. Every rank calls it."""
        digests = {name: each.digest for name, each in states.items()}
        of_ranks = gather(self._session.ranks, lambda: digests)
        if any(each.keys() != digests.keys() for each in of_ranks):
            raise UserError("register: the ranks have registered objects of different names; register the same names on every rank")
        self._own = frozenset(name for name in digests if any(each[name] != digests[name] for each in of_ranks))

    def _write(self, folder: Path, states: dict[str, Packed]) -> None:
        rank = self._session.environment.rank
        with files.storage(folder):
            if rank == 0:
                trees.write(folder / SHARED, {name: each for name, each in states.items() if name not in self._own})
            if own := {name: each for name, each in states.items() if name in self._own}:
                trees.write(folder / _own_file(rank), own)

    # the loss of a peer

    def _agree(self) -> None:
        """After the first step of an attempt, finds out whether each rank has the whole state, and what the program has not registered."""
        self._agreed = True
        session = self._session
        if session.replica is None or session.saves is None:
            return
        if "torch" in sys.modules:
            from muster_training import tensors

            if found := tensors.uncovered(self._parts):
                session.notify_once(f"register: not registered, so neither saved nor restored: {', '.join(found)}")
        states = self._kept()
        self._compare(states)
        if session.environment.world == 1 or not session.environment.in_world:
            return
        if needed := self._needed(states):
            session.notify_once(
                f"register: {', '.join(needed)} differ between the ranks, so a lost process costs the steps since the last save; give all "
                "ranks the same state to lose none"
            )
            return
        session.sender.send(WholeState())
        sys.excepthook = functools.partial(self._failed, sys.excepthook)

    def _needed(self, states: dict[str, Packed]) -> list[str]:
        """The objects that differ between the ranks, apart from random generators that the program does not use."""
        return sorted(name for name in self._own if self._first.get(name) != states[name].digest)

    def _failed(self, before: Hook, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """The hook for an error that ends the program."""
        if os.getpid() == self._process and is_about_peer(error, self._peer_lost):
            self._rescue()
        before(kind, error, trace)

    def _rescue(self) -> None:
        if self.step == self._saved or self._save_seconds > RESCUE_SECONDS:
            return
        try:
            states = self._kept()
        except Changed as changed:
            self._session.rescue_failed(f"{changed} has changed since step {self.step}; call finish_step right after the optimizer's step")
            return
        if needed := self._needed(states):
            self._session.rescue_failed(f"{', '.join(needed)} may differ between the ranks since the last save")
            return
        mine = {name: each for name, each in states.items() if name not in self._own}
        self._session.rescue(self.step, lambda folder: trees.write(folder / SHARED, mine), seconds=self._save_seconds)


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


def is_about_peer(error: BaseException, patterns: tuple[str, ...]) -> bool:
    """Whether an error, or one that it comes from, says that a peer is lost."""
    seen: BaseException | None = error
    for _ in range(10):
        if seen is None:
            return False
        text = f"{type(seen).__module__}.{type(seen).__qualname__}: {seen}"
        if isinstance(seen, PeerLost) or any(re.search(each, line[:LONGEST_LINE]) for each in patterns for line in text.splitlines()):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
