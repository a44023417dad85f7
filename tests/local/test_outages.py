"""The storage of checkpoints is away, full or read-only for some time: training goes on in the same processes, and saves when it can."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.local import proofs
from tests.support.bare_worlds import BareWorld, trainer, world
from tests.support.local_jobs import LocalJob, away, job, storage_of

STRATEGIES = [
    pytest.param("DDP", marks=pytest.mark.torch),
    pytest.param("MultiWorkerMirrored", marks=pytest.mark.tensorflow),
    pytest.param("JAX", marks=[pytest.mark.jax, pytest.mark.thorough]),
    pytest.param("FSDP", marks=[pytest.mark.torch, pytest.mark.thorough]),
]


def wait_for_notice(run: BareWorld | LocalJob) -> dict[str, Any]:
    return run.wait_for_event("notice", lambda event: event["reason"] == "SaveFailed")


def check_went_on(running: BareWorld, strategy: str, *, size: int = 2) -> None:
    """All steps are those of an undisturbed run, and the last one is saved."""
    assert running.finish() == [0] * size, running.story()
    assert running.losses() == proofs.uninterrupted(strategy).losses()
    assert running.events("commit")[-1]["step"] == proofs.STEPS


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_training_goes_on_while_the_storage_is_away(strategy: str, tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    with world(strategy, trainer(storage, config=proofs.SLOWER)) as running:
        running.wait_for_commit(10)
        with away(storage):
            notice = wait_for_notice(running)
        saved = running.wait_for_event("commit", lambda event: event["time"] > notice["time"])
        check_went_on(running, strategy)
    assert saved["step"] < proofs.STEPS  # it did not wait for the end
    assert str(storage) in notice["message"]
    assert all((path / "COMMITTED").exists() for path in storage.glob("step-*"))


@pytest.mark.parametrize(
    "strategy", [pytest.param("DDP", marks=pytest.mark.torch), pytest.param("JAX", marks=[pytest.mark.jax, pytest.mark.thorough])]
)
def test_the_disk_is_full_for_some_time_and_failed_saves_leave_no_files(strategy: str, tmp_path: Path) -> None:
    """Files of rank 1 cannot grow. Python ignores the signal, so its writes fail."""
    with world(strategy, trainer(tmp_path, config=proofs.SLOWER)) as running:
        running.wait_for_commit(10)
        pid = running.processes[1].pid
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1 << 10, resource.RLIM_INFINITY))
        notice = wait_for_notice(running)
        assert all((path / "COMMITTED").exists() for path in tmp_path.glob("step-*"))
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        running.wait_for_event("commit", lambda event: event["time"] > notice["time"])
        check_went_on(running, strategy)
    assert "File too large" in notice["message"]


SHORT = """
from torch import nn
from muster_trainer.pytorch.digits import dataset, loss
from muster_trainer.training.outage import Outage

Outage.LIMIT = 2.0

def build_model(config):
    return nn.Linear(64, 10)
"""
"""A task whose saves may fail for two seconds."""


@pytest.fixture
def short(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "short.py").write_text(SHORT)
    return {"PYTHONPATH": str(tmp_path)}


@pytest.mark.torch
def test_a_storage_that_stays_away_ends_all_ranks_with_one_message(tmp_path: Path, short: dict[str, str]) -> None:
    storage = tmp_path / "storage"
    with world("DDP", trainer(storage, module="short", config={**proofs.SLOWER, "epochs": 20}), **short) as running:
        running.wait_for_commit(10)
        with away(storage):
            assert running.finish() == [31, 31], running.story()
    (message,) = {error["message"] for error in running.events("error")}
    assert str(storage) in message
    assert "no save has succeeded for" in message
    assert len([notice for notice in running.events("notice") if notice["reason"] == "SaveFailed"]) == 1
    assert message.endswith("the limit is 2 s")
    newest = max(int(path.parent.name[5:13]) for path in storage.glob("step-*/COMMITTED"))
    with world("DDP", trainer(storage, module="short", config={"epochs": 20}), attempt=1, **short) as second:
        assert second.finish() == [0, 0], second.story()
    assert second.events("resumed")[0]["step"] == newest


@pytest.mark.torch
@pytest.mark.parametrize("comes_back", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_the_last_save_waits_for_the_storage(comes_back: bool, tmp_path: Path, short: dict[str, str]) -> None:
    storage = tmp_path / "storage"
    with world("DDP", trainer(storage, module="short", config=proofs.SLOW), **short) as running:
        running.wait_for_commit(60)
        with away(storage):
            running.wait_for_step(proofs.STEPS)
            if not comes_back:
                assert running.finish() == [31, 31], running.story()
            else:
                wait_for_notice(running)
        if comes_back:
            assert running.finish() == [0, 0], running.story()
    assert (running.events("commit")[-1]["step"] == proofs.STEPS) == comes_back


@pytest.mark.torch
@pytest.mark.thorough
def test_a_stop_ends_the_wait_of_the_last_save(tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    with world("DDP", trainer(storage, config=proofs.SLOW)) as running:
        running.wait_for_commit(60)
        with away(storage):
            wait_for_notice(running)
            running.wait_for_step(proofs.STEPS)
            running.kill(1, signal.SIGTERM)
            assert running.finish() == [22, 22], running.story()


# under `muster run`


def run_job(strategy: str = "DDP") -> dict[str, Any]:
    return job(
        strategy=strategy,
        replicas=2,
        trainer={"task": "digits", "config": {"epochs": 3, "seed": 7, "stepDelaySeconds": 0.08}},
        batch={"globalSize": 64},
        checkpoint={"everySteps": 10},
    )


@pytest.mark.torch
def test_a_storage_that_is_away_restarts_nothing(tmp_path: Path) -> None:
    run = LocalJob(tmp_path)
    with run.running(run.write(run_job())):
        run.wait_for_event("commit")
        pids = {run.pid_of(f"worker-{index}") for index in range(2)}
        with away(storage_of(run)):
            wait_for_notice(run)
        run.wait_for_event("commit", lambda event: event["step"] > 20)
        assert {run.pid_of(f"worker-{index}") for index in range(2)} == pids
        run.check_succeeded(proofs.uninterrupted("DDP").losses())
    assert len(run.attempts) == 1
    run.check_restarts()
    assert [notice["reason"] for notice in run.status["notices"]] == ["SaveFailed"]


@pytest.mark.torch
@pytest.mark.parametrize("victim", [1, pytest.param(0, marks=pytest.mark.thorough)])
def test_survivors_go_on_while_the_storage_is_away(victim: int, tmp_path: Path) -> None:
    """No snapshots are in memory. The new process gets the state from the other one, and no step is lost."""
    run = LocalJob(tmp_path)
    with run.running(run.write(run_job())):
        run.wait_for_event("commit")
        survivor = run.pid_of(f"worker-{1 - victim}")
        with away(storage_of(run)):
            wait_for_notice(run)
            os.kill(run.pid_of(f"worker-{victim}"), signal.SIGKILL)
            resumed = run.wait_for_event("resumed", lambda event: event["attempt"] == 1)
            run.wait_for_event("step", lambda event: event["attempt"] == 1)
        run.wait_for_event("commit", lambda event: event["attempt"] == 1 and event["step"] < proofs.STEPS)
        assert run.pid_of(f"worker-{1 - victim}") == survivor
        run.check_succeeded(proofs.uninterrupted("DDP").losses())
    assert resumed["source"] == "Survivors"
    assert (len(run.attempts), run.attempts[1]["resumedFrom"], run.attempts[1]["stepsLost"]) == (2, "Survivors", 0)
