"""Reads the samples of the next steps ahead, with PyTorch's DataLoader."""

from __future__ import annotations

import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from muster_contract.errors import TrainerError, UserError, error_of
from muster_contract.trainer_spec import InputSpec
from muster_trainer.data.files import workers_for
from muster_trainer.host.parent import die_with
from muster_trainer.pytorch.compat import tree_map
from muster_trainer.pytorch.seeds import seed_all
from muster_trainer.tasks.batches import read_batch
from muster_trainer.tasks.module import Task

PREFETCH = 2  # batches that each worker reads ahead, the default of torch

Request = tuple[int, np.ndarray]
"""A step, and the samples to read for it. The step seeds random numbers. An evaluation has other numbers in its place."""


def batches_of(task: Task, data: Any, requests: Iterable[Request], *, spec: InputSpec, position: int, pinned: bool) -> Iterator[Any]:
    """The samples of each request as a batch of CPU tensors, in the order of the requests, whatever the number of workers.

    Worker processes start before this returns. They end with the iterator or with this process. Raises the errors of reading.
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
        warnings.simplefilter("ignore", DeprecationWarning)  # about forks beside threads: a worker needs no lock of another thread
        answers = iter(loader)
    signal.signal(signal.SIGCHLD, before)  # PyTorch's handler could raise at any place, and `next` reports a lost worker too
    return watched(answers)


def read_in_line(task: Task, data: Any, requests: Iterable[Request], *, position: int) -> Iterator[Any]:
    """The batches of `batches_of`, each read in this process when it is needed."""
    reader = _Reader(task, data, position)
    return (_unpacked(reader[request]) for request in requests)


class _Reader(Dataset[Any]):
    """Reads a request. Random numbers are a function of (seed, step, position). Returns a failure as (code, message), because the
    DataLoader would add a traceback to an exception."""

    def __init__(self, task: Task, data: Any, position: int) -> None:
        self.task, self.data, self.position = task, data, position

    def __getitem__(self, request: Request) -> Any:
        step, samples = request
        seed_all(self.task.config.seed, step, self.position)
        try:
            return tree_map(torch.as_tensor, read_batch(self.task, self.data, samples))
        except TrainerError as error:
            if error.__cause__ is not None:  # a worker's process cannot pass it on
                traceback.print_exception(error.__cause__)
            return int(error.code), str(error)


class InputStream:
    """The batches of the next steps. If a rank cannot read its samples, all ranks raise its error.

    So all ranks exchange the result of reading before each step. The engine can do this in the all-reduce at the end of the previous
    step: `read` returns numbers for the all-reduce, and `merge` gets their sums. Otherwise `take` makes an all-reduce of its own.
    """

    def __init__(self, batches: Iterator[Any], device: torch.device) -> None:
        self.batches, self._device = batches, device
        self._batch: Any = None
        self._failure: TrainerError | None = None
        self._has_failed: bool | None = None
        self._longest = self._own = 0.0

    def read(self) -> list[float]:
        """Reads the next batch, if there is one. Returns numbers to be summed over the ranks: failures, and the wait of each rank in
        seconds."""
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

    def merge(self, readings: list[float]) -> None:
        """Takes the sums over all ranks of what `read` returned."""
        failures, *waits = readings
        self._has_failed = failures > 0
        self._longest += max(waits)

    def take(self) -> Any:
        """The next batch."""
        if self._has_failed is None:
            readings = torch.tensor(self.read(), dtype=torch.float64, device=self._device)
            if dist.get_world_size() > 1:
                dist.all_reduce(readings)
            self.merge(readings.tolist())
        has_failed, self._has_failed = self._has_failed, None
        if has_failed:
            raise _first(self._failure)
        return self._batch

    def waits(self) -> tuple[float, float]:
        """The seconds of waiting for batches since the last call: the longest wait of any rank, and the wait of this rank."""
        waits = self._longest, self._own
        self._longest = self._own = 0.0
        return waits


def _first(failure: TrainerError | None) -> TrainerError:
    """Returns the failure of the lowest rank that has one, on every rank."""
    failures: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(failures, failure and (int(failure.code), str(failure)))
    return error_of(*next(one for one in failures if one))


def _unpacked(answer: Any) -> Any:
    if isinstance(answer[0], int):
        raise error_of(*answer)
    return answer


def watched(answers: Iterator[Any]) -> Iterator[Any]:
    """The batches of a data loader. Raises the error of reading, and UserError if a process that reads them is gone."""
    try:
        for answer in answers:
            yield _unpacked(answer)
    except (RuntimeError, ConnectionError, FileNotFoundError, EOFError) as error:
        if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
            raise
        reason = " ".join((str(error) or type(error).__name__).split())[:300]  # of any type, if it ended while it sent a batch
        raise UserError(
            f"a process that reads samples ended by itself: {reason}. If it ran out of memory, write fewer "
            "spec.trainer.input.workers, or more resources.limits.memory; 0 workers read within the training process"
        ) from error


def _in_worker(parent: int) -> Callable[[int], None]:
    """Makes a worker ignore signals, because its parent may need more batches before a save. The worker ends when its parent ends."""

    def prepare(_worker: int) -> None:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        die_with(parent)

    return prepare
