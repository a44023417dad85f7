"""A process of DDP is killed under `muster run`: the others go on in the same processes, and every loss is that of an undisturbed run."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.local import proofs
from tests.support.local_jobs import LocalJob, job
from tests.support.seeds import seeded_random

pytestmark = pytest.mark.torch

CONFIG: dict[str, Any] = {"epochs": 3, "seed": 7, "deterministic": True}
STEP_SECONDS = 0.04


def document(size: int, **config: Any) -> dict[str, Any]:
    return job(
        replicas=size,
        trainer={"task": "digits", "config": {**CONFIG, "stepDelaySeconds": STEP_SECONDS, **config}},
        batch={"globalSize": 64},
        checkpoint={"everySteps": 1000},
    )


@pytest.mark.parametrize(("size", "victim"), [(2, 1), (2, 0), (4, 3), (4, 0)])
def test_survivors_go_on_in_the_same_processes(size: int, victim: int, tmp_path: Path) -> None:
    random = seeded_random()
    like = proofs.uninterrupted("DDP", CONFIG, size=size).losses()
    run = LocalJob(tmp_path)
    with run.running(run.write(document(size))):
        run.wait_for_step(random.randint(3, 40))
        time.sleep(random.uniform(0, 2 * STEP_SECONDS))  # so that the kill comes at any point of a step
        before = {rank: run.pid_of(f"worker-{rank}") for rank in range(size)}
        os.kill(before[victim], signal.SIGKILL)
        run.check_succeeded(like)
    survived = {event["rank"]: event["pid"] for event in run.events("survived")}
    assert survived == {rank: pid for rank, pid in before.items() if rank != victim}
    done = max(event["step"] for event in run.events("step") if event["attempt"] == 0)
    record = run.attempts[1]
    assert (record["resumedFrom"], record["survivors"], record["stepResumed"], record["stepsLost"]) == ("Survivors", size - 1, done, 0)
    run.check_restarts(infrastructure=1)
