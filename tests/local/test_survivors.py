"""A process of DDP is killed under `muster run`: the others go on in the same processes, and every loss is that of an undisturbed run."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.local import proofs
from tests.support.bare_worlds import trainer, world
from tests.support.local_jobs import LocalJob, finish, is_running, job
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


@pytest.mark.thorough
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
import os, time
from pathlib import Path

from torch import nn, optim
from muster_trainer.pytorch.digits import dataset, loss, metrics

SURVIVES = True

def hold(name):
    if Path(name).exists():
        Path(f"{name}-{os.getpid()}").touch()
    while Path(name).exists():
        time.sleep(0.01)

hold("before-joining")

def build_model(config):
    hold("while-building")
    return nn.Sequential(nn.Linear(64, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 10))

def optimizer(model, config):
    return optim.AdamW(model.parameters(), lr=config.learningRate)
"""


def own_config(*, delay: float) -> dict[str, Any]:
    return {**CONFIG, "epochs": 4, "learningRate": 0.002, "evaluateEveryEpochs": 1, "stepDelaySeconds": delay}


def own_job(size: int) -> dict[str, Any]:
    return job(
        replicas=size,
        trainer={"module": "own", "config": own_config(delay=STEP_SECONDS)},
        batch={"globalSize": 64},
        checkpoint={"everySteps": 10},
        recovery={"infrastructure": {"limit": -1}},
    )


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


@pytest.mark.thorough
def test_running_averages_and_an_optimizer_with_state_survive_many_kills(own: Path) -> None:
    """Also kills during the rebuild: the new process dies as soon as it is there. Saves and evaluations are under way at times."""
    random = seeded_random()
    size = 3
    like = undisturbed(own, size)
    run = LocalJob(own)
    with run.running(run.write(own_job(size))):
        for number in range(3):
            run.wait_for_step(random.randint(3, 18) + 22 * number)
            # read again each time, because a survivor that is slow to leave a rebuild ends
            pids = {rank: run.pid_of(f"worker-{rank}") for rank in range(size)}
            time.sleep(random.uniform(0, 2 * STEP_SECONDS))
            again = number == 1
            victim = 0 if again else random.randrange(size)  # the others connect to rank 0 when it dies again
            os.kill(pids[victim], signal.SIGKILL)
            pids[victim] = new_pid(run, victim, pids[victim])
            if again:
                os.kill(pids[victim], signal.SIGKILL)
                pids[victim] = new_pid(run, victim, pids[victim])
        run.check_succeeded(like)
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


BEFORE_JOINING, WHILE_BUILDING = "before-joining", "while-building"


def held(run: LocalJob, place: str) -> int:
    """Waits until a new process is held at that place. Its id."""
    path = wait_until(lambda: next(run.folder.glob(f"{place}-*"), None), f"a process {place}")
    return int(path.name.rpartition("-")[2])


def undisturbed(folder: Path, size: int) -> dict[int, str]:
    with world("DDP", trainer(None, module="own", config=own_config(delay=0.0)), size=size, PYTHONPATH=str(folder)) as like:
        assert like.finish() == [0] * size, like.story()
    return like.losses()


@pytest.mark.parametrize(
    ("place", "second"),
    [
        pytest.param(BEFORE_JOINING, 0, marks=pytest.mark.thorough),
        pytest.param(BEFORE_JOINING, 1, marks=pytest.mark.thorough),
        (WHILE_BUILDING, 0),
        pytest.param(WHILE_BUILDING, 1, marks=pytest.mark.thorough),
    ],
)
def test_a_survivor_that_is_killed_during_the_rebuild_costs_no_step(own: Path, place: str, second: int) -> None:
    """Rank 0 hosts the meeting of the ranks. The third process survives both losses."""
    size, first = 3, 2
    like = undisturbed(own, size)
    run = LocalJob(own)
    with run.running(run.write(own_job(size))):
        run.wait_for_step(seeded_random().randint(3, 30))
        pids = {rank: run.pid_of(f"worker-{rank}") for rank in range(size)}
        (own / place).touch()
        os.kill(pids[first], signal.SIGKILL)
        held(run, place)
        os.kill(pids[second], signal.SIGKILL)
        (own / place).unlink()
        run.check_succeeded(like)
    third = 1 - second
    assert {event["pid"] for event in run.events("survived") if event["attempt"] == run.attempts[-1]["attempt"]} == {pids[third]}
    assert {record["stepsLost"] for record in run.attempts if "stepsLost" in record} == {0}
    assert run.attempts[-1]["resumedFrom"] == "Survivors"


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["no next world", BEFORE_JOINING, WHILE_BUILDING])
def test_a_stop_ends_a_survivor_that_waits_and_it_saves_first(own: Path, place: str) -> None:
    size = 2
    like = undisturbed(own, size)
    run = LocalJob(own)
    document = own_job(size)
    document["spec"]["checkpoint"] = {"everySteps": 1000, "gracePeriodSeconds": 10}
    name = run.write(document)
    with run.running(name) as process:
        run.wait_for_step(seeded_random().randint(3, 30))
        pid = run.pid_of("worker-1")
        if place == "no next world":
            os.kill(run.supervisor_of("worker-1"), signal.SIGSTOP)  # it does not say that it is ready
        else:
            (own / place).touch()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: run.events("waiting"), "a survivor")
        if place != "no next world":
            held(run, place)
        process.send_signal(signal.SIGINT)
        code, output = finish(process)
    assert code != 0, output
    done = max(event["step"] for event in run.events("step"))
    with run.running(name, "--resume"):
        (own / place).unlink(missing_ok=True)
        run.check_succeeded(like)
    resumed = run.events("resumed")[-1]
    assert (resumed["step"], resumed["source"]) == (done, "Storage")


@pytest.mark.thorough
def test_a_survivor_that_waits_for_a_peer_that_never_comes_saves_and_goes_on_in_a_later_world(own: Path) -> None:
    """The world counts as hung, and the process that keeps it waiting ends."""
    size = 2
    like = undisturbed(own, size)
    run = LocalJob(own)
    document = own_job(size)
    document["spec"]["checkpoint"] = {"everySteps": 1000}
    document["spec"]["recovery"]["hang"] = {"startSeconds": 30}
    with run.running(run.write(document)):
        run.wait_for_step(seeded_random().randint(3, 30))
        survivor = run.pid_of("worker-0")
        (own / BEFORE_JOINING).touch()
        os.kill(run.pid_of("worker-1"), signal.SIGKILL)
        late = held(run, BEFORE_JOINING)
        wait_until(lambda: not is_running(late), "the end of the process that is late")
        (own / BEFORE_JOINING).unlink()
        run.check_succeeded(like)
    done = max(event["step"] for event in run.events("step") if event["attempt"] == 0)
    assert [record["reason"] for record in run.attempts] == ["ProcessKilled", "Hang", "Completed"], run.story()
    assert (run.attempts[2]["resumedFrom"], run.attempts[2]["stepResumed"], run.attempts[2]["stepsLost"]) == ("Survivors", done, 0)
    assert [event["pid"] for event in run.events("survived")] == [survivor]
    assert [event["step"] for event in run.events("commit") if event["reason"] == "PeerLost"] == [done]
