"""The first rank is killed under `muster run`: a rank that cannot go on in place saves what it holds, and no step is done twice."""

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
OWN = "from muster_trainer.pytorch.digits import build_model, dataset, loss, metrics"
"""A module that does not opt in to survive."""
MODULE = {"module": "own"}
TASK = {"task": "digits"}


@pytest.mark.parametrize(
    ("strategy", "size", "options", "code"),
    [
        pytest.param("DDP", 2, {}, MODULE, marks=[pytest.mark.torch, pytest.mark.thorough]),
        pytest.param("DDP", 3, {}, MODULE, marks=[pytest.mark.torch, pytest.mark.thorough]),
        pytest.param("MultiWorkerMirrored", 2, {"loop": "Fit"}, TASK, marks=pytest.mark.tensorflow),
    ],
)
def test_no_step_is_lost_when_the_first_rank_is_killed(
    strategy: str, size: int, options: dict[str, Any], code: dict[str, str], tmp_path: Path
) -> None:
    random = seeded_random()
    (tmp_path / "own.py").write_text(OWN)
    document = job(
        strategy=strategy,
        replicas=size,
        options=options,
        trainer={**code, "config": {**CONFIG, "model": "mlp", "hidden": [64], "stepDelaySeconds": STEP_SECONDS}},
        batch={"globalSize": 64},
        checkpoint={"everySteps": 1000},
    )
    like = proofs.uninterrupted(strategy, CONFIG, size=size, options=options).losses()
    run = LocalJob(tmp_path)
    with run.running(run.write(document)):
        run.wait_for_step(random.randint(3, 25))
        time.sleep(random.uniform(0, 2 * STEP_SECONDS))  # so that the kill comes at any point of a step
        run.kill("worker-0")
        run.check_succeeded(like)
    done = max(event["step"] for event in run.events("step") if event["attempt"] == 0)
    rescues = [event for event in run.events("commit") if event["reason"] == "PeerLost"]
    assert done in {event["step"] for event in rescues}, (done, rescues)
    assert 0 not in {event["rank"] for event in rescues}
    assert run.events("survived") == []
    assert (run.resumed_step(1), run.attempts[1]["stepsLost"]) == (done, 0)
    run.check_restarts(infrastructure=1)
