"""A world that loses a worker continues without it, and takes it in again once it is back."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.local_jobs import LocalJob, finish, job

STEPS = 23 * 6
SECONDS = 240.0


def digits(name: str, strategy: str, *, workers: int, delay: float, **spec: Any) -> dict[str, Any]:
    return job(
        name,
        replicas=workers,
        strategy=strategy,
        trainer={"task": "digits", "config": {"epochs": 6, "seed": 3, "deterministic": True, "stepDelaySeconds": delay}},
        batch={"globalSize": 64},
        checkpoint={"everySteps": 10, "gracePeriodSeconds": 30},
        **spec,
    )


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", [pytest.param("DDP", marks=pytest.mark.torch), pytest.param("JAX", marks=pytest.mark.jax)])
def test_a_lost_worker_is_done_without_and_taken_in_again_with_the_losses_of_one_process(strategy: str, tmp_path: Path) -> None:
    local_job = LocalJob(tmp_path)
    elastic = {"minReplicas": 1, "maxReplicas": 2, "shrinkAfterSeconds": 0, "growAfterSeconds": 2}
    name = local_job.write(digits("tiny", strategy, workers=2, delay=0.3, elastic=elastic))
    with local_job.running(name) as run:
        local_job.wait_for_step(15)
        os.kill(local_job.supervisor_of("worker-0"), signal.SIGKILL)
        code, output = finish(run, SECONDS)
    assert code == 0, output
    status = local_job.status
    assert [(record.get("class"), record["reason"]) for record in status["attempts"]] == [
        ("Infrastructure", "ProcessKilled"),
        (None, "Scaled"),
        (None, "Completed"),
    ]
    lost, grown = status["attempts"][1], status["attempts"][2]
    assert lost["stepResumed"] >= 10
    assert grown["stepsLost"] == 0
    assert grown["stepResumed"] >= lost["lastStep"] > lost["stepResumed"]
    curve = local_job.losses()
    alone = LocalJob(tmp_path / "alone")
    alone.folder.mkdir()
    code, output = alone.muster_run(alone.write(digits("tiny", strategy, workers=1, delay=0.0)), seconds=SECONDS)
    assert code == 0, output
    expected = alone.losses()
    assert sorted(curve) == sorted(expected) == list(range(1, STEPS + 1))
    assert max(abs(float.fromhex(curve[step]) - float.fromhex(expected[step])) for step in expected) < 1e-6
