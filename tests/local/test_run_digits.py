"""`muster run` with real training of digits that is killed and stopped, compared with an undisturbed run."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.local_jobs import LocalJob, finish, job
from tests.support.seeds import seeded_random
from tests.support.waiting import wait_until

STEPS = 23 * 4
SECONDS = 240.0


@pytest.fixture
def local_job(tmp_path: Path) -> LocalJob:
    return LocalJob(tmp_path)


def digits(strategy: str) -> dict[str, Any]:
    """Four epochs of 23 steps, slowed down so that there is time to kill."""
    config = {"epochs": 4, "seed": 3, "deterministic": True, "stepDelaySeconds": 0.05}
    return job(
        strategy=strategy,
        trainer={"task": "digits", "config": config},
        batch={"globalSize": 64},
        checkpoint={"everySteps": 10, "gracePeriodSeconds": 30},
    )


@pytest.mark.thorough
@pytest.mark.torch
def test_ddp_killed_then_stopped_then_resumed_has_the_losses_of_an_undisturbed_run(local_job: LocalJob) -> None:
    name = local_job.write(digits("DDP"))
    with local_job.running(name) as run:
        local_job.wait_for_step(15 + seeded_random().randint(0, 4))
        os.kill(local_job.pid_of("worker-1"), signal.SIGKILL)
        wait_until(lambda: local_job.status["attempt"] == 1 and local_job.step >= 35, "step 35 of the second attempt", SECONDS)
        run.send_signal(signal.SIGINT)
        code, output = finish(run, SECONDS)
    assert code == 21, output
    saved = local_job.committed
    assert saved == local_job.step
    code, output = local_job.muster_run(name, "--resume", seconds=SECONDS)
    assert code == 0, output
    records = local_job.status["attempts"]
    assert [record["attempt"] for record in records] == [0, 1, 2]
    assert records[1]["stepsLost"] == 0  # rank 0 saved what it had
    assert records[2]["stepResumed"] == saved
    phases = records[1]["phases"]
    assert phases.keys() == {f"{phase}Seconds" for phase in ("detect", "schedule", "start", "load", "firstStep")}
    # On one machine, the first two can take less than a millisecond.
    assert min(phases[f"{phase}Seconds"] for phase in ("start", "load", "firstStep")) > 0, phases
    local_job.check_goodput()
    code, output = local_job.muster_run(name, "--run-dir", "runs/undisturbed", seconds=SECONDS)
    assert code == 0, output
    assert len(local_job.losses()) == STEPS
    assert local_job.losses() == LocalJob(local_job.folder, "undisturbed").losses()


@pytest.mark.torch
def test_a_run_that_is_stopped_before_its_first_step_loses_none(local_job: LocalJob) -> None:
    with local_job.running(local_job.write(digits("DDP"))) as run:
        wait_until(lambda: len(local_job.processes()) == 2, "the replicas")
        run.send_signal(signal.SIGTERM)
        code, output = finish(run)
    assert code == 21, output
    assert "progress" not in local_job.status
    assert local_job.status["attempts"][0].get("stepsLost", 0) == 0


@pytest.mark.thorough
@pytest.mark.tensorflow
def test_parameter_servers_restart_what_must_and_outlive_the_chief_that_saves_and_the_evaluator_measures_what_it_saved(
    local_job: LocalJob,
) -> None:
    document = digits("ParameterServer")
    document["spec"]["roles"] = {role: {} for role in ("chief", "worker", "ps", "evaluator")}
    name = local_job.write(document)
    with local_job.running(name) as run:
        wait_until(lambda: local_job.step >= 15, "step 15", SECONDS)
        first = {replica: local_job.pid_of(replica) for replica in ("chief-0", "worker-0", "ps-0")}
        os.kill(first["worker-0"], signal.SIGKILL)
        wait_until(lambda: local_job.status["attempt"] == 1 and local_job.step >= 25, "step 25 of the second attempt", SECONDS)
        second = {replica: local_job.pid_of(replica) for replica in first}
        assert {replica for replica in first if first[replica] != second[replica]} == {"worker-0"}
        os.kill(second["ps-0"], signal.SIGKILL)
        wait_until(lambda: local_job.status["attempt"] == 2 and local_job.step >= 35, "step 35 of the third attempt", SECONDS)
        third = {replica: local_job.pid_of(replica) for replica in first}
        assert {replica for replica in first if second[replica] != third[replica]} == {"chief-0", "ps-0"}
        run.send_signal(signal.SIGINT)
        code, output = finish(run, SECONDS)
    assert code == 21, output
    saved = local_job.committed
    assert saved == local_job.step
    assert [(record["replica"], record["stepsLost"]) for record in local_job.status["attempts"][:2]] == [("worker-0", 0), ("ps-0", 0)]
    code, output = local_job.muster_run(name, "--resume", seconds=SECONDS)
    assert code == 0, output
    assert local_job.status["attempts"][3]["stepResumed"] == saved
    assert local_job.status["progress"]["metrics"]["accuracy"] > 0.8
    lines = [line for path in local_job.run.glob("attempts/*/evaluator-0/events.jsonl") for line in path.read_text().splitlines()]
    measured = {event["step"] for event in map(json.loads, lines) if event["event"] == "evaluation"}
    assert {saved, STEPS} <= measured
