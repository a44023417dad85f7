"""Snapshots in the memory of replicas, without storage: processes and whole replicas are killed at random moments, no reported step is
lost, and the curve is bit for bit that of an undisturbed run."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.local import proofs
from tests.support.bare_worlds import BareWorld, trainer, world
from tests.support.held_memory import Replicas, replicas
from tests.support.local_jobs import LocalJob, away, job, storage_of
from tests.support.seeds import seeded_random

pytestmark = pytest.mark.torch

MIB = 1 << 20
STEP_SECONDS = 0.02
CASES = [
    pytest.param("FSDP", 2, {}, id="fsdp-2"),
    pytest.param("DDP", 2, {}, id="ddp-2", marks=pytest.mark.thorough),
    pytest.param("TensorParallel", 2, {}, id="tensor-parallel-2", marks=pytest.mark.thorough),
    pytest.param("Pipeline", 2, {"pipeline": {"microBatches": 4}}, id="pipeline-2", marks=pytest.mark.thorough),
    pytest.param("FSDP", 4, {}, id="fsdp-4", marks=pytest.mark.thorough),
    pytest.param("DDP", 3, {}, id="ddp-3", marks=pytest.mark.thorough),
    pytest.param("FSDP", 4, {"mesh": {"data": 4, "shard": 2}}, id="hybrid-4", marks=pytest.mark.thorough),
    pytest.param("Pipeline", 2, {"pipeline": {"schedule": "PipeDream", "microBatches": 4}}, id="pipedream-2", marks=pytest.mark.thorough),
]


def document(options: Mapping[str, Any], *, every: int | None = 1, delay: float = STEP_SECONDS, **memory: int) -> dict[str, Any]:
    """A job without storage that keeps snapshots."""
    kept = {"everySteps": every, "copies": 1, "sizeMib": 64, **memory}
    return trainer(None, config={"stepDelaySeconds": delay}, options=dict(options), memory=kept)


def killed(strategy: str, job: Mapping[str, Any], held: Replicas, rank: int, *, attempt: int, at: int, after: float) -> BareWorld:
    """An attempt in which the process of a rank is killed some time after a step."""
    with world(strategy, job, size=len(held.descriptors), attempt=attempt, memories=held.descriptors) as running:
        running.wait_for_step(at)
        time.sleep(after)
        running.kill(rank)
        running.finish()
    return running


@pytest.mark.parametrize(("strategy", "size", "options"), CASES)
def test_no_finished_step_is_lost_when_a_process_or_a_replica_is_killed(strategy: str, size: int, options: dict[str, Any]) -> None:
    random = seeded_random()
    job = document(options)
    curve: dict[int, str] = {}
    with replicas(size) as held:
        done = 0
        for attempt, whole in enumerate((False, True)):
            rank = random.randrange(size)
            at = done + random.randint(3, 20)
            running = killed(strategy, job, held, rank, attempt=attempt, at=at, after=random.uniform(0, 2 * STEP_SECONDS))
            check_resumed(running, done)
            curve |= running.losses()
            done = max(running.losses())
            if whole:
                held.lose(rank)
        last = finished(strategy, job, held, attempt=2)
        check_resumed(last, done)
    with replicas(size) as others:
        like = finished(strategy, document(options, delay=0.0), others)
    assert {**curve, **last.losses()} == like.losses()
    assert like.losses().keys() == set(range(1, proofs.STEPS + 1))


def finished(strategy: str, job: Mapping[str, Any], held: Replicas, *, attempt: int = 0) -> BareWorld:
    size = len(held.descriptors)
    with world(strategy, job, size=size, attempt=attempt, memories=held.descriptors) as running:
        assert running.finish() == [0] * size, running.story()
    return running


def check_resumed(running: BareWorld, done: int) -> None:
    """No step that was reported is lost; one more may be complete."""
    (resumed,) = running.events("resumed")
    assert resumed["step"] in (done, done + 1), running.story()
    assert resumed.get("source") == ("Memory" if done else None)


# under `muster run`


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        pytest.param("FSDP", {}, id="fsdp"),
        pytest.param("TensorParallel", {}, id="tensor-parallel", marks=pytest.mark.thorough),
        pytest.param("Pipeline", {"pipeline": {"microBatches": 4}}, id="pipeline", marks=pytest.mark.thorough),
    ],
)
def test_a_killed_process_costs_no_step_although_the_job_does_not_mention_snapshots(
    strategy: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """The process is killed when the snapshot of the newest step is complete. The steps are long, so the trainer takes many snapshots."""
    config, batch = {"epochs": 1, "seed": 7}, {"globalSize": 128, "accumulationSteps": 1, "learningRateScaling": "None"}
    trained = {"task": "digits", "config": {**config, "stepDelaySeconds": 1.0}}
    run = LocalJob(tmp_path)
    with run.running(run.write(job("tiny", strategy=strategy, trainer=trained, batch={"globalSize": 128}, options=options))):

        def is_newest(event: Mapping[str, Any]) -> bool:
            return event["step"] >= max(4, *(each["step"] for each in run.events("step")))

        run.wait_for_event("snapshot", is_newest)
        run.kill(f"worker-{seeded_random().randrange(2)}")
        run.check_succeeded(proofs.uninterrupted(strategy, config, options=options, batch=batch).losses())
    record = run.attempts[-1]
    assert (record["resumedFrom"], record["stepsLost"]) == ("Memory", 0)


def run_job(name: str, *, replicas: int, every: int = 1, storage: int = 1000, strategy: str = "FSDP", **spec: Any) -> dict[str, Any]:
    return job(
        name,
        strategy=strategy,
        replicas=replicas,
        trainer={"task": "digits", "config": {"epochs": 3, "seed": 7, "stepDelaySeconds": 2 * STEP_SECONDS}},
        batch={"globalSize": 64},
        checkpoint={"everySteps": storage, "memory": {"everySteps": every, "copies": 1, "sizeMib": 64}},
        **spec,
    )


def test_a_replica_is_killed_with_its_supervisor_and_the_job_goes_on_from_memory(tmp_path: Path) -> None:
    random = seeded_random()
    run = LocalJob(tmp_path)
    with run.running(run.write(run_job("tiny", replicas=2))):
        run.wait_for_step(random.randint(3, 20))
        os.kill(run.supervisor_of(f"worker-{random.randrange(2)}"), signal.SIGKILL)
        run.check_succeeded(proofs.uninterrupted("FSDP").losses())
    first, second = run.attempts
    assert (second["resumedFrom"], second["stepsLost"]) == ("Memory", 0)
    assert second["stepResumed"] >= first["lastStep"]
    snapshot = run.status["snapshot"]
    assert (snapshot["step"], snapshot["copies"]) == (proofs.STEPS, 1)
    assert 0 < snapshot["bytes"] <= 2 * 64 * MIB


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        pytest.param("FSDP", {"mesh": {"data": 4, "shard": 2}}, id="hybrid"),
        pytest.param("TensorParallel", {"mesh": {"data": 2, "tensor": 2}}, id="tensor-parallel", marks=pytest.mark.thorough),
        pytest.param("Pipeline", {"mesh": {"data": 2, "pipeline": 2}}, id="pipeline", marks=pytest.mark.thorough),
    ],
)
def test_ranks_that_have_each_shard_twice_keep_the_steps_after_the_newest_snapshot(
    strategy: str, options: dict[str, Any], tmp_path: Path
) -> None:
    run, every = LocalJob(tmp_path), 10
    like = proofs.uninterrupted(strategy, size=4, options=options).losses()
    with run.running(run.write(run_job("tiny", replicas=4, every=every, strategy=strategy, options=options))):
        run.wait_for_event("snapshot", lambda event: event["step"] == every)
        run.wait_for_step(every + seeded_random().randint(2, 5))
        run.kill(f"worker-{seeded_random().randrange(4)}")
        run.check_succeeded(like)
    first, second = run.attempts
    assert (second["resumedFrom"], second["stepsLost"]) == ("Memory", 0)
    assert second["stepResumed"] > every
    assert second["stepResumed"] >= first["lastStep"]


@pytest.mark.thorough
def test_the_storage_is_used_when_a_shard_is_lost_with_its_copy(tmp_path: Path) -> None:
    run = LocalJob(tmp_path)
    with run.running(run.write(run_job("tiny", replicas=2, storage=10))):
        run.wait_for_step(25)
        pids = [run.supervisor_of(f"worker-{index}") for index in range(2)]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        run.check_succeeded(proofs.uninterrupted("FSDP").losses())
    record = run.attempts[-1]
    assert record["resumedFrom"] == "Storage"
    assert record["stepResumed"] % 10 == 0


@pytest.mark.thorough
def test_training_goes_on_while_the_storage_is_away(tmp_path: Path) -> None:
    """It can be reached again at the end."""
    run = LocalJob(tmp_path)
    with run.running(run.write(run_job("tiny", replicas=2, storage=10))):
        run.wait_for_event("commit")
        with away(storage_of(run)):
            run.wait_for_event("notice", lambda event: event["reason"] == "SaveFailed")
            os.kill(run.supervisor_of("worker-1"), signal.SIGKILL)
            run.wait_for_event("step", lambda event: event["attempt"] == 1 and event["step"] < 60)
        run.check_succeeded(proofs.uninterrupted("FSDP").losses())
    assert (run.attempts[-1]["resumedFrom"], run.attempts[-1]["stepsLost"]) == ("Memory", 0)


def test_the_trainer_chooses_the_steps_between_snapshots() -> None:
    """Its choice depends on time, and the curve does not."""
    random = seeded_random()
    job = document({}, every=None)
    with replicas(2) as held:
        with world("FSDP", job, memories=held.descriptors) as first:
            first.wait_for_event("snapshot")
            first.wait_for_step(random.randint(15, 40))
            time.sleep(random.uniform(0, STEP_SECONDS))
            first.kill(1)
            first.finish()
        second = finished("FSDP", job, held, attempt=1)
    (resumed,) = second.events("resumed")
    taken = [event["step"] for event in first.events("snapshot")]
    assert taken[0] == 1
    assert resumed["source"] == "Memory"
    assert resumed["step"] >= taken[-1]  # one more may be complete
    assert {**first.losses(), **second.losses()} == proofs.uninterrupted("FSDP").losses()


def test_snapshots_that_do_not_fit_are_left_out_with_a_notice() -> None:
    with replicas(2, kib=64) as held:
        running = finished("FSDP", document({}), held)
    (notice,) = running.events("notice")
    assert notice["reason"] == "MemoryUnused"
    assert not running.events("snapshot")
    assert running.losses() == proofs.uninterrupted("FSDP").losses()


@pytest.mark.thorough
def test_fewer_snapshots_lose_fewer_than_two_intervals() -> None:
    random = seeded_random()
    every = 4
    with replicas(2) as held:
        rank = random.randrange(2)
        at, after = random.randint(9, 30), random.uniform(0, 2 * STEP_SECONDS)
        first = killed("FSDP", document({}, every=every), held, rank, attempt=0, at=at, after=after)
        held.lose(rank)
        second = finished("FSDP", document({}, every=every), held, attempt=1)
    (resumed,) = second.events("resumed")
    assert resumed["step"] % every == 0
    assert max(first.losses()) - resumed["step"] < 2 * every
    assert {**first.losses(), **second.losses()} == proofs.uninterrupted("FSDP").losses()


@pytest.mark.parametrize(
    "part", ["payload", pytest.param("header", marks=pytest.mark.thorough), pytest.param("job", marks=pytest.mark.thorough)]
)
def test_what_is_damaged_or_foreign_is_not_there(part: str) -> None:
    """The copy is used instead, or nothing."""
    job = document({})
    with replicas(2) as held:
        first = killed("FSDP", job, held, 1, attempt=0, at=9, after=0.0)
        if part != "job":
            held.damage(0, part)
        foreign = {"MUSTER_JOB_UID": "another"} if part == "job" else {}
        with world("FSDP", job, attempt=1, memories=held.descriptors, **foreign) as second:
            assert second.finish() == [0, 0], second.story()
    (resumed,) = second.events("resumed")
    assert resumed["step"] == 0 if part == "job" else resumed["step"] in (max(first.losses()), max(first.losses()) + 1)
    assert {**first.losses(), **second.losses()} == proofs.uninterrupted("FSDP").losses()
