"""Reading ahead: any number of readers gives the same batches in the same order, and each error at its step."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from muster_contract.errors import UserError
from muster_contract.trainer_spec import InputSpec
from muster_trainer.data.files import Column, open_files, workers_for

TASK: Any = SimpleNamespace(title="task", config=SimpleNamespace(seed=3))
STEPS = range(4, 17)


def samples_of(step: int) -> np.ndarray:
    return np.arange(step, step + 1 + step % 3)


class Noisy:
    """A sample is its number, and random ones; number `bad` cannot be read."""

    def __init__(self, bad: int | None = None, *, draws: bool = True) -> None:
        self.bad, self.draws = bad, draws

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> tuple[dict[str, Any], float]:
        if index == self.bad:
            raise OSError("the disk is on fire")
        return {"number": index, "drawn": self._drawn() if self.draws else 0.0}, index / 7

    def _drawn(self) -> np.ndarray:
        import torch

        return np.array([random.random(), np.random.rand(), torch.rand(()).item()])


def torch_batches(workers: int, data: Any) -> list[Any]:
    from muster_trainer.pytorch.input import batches_of

    requests = ((step, samples_of(step)) for step in STEPS)
    batches = batches_of(TASK, data, requests, spec=InputSpec(workers=workers), position=1, pinned=False)
    return [next(batches) for _ in STEPS]


def test_pytorch_reads_the_same_samples_with_any_number_of_workers() -> None:
    in_line = torch_batches(0, Noisy())
    for workers in (1, 3):
        for one, other in zip(in_line, torch_batches(workers, Noisy()), strict=True):
            assert one[0]["number"].tolist() == other[0]["number"].tolist()
            assert one[0]["drawn"].tolist() == other[0]["drawn"].tolist()
            assert one[1].tolist() == other[1].tolist()
            assert one[1].dtype == other[1].dtype
    assert [batch[0]["number"].tolist() for batch in in_line] == [samples_of(step).tolist() for step in STEPS]


@pytest.mark.parametrize("workers", [0, 2])
def test_pytorch_reports_a_read_failure_at_its_step_in_one_line(workers: int) -> None:
    from muster_trainer.pytorch.input import batches_of

    requests = ((step, samples_of(step)) for step in STEPS)
    batches = batches_of(TASK, Noisy(bad=9), requests, spec=InputSpec(workers=workers), position=0, pinned=False)
    first = next(step for step in STEPS if 9 in samples_of(step))
    for _ in range(first - STEPS.start):
        next(batches)
    with pytest.raises(UserError, match=r"^task: .*OSError: the disk is on fire \(.*, line \d+\)$"):
        next(batches)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."),
        ConnectionResetError(104, "Connection reset by peer"),
        ConnectionRefusedError(111, "Connection refused"),
        FileNotFoundError(2, "No such file or directory"),
        EOFError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_every_error_of_a_reader_that_ended_has_the_same_message(error: Exception) -> None:
    from muster_trainer.pytorch.input import watched

    def answers() -> Any:
        yield "a batch"
        raise error

    batches = watched(answers())
    assert next(batches) == "a batch"
    with pytest.raises(UserError, match=r": \S.*fewer spec\.trainer\.input\.workers"):
        next(batches)


@pytest.mark.parametrize("workers", [None, 0, 1, 4, 99])
def test_tensorflow_reads_the_same_samples_with_any_number_of_workers(workers: int | None) -> None:
    from muster_trainer.tensorflow.input import Reading

    def share(step: int) -> tuple[np.ndarray, np.ndarray]:
        return samples_of(step), np.ones(len(samples_of(step)), dtype=np.float32)

    spec = InputSpec(workers=workers, prefetch=2 if workers == 4 else None)
    reading = Reading(TASK, Noisy(draws=False), share, spec=spec)
    reading.expect(STEPS)
    for step in STEPS:
        (inputs, targets), weights = reading.take()
        assert inputs["number"].numpy().tolist() == samples_of(step).tolist()
        assert targets.numpy().tolist() == (samples_of(step) / 7).tolist()
        assert len(weights) == len(samples_of(step))
    reading = Reading(TASK, Noisy(bad=9, draws=False), share, spec=spec)
    reading.expect(STEPS)
    for _ in range(next(place for place, step in enumerate(STEPS) if 9 in samples_of(step))):
        reading.take()
    with pytest.raises(UserError, match="the disk is on fire"):
        reading.take()


def test_files_are_read_ahead_by_default_and_memory_is_not(tmp_path: Any) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(3, np.float32), y=np.zeros(3, np.float32))
    files = open_files({"format": "Arrays", "train": str(tmp_path / "a.npz")}, "train", Column("x"), Column("y"))
    assert workers_for(files, InputSpec(), automatic=2) == 2
    assert workers_for(files, InputSpec(workers=0), automatic=2) == 0
    assert workers_for([1, 2], InputSpec(), automatic=2) == 0
    assert workers_for([1, 2], InputSpec(workers=3), automatic=2) == 3
