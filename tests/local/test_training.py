"""Properties of the synchronous strategies of all frameworks: processes on loopback are killed, stopped and started again."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.local import proofs
from tests.support.bare_worlds import trainer, world

DDP = pytest.param("DDP", marks=pytest.mark.torch)
JAX = pytest.param("JAX", marks=pytest.mark.jax)
SLOW_JAX = pytest.param("JAX", marks=[pytest.mark.jax, pytest.mark.thorough])
MWMS = pytest.param("MultiWorkerMirrored", marks=pytest.mark.tensorflow)


@pytest.mark.parametrize("strategy", [DDP, SLOW_JAX])
def test_a_killed_world_with_a_convolutional_model_resumes_and_every_loss_is_bit_equal(strategy: str, tmp_path: Path) -> None:
    proofs.killed_world_continues_bit_for_bit(strategy, tmp_path, {"model": "cnn"})


@pytest.mark.parametrize("strategy", [DDP, SLOW_JAX])
def test_a_damaged_checkpoint_is_skipped_with_a_notice(strategy: str, tmp_path: Path) -> None:
    proofs.damaged_checkpoint_is_passed_over(strategy, tmp_path)


@pytest.mark.parametrize("strategy", [DDP, JAX, MWMS])
def test_the_losses_do_not_depend_on_the_number_of_processes(strategy: str) -> None:
    fields: dict[str, Any] = {"communication": "Ring"} if strategy == "MultiWorkerMirrored" else {}
    proofs.losses_do_not_depend_on_the_world(strategy, [1, 2, 3, 4] if strategy == "DDP" else [1, 2, 3], **fields)


@pytest.mark.parametrize("strategy", [DDP, SLOW_JAX, MWMS])
def test_a_rank_without_samples_takes_part_and_portions_change_nothing(strategy: str) -> None:
    # 1,437 samples in steps of 718 leave a last step of one sample for two processes
    portions = 3 if strategy == "MultiWorkerMirrored" else 1
    proofs.losses_do_not_depend_on_the_world(strategy, [1, 2], batch={"globalSize": 718, "accumulationSteps": portions})


@pytest.mark.parametrize(
    ("strategy", "size"),
    [
        pytest.param("DDP", 2, marks=pytest.mark.torch),
        pytest.param("DDP", 3, marks=[pytest.mark.torch, pytest.mark.thorough]),
        pytest.param("JAX", 2, marks=pytest.mark.jax),
        pytest.param("MultiWorkerMirrored", 2, marks=pytest.mark.tensorflow),
    ],
)
def test_a_rank_that_survives_saves_the_last_step(strategy: str, size: int, tmp_path: Path) -> None:
    proofs.the_last_step_is_saved_when_a_peer_is_gone(strategy, tmp_path, size=size)


@pytest.mark.parametrize("strategy", [DDP, JAX])
def test_without_storage_it_trains_and_a_stop_says_that_nothing_is_saved(strategy: str) -> None:
    with world(strategy, trainer(None, config={"epochs": 100, **proofs.SLOW})) as running:
        running.wait_for_step(3)
        running.kill(0, signal.SIGTERM)
        assert running.finish() == [22, 22], running.story()
    assert proofs.last_error(running)["reason"] == "PreemptedNotSaved"
