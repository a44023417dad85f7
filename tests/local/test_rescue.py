"""Ranks are killed under `muster run`: those that cannot go on in place save what they hold, and no step is done twice."""

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
HYBRID = {"mesh": {"data": 4, "shard": 2}}


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


KILLS_ITSELF = """
import os, signal

def end_rank_1():
    if os.environ["MUSTER_INDEX"] == "1" and os.environ["MUSTER_ATTEMPT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
"""

TORCH = """
from muster_trainer.pytorch import engine

steps, vote = 0, engine._Tally.__init__

def end_between(self, *given):
    global steps
    steps += 1
    if steps == 13:
        end_rank_1()
    vote(self, *given)

engine._Tally.__init__ = end_between
"""

TENSORFLOW = """
import tensorflow as tf
from muster_trainer.tensorflow.digits import build_model, dataset, loss, metrics
from muster_trainer.tensorflow.updates import Updates

steps, sum_over_devices = 0, Updates.sum_over_devices

def end_after_sums(gradient):
    global steps
    steps += 1
    if steps == 13:
        end_rank_1()
    return gradient

def end_between(self, gradients):
    first, *others = sum_over_devices(self, gradients)
    return [tf.ensure_shape(tf.numpy_function(end_after_sums, [first], first.dtype), first.shape), *others]

Updates.sum_over_devices = end_between
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("strategy", "module", "source"),
    [
        pytest.param("DDP", f"{OWN}\n{TORCH}", "Storage", id="a rescue", marks=pytest.mark.torch),
        pytest.param("DDP", f"{OWN}\nSURVIVES = True\n{TORCH}", "Survivors", id="in place", marks=pytest.mark.torch),
        pytest.param("FSDP", f"{OWN}\n{TORCH}", "Memory", id="several ranks", marks=pytest.mark.torch),
        pytest.param("MultiWorkerMirrored", TENSORFLOW, "Storage", id="TensorFlow", marks=pytest.mark.tensorflow),
    ],
)
def test_no_step_is_lost_if_a_peer_ends_between_gradients_and_votes(strategy: str, module: str, source: str, tmp_path: Path) -> None:
    """All ranks have the gradients of step 13, but not the votes. So no rank may count that step, and none may lose step 12."""
    check_lost_in_step_13(strategy, module, tmp_path, source=source, resumed=12)


def check_lost_in_step_13(strategy: str, module: str, tmp_path: Path, *, source: str, resumed: int) -> None:
    (tmp_path / "own.py").write_text(KILLS_ITSELF + module)
    config = {**CONFIG, "model": "mlp", "hidden": [64]}
    size, options = (4, HYBRID) if strategy == "FSDP" else (2, {})
    like = proofs.uninterrupted(strategy, config, size=size, options=options).losses()
    run = LocalJob(tmp_path)
    document = job(strategy=strategy, replicas=size, options=options, trainer={"module": "own", "config": config}, batch={"globalSize": 64})
    document["spec"]["checkpoint"] = {"everySteps": 1000}
    with run.running(run.write(document)):
        run.check_succeeded(like)
    second = run.attempts[1]
    assert (second["resumedFrom"], second["stepResumed"], second["stepsLost"]) == (source, resumed, 0)
    run.check_restarts(infrastructure=1)
