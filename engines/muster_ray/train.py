"""Joins Ray Train to the job: ranks for `muster_training`, reports of steps, commits of reported checkpoints, and verified resume.

Ray Train creates both classes in the driver, because the head names them in RAY_TRAIN_CALLBACKS. `Controller` then runs in the controller
of a training, and `Worker` in each of its workers. Source: `ray/train/v2/_internal/execution/callback.py`.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray.train import Checkpoint
from ray.train.v2._internal.execution.callback import ReportCallback, WorkerCallback, WorkerGroupCallback
from ray.train.v2._internal.execution.context import get_train_context

import muster_training
from muster_contract.environment import NAMES, RANK
from muster_trainer.host.ranks import PORTS_APART
from muster_training import session

STEP, TOTAL, LOSS = "step", "total", "loss"
"""The metrics that a report may have for Muster. Without a step, reports are counted."""


class Controller(WorkerGroupCallback, ReportCallback):  # type: ignore[misc]
    """In the controller: gives the workers their ranks, and passes on what they report together."""

    def __init__(self) -> None:
        self._step: int | None = None

    def before_init_train_context(self, workers: list[Any]) -> dict[str, list[Any]]:
        address = ray.get(workers[0].execute_async(free_address))
        places = [(each, each.distributed_context) for each in workers]
        ray.get([each.execute_async(take_place, place.world_rank, place.world_size, address) for each, place in places])
        return {}

    def after_report(self, training_report: Any, metrics: list[dict[str, Any]]) -> None:
        of_rank_0: Mapping[str, Any] = metrics[0] if metrics else {}
        if self._step is None:
            found = muster_training.latest()
            self._step = found.step if found else 0
        self._step = self._next(of_rank_0.get(STEP))
        total = of_rank_0.get(TOTAL)
        figures = {name: value for name, value in of_rank_0.items() if name not in (STEP, TOTAL, LOSS) and _is_number(value)}
        session.current().report(
            step=self._step,
            total=total if _is_count(total) else None,
            loss=of_rank_0.get(LOSS),
            samples=None,
            metrics={str(name): value for name, value in figures.items()},
        )
        if training_report.checkpoint is not None and has_storage():
            commit(training_report.checkpoint, self._step)

    def _next(self, step: object) -> int:
        return int(step) if _is_count(step) else (self._step or 0) + 1  # type: ignore[call-overload]


class Worker(WorkerCallback):  # type: ignore[misc]
    """In each worker: lets `ray.train.get_checkpoint()` return the newest checkpoint of the job, after its files were verified."""

    def after_init_train_context(self) -> None:
        found = muster_training.latest() if has_storage() else None
        if found is not None:
            get_train_context().checkpoint = Checkpoint.from_directory(str(found.folder))


def free_address() -> str:
    """The address of this node, with a port below a free one, because ranks meet at a port above that of the framework."""
    address = ray.util.get_node_ip_address()
    with socket.socket() as free:
        free.bind(("", 0))
        return f"{address}:{free.getsockname()[1] - PORTS_APART}"


def take_place(rank: int, size: int, address: str) -> None:
    """Sets the variables of a worker."""
    names = {RANK: rank, NAMES["first_rank"]: rank, NAMES["world_size"]: size, NAMES["world_address"]: address}
    os.environ.update({name: str(value) for name, value in names.items()})


def has_storage() -> bool:
    """Whether the job has storage for checkpoints. A training outside Muster has none."""
    return bool(os.environ.get(NAMES["checkpoint_dir"]))


def commit(checkpoint: Checkpoint, step: int) -> None:
    """Makes a checkpoint of Ray Train a commit of the job."""
    with muster_training.checkpoint(step) as folder, checkpoint.as_directory() as source:
        for file in Path(source).rglob("*"):
            if file.is_file():
                target = folder / file.relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                _copy(file, target)


def _copy(file: Path, target: Path) -> None:
    """Links the file where the file system can, because it may be large. Ray writes no file of a checkpoint again."""
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
