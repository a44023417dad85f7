"""The evaluator: follows the commits of a training that does not wait for it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.bare_worlds import trainer, world


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param("MultiWorkerMirrored", marks=pytest.mark.tensorflow),
        pytest.param("JAX", marks=[pytest.mark.jax, pytest.mark.thorough]),
    ],
)
def test_each_commit_is_measured_as_the_training_itself_would_and_the_final_one_ends_it(strategy: str, tmp_path: Path) -> None:
    document = trainer(tmp_path / "checkpoints", config={"epochs": 1})
    env = {"MUSTER_TENSORBOARD_DIR": str(tmp_path / "tensorboard")}
    with world(strategy, document, roles=("worker", "evaluator"), **env) as running:
        assert running.finish() == [0, 0], running.story()
    evaluations = [(event["step"], event["metrics"]) for event in running.events("evaluation")]
    own = [metrics for step, metrics in evaluations if step == 23]
    assert sorted(step for step, _ in evaluations) == [10, 20, 23, 23]
    assert own[0]["accuracy"] == own[1]["accuracy"]
    assert own[0]["loss"] == pytest.approx(own[1]["loss"], abs=1e-6)
    assert len(list((tmp_path / "tensorboard" / "evaluator").iterdir())) == 1


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param("MultiWorkerMirrored", marks=pytest.mark.tensorflow),
        pytest.param("JAX", marks=[pytest.mark.jax, pytest.mark.thorough]),
    ],
)
def test_an_evaluator_that_is_asked_to_stop_measures_the_newest_commit_and_leaves_the_training_alone(strategy: str, tmp_path: Path) -> None:
    document = trainer(tmp_path, config={"epochs": 100, "stepDelaySeconds": 0.2}, checkpoint={"everySteps": 5})
    with world(strategy, document, roles=("worker", "evaluator")) as running:
        running.wait_for_event("evaluation")
        running.kill(1, signal.SIGTERM)
        assert running.processes[1].wait(240) == 21, running.story()
        running.wait_for_step(max(running.losses()) + 2)
        running.kill(0, signal.SIGTERM)
        assert running.finish() == [21, 21], running.story()
