"""The functions of `muster_training`, and the state of the process between their calls."""

from __future__ import annotations

import atexit
import functools
import math
import operator
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, SupportsFloat

from muster_contract.errors import TrainerError, UserError
from muster_contract.events import (
    MAX_ENTRIES,
    Activity,
    Commit,
    CommitReason,
    ErrorEvent,
    Evaluation,
    HandlesStop,
    NoticeEvent,
    Pace,
    PhaseEvent,
    Step,
)
from muster_contract.notices import NoticeReason
from muster_contract.reports import NodeNotice
from muster_contract.text import text_of
from muster_trainer.host import node_notice
from muster_trainer.host.node_notice import NewNotices
from muster_trainer.host.ranks import Alone, Ranks, meet
from muster_trainer.training.resume_point import ResumePoint
from muster_training.copies import copy_share
from muster_training.place import Environment, environment_of, replica_of
from muster_training.saves import NO_STORAGE, Checkpoint, Saved, Saves
from muster_training.sender import Sender

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]
PACE_SECONDS = 1.0
"""The time between two reports of ranks other than 0."""


def report(
    *, step: int, total: int | None = None, loss: SupportsFloat | None = None, samples: int | None = None, **metrics: SupportsFloat
) -> None:
    """Reports progress. Call it on every rank after a step. The job's status shows the report of rank 0.

    `step` is the number of steps done, from 1, and `total` is the number of steps of the whole training. `loss` is the loss of the step.
    `samples` is the number of samples since the previous report, over all ranks. Muster computes samples per second from it. `metrics` are
    further figures of the model, such as an accuracy. The call does not wait for other ranks. A figure that is not a number is left out.

    Raises UserError if `step` or `total` is not a whole number of 0 or more.
    """
    whole = None if total is None else _whole("total", total)
    current().report(step=_whole("step", step), total=whole, loss=loss, samples=samples, metrics=metrics)


def should_stop() -> bool:
    """Returns whether to save and end now. Call it once per step on every rank. All ranks get the same result from the same call.

    It returns True after any replica of the world was asked to stop, and from then on. After the first call, SIGTERM does not end the
    process. Outside Muster it returns False, and the handling of SIGTERM does not change.

    Raises PeerLost if rank 0 is gone.
    """
    return current().should_stop()


def should_save() -> bool:
    """Returns whether to save now and go on, because a node of the job goes. Call it after `should_stop`, on every rank.

    It returns True once for each notice, on all ranks after the same call of `should_stop`. Outside Muster it returns False.
    """
    return current().should_save()


def notice() -> NodeNotice | None:
    """Returns the notice that a node of the job goes, or takes no new pods. None without one. Ranks may see it at different steps.

    It has `node`, `signal`, `goes`, and the Unix times `since` and `goes_at`; `goes_at` is None if it is unknown. To save because of a
    notice, use `should_save`.
    """
    replica = current().replica
    return None if replica is None else node_notice.read(replica.state_dir)


@contextmanager
def checkpoint(step: int, *, shared: bool = False) -> Iterator[Path]:
    """A context manager that gives each rank an empty folder, and saves the files of all ranks as one checkpoint of `step`.

    `step` is the number of steps done. Every rank calls it at the same step. If all ranks have the same content, such as the weights in
    data parallel training, write it on rank 0 only. Put the rank into the names of other files. The checkpoint is committed at the end
    of the block. If the block raises an exception on any rank, nothing is saved, and all ranks raise. If the job has no storage, and
    outside Muster, the files are removed at the end.

    With `shared`, all ranks get the same folder, as Orbax and the sharded checkpoints of PyTorch need it. All ranks must then be on one
    machine, or every node must mount the storage. An object store is not possible.

    Raises StorageUnavailable, PeerLost (also if a newer attempt has started), and UserError for files that cannot be saved.
    """
    with current().checkpoint(_whole("step", step), shared) as folder:
        yield folder


def latest() -> Checkpoint | None:
    """Returns the newest valid checkpoint whose files all match their hashes, or None if there is none. Call it on every rank.

    Raises StorageUnavailable, PeerLost, and BadConfiguration if the bundled trainer wrote the checkpoint.
    """
    return current().latest()


def environment() -> Environment:
    """Returns the rank of this process, the size of its world, and the attempt."""
    return current().environment


def report_metrics(step: int, metrics: Mapping[str, object]) -> None:
    """Reports figures of the model at `step`, without the step itself. Their names may be any strings."""
    current().report_metrics(step, metrics)


def checkpoint_copy(step: int, source: Path, *, seconds: float) -> None:
    """Copies the files that a library has saved below `source` into a checkpoint of `step`. Every rank calls it after the library's save.

    `seconds` is the time that the library's save took. If the job has no storage, and outside Muster, nothing is copied.
    """
    current().checkpoint_copy(step, source, seconds)


def phase(activity: Activity) -> None:
    """Reports the activity that this process begins now."""
    current().phase(activity)


def resumed_from() -> Checkpoint | None:
    """The result of the last call of `latest`, which does not read the checkpoint again."""
    return current().found


def notify(message: str) -> None:
    """Shows `message` in the log and in the events of the job, once."""
    current().notify_once(message)


class Session:
    """The state of one process."""

    def __init__(self) -> None:
        replica = self.replica = replica_of(os.environ)
        self.environment = environment_of(os.environ, replica)
        self.sender = Sender(os.environ, self.environment.rank)
        self._process = os.getpid()
        self._calls = 0
        self._requested = False
        self._listens = False
        self._stopping = False
        decides = self.environment.in_world and self.environment.rank == 0
        self._notices = NewNotices(replica.state_dir) if replica is not None and decides else None
        self._total: int | None = None
        self._resumed = False
        self._resume_point: ResumePoint | None = None
        self.found: Checkpoint | None = None
        self._reported = -math.inf
        self.before_end: list[Callable[[BaseException], None]] = []
        """Called with an exception that ends the program, before that is reported."""
        if replica is not None:
            sys.excepthook = functools.partial(self._ends, sys.excepthook)
        self._last: tuple[int, float] | None = None

    @functools.cached_property
    def ranks(self) -> Ranks:
        """The ranks of the world. The first access connects them."""
        place = self.environment
        if self.replica is None or not place.in_world:
            return Alone()
        generation = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
        ranks = meet(self.replica, rank=place.rank, world=place.world, generation=generation)
        atexit.register(self._leave, ranks)
        return ranks

    @functools.cached_property
    def saves(self) -> Saves | None:
        """The checkpoints of the job; None if it has no storage."""
        spec = self.replica.trainer_spec.checkpoint if self.replica else None
        if self.replica is None or spec is None:
            return None
        saves = Saves(self.replica, spec, self.ranks, self.environment.world)
        atexit.register(self._close, saves)
        return saves

    def _ends(self, before: Hook, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """The hook for an exception that ends the program. One of this library has an exit code, which a traceback does not have."""
        if os.getpid() == self._process:
            for save in self.before_end:
                save(error)
            if isinstance(error, TrainerError):
                self.sender.send(ErrorEvent(code=int(error.code), reason=error.reason, message=str(error)))
        before(kind, error, trace)

    def _leave(self, ranks: Ranks) -> None:
        if os.getpid() == self._process:
            ranks.leave()

    def _close(self, saves: Saves) -> None:
        if os.getpid() == self._process:
            saves.close()

    # progress

    def report(self, *, step: int, total: int | None, loss: Any, samples: Any, metrics: Mapping[str, Any]) -> None:
        if self.replica is None:
            return
        self._total = total if total is not None else self._total
        now = time.monotonic()
        if self.environment.rank != 0 or not self.environment.in_world:
            if now - self._reported >= PACE_SECONDS:
                self._reported = now
                self.sender.send(Pace(step=step))
            return
        self._resume(step)
        value = _number(loss)
        count = samples if isinstance(samples, int) and samples >= 0 else 0
        seconds = now - self._last[1] if self._last and count else 0.0
        self._last = (step, now)
        self.sender.send(
            Step(
                step=step,
                total_steps=self._total,
                loss=None if value is None else str(value),
                loss_hex=None if value is None else value.hex(),
                samples=count,
                seconds=seconds,
            )
        )
        self.report_metrics(step, metrics)

    def report_metrics(self, step: int, metrics: Mapping[str, object]) -> None:
        if self.replica is None or self.environment.rank != 0 or not self.environment.in_world:
            return
        figures = {name: number for name, value in list(metrics.items())[:MAX_ENTRIES] if (number := _number(value)) is not None}
        if finite := {name: number for name, number in figures.items() if math.isfinite(number)}:
            self.sender.send(Evaluation(step=step, metrics=finite))

    def _resume(self, step: int) -> None:
        """Reports once where this attempt begins. Its first step decides, because a program may ignore the latest checkpoint."""
        if self._resumed:
            return
        self._resumed = True
        point = self._resume_point
        if point is None:
            newest = self._newest()
            if newest is None:  # the program may have its own checkpoints, which Muster does not see
                return
            point = ResumePoint(step=newest, committed_step=newest)
        is_ignored = step <= point.step
        self.sender.send(replace(point.event(), step=0, path=None) if is_ignored else point.event())

    def _newest(self) -> int | None:
        """The step of the newest commit, also if the program has not called `latest`."""
        with suppress(TrainerError):
            return self.saves.newest() if self.saves else None
        return None

    # stopping

    def should_stop(self) -> bool:
        if self.replica is None:
            return False
        if not self._listens:
            self._listen()
        self._calls += 1
        is_announced = self._notices is not None and self._notices.has_come()
        if not self._stopping and self.ranks.stops(self._calls, self._requested, save=is_announced):
            self._stopping = True
            self.sender.send(PhaseEvent(phase=Activity.STOPPING))
        return self._stopping

    def should_save(self) -> bool:
        return self._listens and not self._stopping and self.ranks.saves

    def _listen(self) -> None:
        """Installs a handler of SIGTERM. It also calls the program's handler, if there is one."""
        self._listens = True
        if threading.current_thread() is not threading.main_thread():
            self._complain("should_stop() was first called outside the main thread, so this process cannot notice SIGTERM")
            return
        before = signal.getsignal(signal.SIGTERM)

        def requested(number: int, frame: FrameType | None) -> None:
            if os.getpid() != self._process:  # a forked helper has inherited this handler, but its own end is not a stop of the training
                signal.signal(number, signal.SIG_DFL if before is None else before)
                signal.raise_signal(number)
                return
            self._requested = True
            if callable(before):
                before(number, frame)

        signal.signal(signal.SIGTERM, requested)
        self.sender.send(HandlesStop(pid=self._process))

    # checkpoints

    def latest(self) -> Checkpoint | None:
        if self.saves is None:
            return None
        if self._resume_point is None:
            self.phase(Activity.RESTORING)
        point = self._resume_point = self.saves.resume_point()
        if self.environment.rank == 0:
            for message in point.warnings:
                self.sender.send(NoticeEvent(reason=NoticeReason.CHECKPOINT_DAMAGED, message=message))
                self._complain(message)
        self.found = self.saves.read(point)
        self.phase(Activity.TRAINING)
        return self.found

    def checkpoint_copy(self, step: int, source: Path, seconds: float) -> None:
        if self.saves is not None:
            with self.checkpoint(step, shared=False, earlier=seconds) as folder:
                copy_share(self.ranks, source, folder)
        elif self.replica is not None:
            self.notify_once(NO_STORAGE)

    @contextmanager
    def checkpoint(self, step: int, shared: bool, *, earlier: float = 0.0) -> Iterator[Path]:
        """`earlier` is the time in seconds that the save has taken before this call."""
        if self.saves is None:
            with self._without_storage(self.ranks if shared else Alone()) as folder:
                yield folder
            return
        if self._resume_point is None:
            self._resume_point = self.saves.resume_point()
        if self.environment.rank == 0:
            self._resume(step + 1)  # before its first step, a program that must stop saves at the step that it resumed at
        is_last = self._total is not None and step >= self._total
        reason = CommitReason.STOP if self._stopping else CommitReason.FINAL if is_last else CommitReason.PERIODIC
        saved: list[Saved] = []
        self.phase(Activity.SAVING)
        with self.saves.write(step, reason, saved, shared=shared) as folder:
            yield folder
        self._committed(step, reason, replace(saved[0], seconds=saved[0].seconds + earlier))
        self.phase(Activity.TRAINING)

    def _committed(self, step: int, reason: CommitReason, saved: Saved) -> None:
        if self.environment.rank == 0:
            commit = Commit(step=step, path=saved.name, bytes=saved.bytes, reason=reason)
            commit = replace(commit, seconds=saved.seconds, blocked_seconds=saved.seconds)
            self.sender.send(commit)
        elif reason is not CommitReason.PERIODIC:
            # The supervisors of other ranks need the reason too: it shows that their processes end because all is saved.
            self.sender.send_document({"event": Commit.event, "reason": reason})

    def rescue(self, step: int, write: Callable[[Path], None], *, seconds: float) -> None:
        """Saves `step` by this rank alone, because its peers are gone. An error does not hide that of the program."""
        if self.saves is None:
            return
        if self.environment.rank:
            self.sender.send(Step(step=step, total_steps=self._total))  # rank 0 may have ended before it could report this step
        self.phase(Activity.STOPPING)
        try:
            saved = self.saves.rescue(step, write, seconds=seconds)
        except Exception as error:  # noqa: BLE001 (the program ends because of the lost peers)
            self.rescue_failed(f"step {step} could not be saved: {text_of(error)}")
            return
        if saved is not None:
            commit = Commit(step=step, path=saved.name, bytes=saved.bytes, reason=CommitReason.PEER_LOST)
            self.sender.send(replace(commit, seconds=saved.seconds, blocked_seconds=saved.seconds))

    def rescue_failed(self, message: str) -> None:
        self.sender.send(NoticeEvent(reason=NoticeReason.RESCUE_FAILED, message=f"the peers are gone, and {message}"))

    @contextmanager
    def _without_storage(self, together: Ranks) -> Iterator[Path]:
        """A temporary folder that these ranks share. It is removed when all have written."""
        if self.replica is not None:
            self.notify_once(NO_STORAGE)
        folder = together.broadcast(tempfile.mkdtemp(prefix="muster-save-") if together.rank == 0 else "")
        try:
            yield Path(folder)
            together.broadcast("")  # all ranks have written
        finally:
            if together.rank == 0:
                shutil.rmtree(folder, ignore_errors=True)

    @functools.cache  # noqa: B019 (the session lives as long as the process)
    def notify_once(self, message: str) -> None:
        self.sender.send(NoticeEvent(message=message))
        self._complain(message)

    def phase(self, activity: Activity) -> None:
        """Reports the activity that this rank begins now. During a stop it reports nothing, because `Stopping` is its activity."""
        if not self._stopping:
            self.sender.send(PhaseEvent(phase=activity))

    def _complain(self, message: str) -> None:
        if self.environment.rank == 0:
            print(f"muster: {message}", file=sys.stderr, flush=True)


@functools.cache
def current() -> Session:
    """The session of this process."""
    return Session()


def _whole(name: str, value: object) -> int:
    """`value` as an int, if it is of any integer type. Raises UserError otherwise."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise UserError(f"{name}: {value!r:.100} is not a whole number") from None
    if not 0 <= number < 10**15:
        raise UserError(f"{name}: {number} is not from 0 to 10^15")
    return number


def _number(value: object) -> float | None:
    """`value` as a float; None if it cannot be converted."""
    try:
        return None if value is None else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
