"""Reads the samples of the next steps ahead, in threads. Threads are enough, because disks and decoders do not hold the GIL."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from muster_contract.errors import TrainerError
from muster_contract.trainer_spec import InputSpec
from muster_trainer.data.files import workers_for
from muster_trainer.tasks.batches import read_batch
from muster_trainer.tasks.module import Task

PREFETCH = 2  # batches that each worker reads ahead


def batches_of(task: Task, data: Any, requests: Iterable[np.ndarray], *, spec: InputSpec) -> Iterator[Any]:
    """The samples of each request as a batch of arrays, in the order of the requests. Raises the errors of reading."""
    read = partial(read_batch, task, data)
    workers = workers_for(data, spec, automatic=min(2, os.cpu_count() or 1))
    if workers == 0:
        return map(read, requests)
    return _ahead(read, requests, workers=workers, batches=workers * (spec.prefetch or PREFETCH))


def _ahead(read: Callable[[np.ndarray], Any], requests: Iterable[np.ndarray], *, workers: int, batches: int) -> Iterator[Any]:
    coming: deque[Future[Any]] = deque()
    with ThreadPoolExecutor(workers, "read") as pool:
        for request in requests:
            coming.append(pool.submit(read, request))
            if len(coming) > batches:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()


class Coming:
    """The batch of the next step. It is read during the previous step, so that all ranks raise a failure of reading in the same step."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self.batch: Any = None
        self.failure: TrainerError | None = None
        self.seconds = 0.0
        """The time in seconds that this rank waited for the batch."""

    def read(self) -> None:
        """Reads the next batch into `batch`, which is None after the last one."""
        began = time.monotonic()
        try:
            self.batch, self.failure = next(self._batches, None), None
        except TrainerError as error:
            self.batch, self.failure = None, error
        self.seconds = time.monotonic() - began

    def check(self) -> None:
        """Raises the failure of this rank, if any."""
        if self.failure is not None:
            raise self.failure
