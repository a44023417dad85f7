"""`muster run` with real training: digits, killed and stopped on the way, against an undisturbed run."""

from __future__ import annotations

import json
import os
import random
import signal
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from runs import Place, finish, job, losses, wait_until

STEPS = 23 * 4
SECONDS = 240.0


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def digits(strategy: str) -> dict[str, Any]:
    """Four epochs of 23 steps, slowed down so that there is time to kill."""
    config = {"epochs": 4, "seed": 3, "deterministic": True, "stepDelaySeconds": 0.05}
    return job(
        strategy=strategy,
        trainer={"task": "digits", "config": config},
        batch={"globalSize": 64},
        checkpoint={"everySteps": 10, "gracePeriodSeconds": 30},
    )


def every_second_is_booked(run: Path) -> bool:
    """Whether the parts of goodput add up to the time from the job's creation to its end, to the millisecond."""
    status = json.loads((run / "status.json").read_text())
    began = yaml.safe_load((run / "job.yaml").read_text())["metadata"]["creationTimestamp"]
    lived = (datetime.fromisoformat(status["completionTime"]) - datetime.fromisoformat(str(began))).total_seconds()
    booked = sum(seconds for part, seconds in status["goodput"].items() if part.endswith("Seconds"))
    return abs(booked - lived) < 0.005


@pytest.mark.torch
def test_ddp_killed_then_stopped_then_resumed_has_the_losses_of_an_undisturbed_run(place: Place) -> None:
    name = place.write(digits("DDP"))
    with place.running(name) as run:
        wait_until(lambda: place.step() >= 15 + random.randint(0, 4), "step 15", SECONDS)
        os.kill(place.pid_of("worker-1"), signal.SIGKILL)
        wait_until(lambda: place.status()["attempt"] == 1 and place.step() >= 35, "step 35 of the second attempt", SECONDS)
        run.send_signal(signal.SIGINT)
        code, output = finish(run, SECONDS)
    assert code == 21, output
    saved = place.committed()
    assert saved == place.step()
    code, output = place.muster_run(name, "--resume", seconds=SECONDS)
    assert code == 0, output
    records = place.status()["attempts"]
    assert [record["attempt"] for record in records] == [0, 1, 2]
    # rank 0 saved what it had, unless the kill came in the midst of its update: before or after the second commit
    assert records[1]["stepsLost"] == 0 or records[1]["stepResumed"] in (10, 20)
    assert records[2]["stepResumed"] == saved
    phases = records[1]["phases"]
    assert min(phases[f"{phase}Seconds"] for phase in ("detect", "schedule", "start", "load", "firstStep")) > 0, phases
    assert every_second_is_booked(place.run)
    code, output = place.muster_run(name, "--run-dir", "runs/undisturbed", seconds=SECONDS)
    assert code == 0, output
    assert len(losses(place.run)) == STEPS
    assert losses(place.run) == losses(place.folder / "runs/undisturbed")


@pytest.mark.tensorflow
def test_parameter_servers_restart_what_must_and_outlive_the_chief_that_saves_and_the_evaluator_measures_what_it_saved(
    place: Place,
) -> None:
    document = digits("ParameterServer")
    document["spec"]["roles"] = {role: {} for role in ("chief", "worker", "ps", "evaluator")}
    name = place.write(document)
    with place.running(name) as run:
        wait_until(lambda: place.step() >= 15, "step 15", SECONDS)
        first = {replica: place.pid_of(replica) for replica in ("chief-0", "worker-0", "ps-0")}
        os.kill(first["worker-0"], signal.SIGKILL)
        wait_until(lambda: place.status()["attempt"] == 1 and place.step() >= 25, "step 25, with a worker of the second attempt", SECONDS)
        second = {replica: place.pid_of(replica) for replica in first}
        assert {replica for replica in first if first[replica] != second[replica]} == {"worker-0"}
        os.kill(second["ps-0"], signal.SIGKILL)
        wait_until(
            lambda: place.status()["attempt"] == 2 and place.step() >= 35, "step 35, with a chief and a server of the third", SECONDS
        )
        third = {replica: place.pid_of(replica) for replica in first}
        assert {replica for replica in first if second[replica] != third[replica]} == {"chief-0", "ps-0"}
        run.send_signal(signal.SIGINT)
        code, output = finish(run, SECONDS)
    assert code == 21, output
    saved = place.committed()
    assert saved == place.step()
    assert [(record["replica"], record["stepsLost"]) for record in place.status()["attempts"][:2]] == [("worker-0", 0), ("ps-0", 0)]
    code, output = place.muster_run(name, "--resume", seconds=SECONDS)
    assert code == 0, output
    assert place.status()["attempts"][3]["stepResumed"] == saved
    assert place.status()["progress"]["metrics"]["accuracy"] > 0.8
    lines = [line for path in place.run.glob("attempts/*/evaluator-0/events.jsonl") for line in path.read_text().splitlines()]
    measured = {event["step"] for event in map(json.loads, lines) if event["event"] == "evaluation"}
    assert {saved, STEPS} <= measured
