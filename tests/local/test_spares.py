"""A worker whose supervisor is lost is replaced by a spare, with its rank and with the same losses."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.local_jobs import LocalJob, finish, job
from tests.support.waiting import wait_until

SECONDS = 240.0
COPIED = "in its memory (parts: 2)"
WHOLE_STATE = ("DDP", "MultiWorkerMirrored")
"""The strategies in which each survivor saves the state after its last step."""


def digits(strategy: str, *, spares: int) -> dict[str, Any]:
    return job(
        "tiny",
        replicas=2,
        strategy=strategy,
        trainer={"task": "digits", "config": {"epochs": 3, "seed": 3, "deterministic": True, "stepDelaySeconds": 0.4 if spares else 0.0}},
        batch={"globalSize": 64},
        checkpoint={"everySteps": 10, "gracePeriodSeconds": 30},
        recovery={"spares": spares},
    )


@pytest.mark.parametrize(
    ("strategy", "lost"),
    [
        pytest.param("DDP", 0, marks=[pytest.mark.torch, pytest.mark.thorough]),
        pytest.param("FSDP", 1, marks=[pytest.mark.torch, pytest.mark.thorough]),
        pytest.param("DDP", 1, marks=pytest.mark.torch),
        pytest.param("JAX", 1, marks=[pytest.mark.jax, pytest.mark.thorough]),
        pytest.param("MultiWorkerMirrored", 0, marks=[pytest.mark.tensorflow, pytest.mark.thorough]),
        pytest.param("MultiWorkerMirrored", 1, marks=[pytest.mark.tensorflow, pytest.mark.thorough]),
    ],
)
def test_a_spare_takes_the_place_of_a_lost_worker_with_the_same_losses(strategy: str, lost: int, tmp_path: Path) -> None:
    local_job = LocalJob(tmp_path)
    with local_job.running(local_job.write(digits(strategy, spares=1))) as run:
        wait_until(lambda: local_job.status.get("readySpares") == 1, "the spare is ready", seconds=SECONDS)
        local_job.wait_for_step(15)
        survivor = local_job.pid_of(f"worker-{1 - lost}")
        os.kill(local_job.supervisor_of(f"worker-{lost}"), signal.SIGKILL)
        members = ["worker-0", "worker-1"]
        members[lost] = "worker-2"
        wait_until(lambda: labels(local_job) == members, "the spare is a member of the world", seconds=SECONDS)
        code, output = finish(run, SECONDS)
    assert code == 0, output
    status = local_job.status
    assert [record["reason"] for record in status["attempts"]] == ["ProcessKilled", "Completed"]
    assert labels(local_job) == members
    assert "readySpares" not in status
    if strategy in WHOLE_STATE:
        assert status["attempts"][1]["stepsLost"] == 0
    going_on = [survivor] if strategy == "DDP" else []
    assert [event["pid"] for event in local_job.events("survived")] == going_on
    alone = LocalJob(tmp_path / "alone")
    alone.folder.mkdir()
    code, output = alone.muster_run(alone.write(digits(strategy, spares=0)), seconds=SECONDS)
    assert code == 0, output
    assert local_job.losses() == alone.losses()


@pytest.mark.torch
def test_a_spare_takes_the_place_of_a_worker_that_ends_in_the_next_attempt(tmp_path: Path) -> None:
    """The loss of its process is known first. Its supervisor has neither reported that nor ended when the next attempt begins."""
    local_job = LocalJob(tmp_path)
    with local_job.running(local_job.write(digits("DDP", spares=1))):
        wait_until(lambda: local_job.status.get("readySpares") == 1, "the spare is ready", seconds=SECONDS)
        local_job.wait_for_step(5)
        supervisor = local_job.supervisor_of("worker-0")
        os.kill(supervisor, signal.SIGSTOP)
        os.kill(local_job.pid_of("worker-0"), signal.SIGKILL)
        wait_until(lambda: local_job.status["attempt"] == 1, "the next attempt", seconds=SECONDS)
        os.kill(supervisor, signal.SIGKILL)
        wait_until(lambda: labels(local_job) == ["worker-2", "worker-1"], "the spare is a member of the world", seconds=SECONDS)
        local_job.wait_for_step(local_job.status["progress"]["step"] + 5, attempt=1)
        assert local_job.status["attempt"] == 1, local_job.story()


@pytest.mark.torch
def test_spares_continue_from_their_copies_when_all_workers_are_lost(tmp_path: Path) -> None:
    """Each worker has the only other copy of the other's part, and there is no commit. So only the spares have the state."""
    local_job = LocalJob(tmp_path)
    with local_job.running(local_job.write(long_job(spares=2))):
        wait_until(lambda: local_job.logs().count(COPIED) == 2, "both spares have copied a snapshot", seconds=SECONDS)
        for supervisor in [local_job.supervisor_of(worker) for worker in ("worker-0", "worker-1")]:
            os.kill(supervisor, signal.SIGKILL)
        record = wait_until(lambda: resumed_from_memory(local_job), "an attempt resumes from memory", seconds=SECONDS)
        assert record["stepResumed"] >= 5, local_job.story()
        last = record["stepResumed"] + 10
        local_job.wait_for_step(last, attempt=record["attempt"])
    alone = LocalJob(tmp_path / "alone")
    alone.folder.mkdir()
    with alone.running(alone.write(long_job(spares=0))):
        alone.wait_for_step(last)
    losses, like = local_job.losses(), alone.losses()
    assert all(losses[step] == like[step] for step in range(1, last + 1)), local_job.story()


def long_job(*, spares: int) -> dict[str, Any]:
    """A job that does not end during the test."""
    document = digits("FSDP", spares=spares)
    document["spec"]["trainer"]["config"]["epochs"] = 1000
    document["spec"]["checkpoint"] = {"everySteps": 10**6, "memory": {"everySteps": 5, "sizeMib": 32}}
    return document


def resumed_from_memory(local_job: LocalJob) -> dict[str, Any] | None:
    return next((record for record in local_job.status["attempts"] if record.get("resumedFrom") == "Memory"), None)


def labels(local_job: LocalJob) -> list[str]:
    return [f"{member['role']}-{member['index']}" for member in local_job.status["world"]["members"]]
