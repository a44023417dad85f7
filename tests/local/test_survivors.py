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
from tests.support.waiting import wait_until

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


OWN = """
from torch import nn, optim
from muster_trainer.pytorch.digits import dataset, loss, metrics

SURVIVES = True

def build_model(config):
    return nn.Sequential(nn.Linear(64, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 10))

def optimizer(model, config):
    return optim.AdamW(model.parameters(), lr=config.learningRate)
"""


def own_job(size: int, *, delay: float) -> dict[str, Any]:
    config = {**CONFIG, "epochs": 4, "learningRate": 0.002, "evaluateEveryEpochs": 1, "stepDelaySeconds": delay}
    return job(
        replicas=size,
        trainer={"module": "own", "config": config},
        batch={"globalSize": 64},
        checkpoint={"everySteps": 10},
        recovery={"infrastructure": {"limit": -1}},
    )


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def losses_of(run: LocalJob) -> dict[int, str]:
    return {event["step"]: event["lossHex"] for event in run.events("step")}


def test_running_averages_and_an_optimizer_with_state_survive_many_kills(own: Path) -> None:
    """Also kills during the rebuild: the new process dies as soon as it is there. Saves and evaluations are under way at times."""
    random = seeded_random()
    size = 3
    like = LocalJob(own, name="like")
    code, output = like.muster_run(like.write({**own_job(size, delay=0.0), "metadata": {"name": "like"}}, "like.yaml"))
    assert code == 0, output
    run = LocalJob(own)
    with run.running(run.write(own_job(size, delay=STEP_SECONDS))):
        pids = {rank: run.pid_of(f"worker-{rank}") for rank in range(size)}
        for number in range(3):
            run.wait_for_step(random.randint(3, 18) + 22 * number)
            time.sleep(random.uniform(0, 2 * STEP_SECONDS))
            again = number == 1
            victim = 0 if again else random.randrange(size)  # the others connect to rank 0 when it dies again
            os.kill(pids[victim], signal.SIGKILL)
            pids[victim] = new_pid(run, victim, pids[victim])
            if again:
                os.kill(pids[victim], signal.SIGKILL)
                pids[victim] = new_pid(run, victim, pids[victim])
        run.check_succeeded(losses_of(like))
    last = max(record["attempt"] for record in run.attempts)
    assert last >= 4
    survived = {event["pid"] for event in run.events("survived") if event["attempt"] == last}
    assert len(survived) == size - 1
    assert survived < set(pids.values())
    assert {record["stepsLost"] for record in run.attempts if "stepsLost" in record} == {0}


def new_pid(run: LocalJob, rank: int, before: int) -> int:
    def pids() -> list[int]:
        entries = [entry for entry in run.processes() if entry["replica"] == f"worker-{rank}"]
        return [process["pid"] for entry in entries for process in entry["processes"] if process["pid"] != before]

    return wait_until(pids, f"a new process of rank {rank}")[0]
