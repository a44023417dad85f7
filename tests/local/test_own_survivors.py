"""Programs of users whose processes lose a peer: those that are called again in the next world, and those that wait for a silent peer."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.local.test_own_loop import final_state, undisturbed
from tests.support.local_jobs import LocalJob, finish, job
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the connections of a process")
FUNCTION = '''
"""Adds up random numbers as a function. All ranks meet in each step, as in a collective. The steps of early attempts take time."""
import os, random, sys, time
import muster_training as muster
from muster_training.session import current

steps, seconds = int(sys.argv[1]), float(sys.argv[2])
calls = []

def train():
    calls.append(1)
    place = muster.environment()
    print("call", len(calls), "rank", place.rank, "attempt", place.attempt, "pid", os.getpid(), flush=True)
    random.seed(7)
    total = [1.0]
    state = muster.register(total=(lambda: list(total), lambda saved: total.__setitem__(slice(None), saved)))
    while state.step < steps:
        current().ranks.gather("")
        time.sleep(0 if place.attempt else seconds)
        total[0] = (total[0] * 1.37 + random.random()) % 97
        if state.finish_step(total=steps, loss=total[0]):
            break
    return total[0]

print("the result is", muster.run(train), flush=True)
'''
DDP = '''
"""Trains with DDP as a function. The data and the model are made once, and the loader goes on in the middle of an epoch."""
import os, sys, time
import torch, torch.distributed as dist
from torch import nn
import muster_training as muster

steps, seconds = int(sys.argv[1]), float(sys.argv[2])
torch.manual_seed(0)
inner = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.2), nn.Linear(16, 1))
data = torch.randn(102, 4, generator=torch.Generator().manual_seed(1))
loader = muster.data_loader(data, 8, shuffle=True, drop_last=True, num_workers=1)
calls = []

def train():
    calls.append(1)
    place = muster.environment()
    print("call", len(calls), "rank", place.rank, "attempt", place.attempt, "pid", os.getpid(), flush=True)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(inner)
    optimizer = torch.optim.Adam(model.parameters())
    state = muster.register(model=model, optimizer=optimizer, loader=loader)
    ends = state.step >= steps
    while not ends:
        for batch in loader:
            loss = (model(batch) - batch.sum(1, keepdim=True)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0 if place.attempt > 1 else seconds)
            if ends := state.finish_step(total=steps, loss=loss.item()):
                break
    dist.destroy_process_group()

CALL
'''


@pytest.fixture
def local_job(tmp_path: Path) -> LocalJob:
    (tmp_path / "function.py").write_text(FUNCTION)
    (tmp_path / "ddp.py").write_text(DDP.replace("CALL", "muster.run(train)"))
    return LocalJob(tmp_path)


def calls(local_job: LocalJob) -> dict[tuple[int, int], tuple[int, int]]:
    """For each attempt and rank, the number of the call of its process, and its pid."""
    lines = [line.split() for line in local_job.logs().splitlines() if line.startswith("call ")]
    return {(int(words[5]), int(words[3])): (int(words[1]), int(words[7])) for words in lines}


def test_a_process_that_loses_its_peer_calls_its_function_again_and_no_step_is_lost(local_job: LocalJob, tmp_path: Path) -> None:
    document = job(trainer={"script": "function.py 60 0.1"}, checkpoint={"everySteps": 500, "gracePeriodSeconds": 10})
    local_job.write(document)
    with local_job.running("job.yaml") as run:
        local_job.wait_for_step(12)
        first = local_job.pid_of("worker-0")
        local_job.kill("worker-1")
        code, output = finish(run)
    assert code == 0, output
    made = calls(local_job)
    assert made[1, 0] == (2, first), "the same process"
    assert made[1, 1][0] == 1, "a new process"
    before, after = local_job.status["attempts"]
    assert before["lastStep"] == after["stepResumed"] >= 12
    assert after["stepsLost"] == 0
    [survived] = local_job.events("survived")
    assert (survived["rank"], survived["pid"], survived["step"]) == (0, first, after["stepResumed"])
    assert local_job.logs().count("the result is") == 2
    assert final_state(local_job, 60) == undisturbed(tmp_path, document, 60)


def test_an_error_of_the_function_itself_ends_the_process(local_job: LocalJob, tmp_path: Path) -> None:
    wrong = FUNCTION.replace("        time.sleep(", "        assert state.step < 5, 'wrong'\n        time.sleep(")
    (tmp_path / "function.py").write_text(wrong)
    local_job.write(
        job(trainer={"script": "function.py 60 0"}, recovery={"application": {"limit": 0}}, checkpoint={"gracePeriodSeconds": 10})
    )
    code, output = local_job.muster_run("job.yaml")
    assert code != 0
    assert "AssertionError: wrong" in output
    assert {number for number, _ in calls(local_job).values()} == {1}


@pytest.mark.torch
def test_ddp_goes_on_from_the_memory_of_either_rank_with_the_weights_of_an_undisturbed_run(local_job: LocalJob, tmp_path: Path) -> None:
    document = job(trainer={"script": "ddp.py 60 0.1"}, checkpoint={"everySteps": 500, "gracePeriodSeconds": 10})
    local_job.write(document)
    with local_job.running("job.yaml") as run:
        local_job.wait_for_step(12)
        local_job.kill("worker-1")
        done = local_job.wait_for_event("waiting")["step"]
        local_job.wait_for_step(done + 5, attempt=1)
        local_job.kill("worker-0", attempt=1)
        code, output = finish(run, 300)
    assert code == 0, output
    made = calls(local_job)
    assert made[1, 0] == (2, made[0, 0][1])
    assert made[2, 1] == (2, made[1, 1][1])
    assert made[2, 0][0] == 1
    attempts = local_job.status["attempts"]
    assert [each["stepsLost"] for each in attempts[1:]] == [0, 0]
    assert [(each["resumedFrom"], each["survivors"]) for each in attempts[1:]] == [("Survivors", 1), ("Survivors", 1)]
    assert [each["stepResumed"] for each in attempts[1:]] == [each["lastStep"] for each in attempts[:-1]]
    # Python's and NumPy's generators, which the program does not use and does not seed, are in a file of each rank.
    assert final_state(local_job, 60)["state.muster"] == undisturbed(tmp_path, document, 60)["state.muster"]


@pytest.mark.thorough
@pytest.mark.torch
def test_a_rank_whose_peer_is_silent_saves_its_last_step_when_the_attempt_ends(local_job: LocalJob, tmp_path: Path) -> None:
    """Its collective ends neither by an error nor by a time-out of its own: the supervisor orders it to leave."""
    (tmp_path / "ddp.py").write_text(DDP.replace("CALL", "train()"))
    hang = {"stepSeconds": 20, "saveSeconds": 60}
    document = job(trainer={"script": "ddp.py 60 0.1"}, checkpoint={"everySteps": 500, "gracePeriodSeconds": 10}, recovery={"hang": hang})
    local_job.write(document)
    with local_job.running("job.yaml") as run:
        local_job.wait_for_step(12)
        os.kill(local_job.pid_of("worker-1"), signal.SIGSTOP)
        wait_until(lambda: local_job.status["attempt"] == 1, "the end of the attempt that hangs", 120)
        code, output = finish(run, 300)
    assert code == 0, output
    before, after = local_job.status["attempts"][:2]
    assert (before["reason"], before["replica"]) == ("Hang", "worker-1")
    assert before["lastStep"] == after["stepResumed"] >= 12
    assert after["stepsLost"] == 0
    assert final_state(local_job, 60)["state.muster"] == undisturbed(tmp_path, document, 60)["state.muster"]
