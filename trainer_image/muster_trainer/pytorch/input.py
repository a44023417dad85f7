"""Reading the samples of coming steps ahead: torch's DataLoader, told step by step what to read."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset

from muster_trainer.contract import InputSpec, TrainerError, UserError, error_of
from muster_trainer.data.files import workers_for
from muster_trainer.parent import die_with
from muster_trainer.pytorch.seeds import seed_all
from muster_trainer.tasks.batches import read_batch
from muster_trainer.tasks.module import Task

PREFETCH = 2  # batches ahead by each worker, torch's own default

Request = tuple[int, np.ndarray]
"""A step (or another number that random numbers are seeded from), and the samples to read for it."""


def batches_of(task: Task, data: Any, requests: Iterable[Request], *, spec: InputSpec, position: int, pinned: bool) -> Iterator[Any]:
    """For each request its samples as one batch of CPU tensors, in the order of requests: whatever the number of workers the same.

    Worker processes are started before this returns, and end with the iterator or with this process. Raises what reading raises.
    """
    workers = workers_for(data, spec, automatic=min(2, os.cpu_count() or 1))
    if workers == 0:
        return read_in_line(task, data, requests, position=position)
    loader = DataLoader(
        _Reader(task, data, position),
        batch_size=None,
        sampler=requests,
        num_workers=workers,
        prefetch_factor=spec.prefetch or PREFETCH,
        pin_memory=pinned,
        multiprocessing_context="fork",  # data sets need not be picklable
        worker_init_fn=_in_worker(os.getpid()),
    )
    before = signal.getsignal(signal.SIGCHLD)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads; a worker needs no lock that one may hold
        answers = iter(loader)
    signal.signal(signal.SIGCHLD, before)  # torch's handler raises wherever the program is; that a worker is gone shows in `next` too
    return watched(answers)


def read_in_line(task: Task, data: Any, requests: Iterable[Request], *, position: int) -> Iterator[Any]:
    """The same, each batch when it is asked for."""
    reader = _Reader(task, data, position)
    return (_unpacked(reader[request]) for request in requests)


class _Reader(Dataset[Any]):
    """Reads a request, with random numbers that are a function of (seed, step, position). A failure is an answer too: torch
    would put a traceback round it."""

    def __init__(self, task: Task, data: Any, position: int) -> None:
        self.task, self.data, self.position = task, data, position

    def __getitem__(self, request: Request) -> Any:
        step, samples = request
        seed_all(self.task.config.seed, step, self.position)
        try:
            return pytree.tree_map(torch.as_tensor, read_batch(self.task, self.data, samples))
        except TrainerError as error:
            return int(error.code), str(error)


class Coming:
    """The batches of the steps to come. What one rank cannot read ends all of them, with one message.

    For that all ranks must meet before each step. `read` reads for the step after the one that ends, so that they can do it where they meet
    anyway: what it gives is added up over the ranks, and the sum goes to `heard`. Where that was not done, `take` meets them.
    """

    def __init__(self, batches: Iterator[Any], device: torch.device) -> None:
        self.batches, self._device = batches, device
        self._batch: Any = None
        self._failure: TrainerError | None = None
        self._failed: bool | None = None
        self._longest = self._own = 0.0

    def read(self) -> list[float]:
        """How many have failed to read, and how many seconds each rank waited: this rank's part of both. After the last batch nothing is
        read."""
        began = time.monotonic()
        try:
            self._batch, self._failure = next(self.batches, None), None
        except TrainerError as error:
            self._failure = error
        seconds = time.monotonic() - began
        self._own += seconds
        waits = [0.0] * dist.get_world_size()
        waits[dist.get_rank()] = seconds
        return [float(self._failure is not None), *waits]

    def heard(self, said: list[float]) -> None:
        """The sum of what `read` has given on every rank."""
        failures, *waits = said
        self._failed = failures > 0
        self._longest += max(waits)

    def take(self) -> Any:
        """The next batch."""
        if self._failed is None:
            said = torch.tensor(self.read(), dtype=torch.float64, device=self._device)
            if dist.get_world_size() > 1:
                dist.all_reduce(said)
            self.heard(said.tolist())
        failed, self._failed = self._failed, None
        if failed:
            raise _first(self._failure)
        return self._batch

    def waits(self) -> tuple[float, float]:
        """Seconds since this was last asked: the longest that a rank waited for its batches, and what this one did."""
        waits = self._longest, self._own
        self._longest = self._own = 0.0
        return waits


def _first(failure: TrainerError | None) -> TrainerError:
    """The failure of the first rank that has one."""
    said: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(said, failure and (int(failure.code), str(failure)))
    return error_of(*next(one for one in said if one))


def _unpacked(answer: Any) -> Any:
    if isinstance(answer[0], int):
        raise error_of(*answer)
    return answer


def watched(answers: Iterator[Any]) -> Iterator[Any]:
    """The batches of a data loader. Raises UserError where a process that reads them is gone, and what it could not read."""
    try:
        for answer in answers:
            yield _unpacked(answer)
    except (RuntimeError, ConnectionError, FileNotFoundError, EOFError) as error:
        if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
            raise
        said = " ".join((str(error) or type(error).__name__).split())[:300]  # the others: it ended while a batch was handed over
        raise UserError(
            f"a process that reads samples ended by itself: {said}. Where memory ran out, write fewer "
            "spec.trainer.input.workers, or more resources.limits.memory; 0 workers read within the training process"
        ) from error


def _in_worker(parent: int) -> Callable[[int], None]:
    """A worker leaves signals to its parent, which may need some more batches before it has saved, and dies with it."""

    def prepare(_worker: int) -> None:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        die_with(parent)

    return prepare
