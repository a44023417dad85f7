"""A world that loses a worker goes on without it, and takes it in again when it has come."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from runs import Place, finish, job, wait_until

STEPS = 23 * 6
SECONDS = 240.0


def digits(name: str, workers: int, delay: float, **spec: Any) -> dict[str, Any]:
    return job(
        name,
        replicas=workers,
        strategy="DDP",
        trainer={"task": "digits", "config": {"epochs": 6, "seed": 3, "deterministic": True, "stepDelaySeconds": delay}},
        batch={"globalSize": 64},
        checkpoint={"everySteps": 10, "gracePeriodSeconds": 30},
        **spec,
    )


def losses(run: Path) -> dict[int, float]:
    """The loss of each step in the attempt that did it last."""
    events = [json.loads(line) for path in run.glob("attempts/*/worker-*/events.jsonl") for line in path.read_text().splitlines()]
    steps = sorted((event for event in events if event["event"] == "step"), key=lambda event: int(event["attempt"]))
    return {event["step"]: float.fromhex(event["lossHex"]) for event in steps}


@pytest.mark.torch
def test_a_lost_worker_is_done_without_and_taken_in_again_with_the_losses_of_one_process(tmp_path: Path) -> None:
    place = Place(tmp_path)
    elastic = {"minReplicas": 1, "maxReplicas": 2, "shrinkAfterSeconds": 0, "growAfterSeconds": 2}
    name = place.write(digits("tiny", 2, 0.3, elastic=elastic))
    with place.running(name) as run:
        wait_until(lambda: place.step() >= 15, "step 15", SECONDS)
        os.kill(place.supervisor_of("worker-0"), signal.SIGKILL)
        code, output = finish(run, SECONDS)
    assert code == 0, output
    status = place.status()
    assert [(record.get("class"), record["reason"], record["message"]) for record in status["attempts"]] == [
        ("Infrastructure", "ProcessKilled", "ended by signal 9"),
        (None, "Scaled", "takes in 1 workers that have come"),
        (None, "Completed", ""),
    ]
    lost, grown = status["attempts"][1], status["attempts"][2]
    assert lost["stepResumed"] >= 10
    assert grown["stepsLost"] == 0
    assert grown["stepResumed"] >= lost["lastStep"] > lost["stepResumed"]
    curve = losses(place.run)
    alone = Place(tmp_path / "alone")
    alone.folder.mkdir()
    code, output = alone.muster_run(alone.write(digits("tiny", 1, 0.0)), seconds=SECONDS)
    assert code == 0, output
    expected = losses(alone.run)
    assert sorted(curve) == sorted(expected) == list(range(1, STEPS + 1))
    assert max(abs(curve[step] - expected[step]) for step in expected) < 1e-6
