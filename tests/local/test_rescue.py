"""The first rank is killed under `muster run`: a rank that survives saves what it holds, and no step is done twice."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.local import proofs
from tests.support.local_jobs import LocalJob, job
from tests.support.seeds import seeded_random

CONFIG = {"epochs": 3, "seed": 7, "deterministic": True}
STEP_SECONDS = 0.04


@pytest.mark.parametrize(
    ("strategy", "size", "options"),
    [
        pytest.param("DDP", 2, {}, marks=pytest.mark.torch),
        pytest.param("DDP", 3, {}, marks=pytest.mark.torch),
        pytest.param("MultiWorkerMirrored", 2, {"loop": "Fit"}, marks=pytest.mark.tensorflow),
    ],
)
def test_no_step_is_lost_when_the_first_rank_is_killed(strategy: str, size: int, options: dict[str, Any], tmp_path: Path) -> None:
    random = seeded_random()
    document = job(
        strategy=strategy,
        replicas=size,
        options=options,
        trainer={"task": "digits", "config": {**CONFIG, "stepDelaySeconds": STEP_SECONDS}},
        batch={"globalSize": 64},
        checkpoint={"everySteps": 1000},
    )
    like = proofs.uninterrupted(strategy, CONFIG, size=size, options=options).losses()
    run = LocalJob(tmp_path)
    with run.running(run.write(document)):
        run.wait_for_step(random.randint(3, 40))
        time.sleep(random.uniform(0, 2 * STEP_SECONDS))  # so that the kill comes at any point of a step
        run.kill("worker-0")
        run.check_succeeded(like)
    done = max(event["step"] for event in run.events("step") if event["attempt"] == 0)
    rescues = [event for event in run.events("commit") if event["reason"] == "PeerLost"]
    assert done in {event["step"] for event in rescues}, (done, rescues)
    assert 0 not in {event["rank"] for event in rescues}
    assert (run.resumed_step(1), run.attempts[1]["stepsLost"]) == (done, 0)
    run.check_restarts(infrastructure=1)
