"""A world that stands still is detected, shown with the stacks of all ranks, and restarted, although none of its processes has died."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.bare_worlds import trainer, world
from tests.support.local_jobs import LocalJob, finish, job
from tests.support.waiting import wait_until

SECONDS = 240.0
LIMIT = 8
SAVE_LIMIT = 60
"""A busy disk may hold up a save."""
SLEEPER = '''
"""Rank 1 sleeps for ever in the step after the file `sleep` appears."""
import os, time
from pathlib import Path

from torch import nn
from muster_trainer.tasks.digits import dataset

def build_model(config):
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

def metrics(outputs, batch):
    return {}

def loss(outputs, batch):
    if os.environ["RANK"] == "1" and Path("sleep").exists():
        Path("sleep").unlink()
        time.sleep(1e6)
    return nn.functional.cross_entropy(outputs, batch[1], reduction="none")
'''


@pytest.mark.torch
def test_a_stopped_rank_and_one_that_sleeps_in_a_step_are_named_with_all_stacks_and_nothing_is_lost(tmp_path: Path) -> None:
    local_job = LocalJob(tmp_path)
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    config = {"epochs": 6, "seed": 3, "deterministic": True, "stepDelaySeconds": 0.05}
    name = local_job.write(
        job(
            trainer={"module": "sleeper", "config": config},
            batch={"globalSize": 64},
            checkpoint={"everySteps": 10},
            recovery={"hang": {"stepSeconds": LIMIT, "saveSeconds": SAVE_LIMIT}},
        )
    )
    with local_job.running(name) as run:
        wait_until(lambda: local_job.step >= 25, "step 25", SECONDS)
        os.kill(local_job.pid_of("worker-1"), signal.SIGSTOP)
        wait_until(lambda: local_job.status["attempt"] == 1 and local_job.committed >= 40, "a commit of the second attempt", SECONDS)
        (tmp_path / "sleep").touch()
        code, output = finish(run, SECONDS)
    assert code == 0, output
    stopped, slept, last = local_job.status["attempts"]
    assert (stopped["reason"], stopped["replica"]) == ("Hang", "worker-1")
    assert (slept["reason"], slept["replica"]) == ("Hang", "worker-1")
    first, second = slept["stacks"].splitlines()
    assert first.startswith("rank 1: sleeping, loss (")
    assert second.startswith("rank 0: ")
    assert "distributed" in second or "autograd" in second, second
    assert last["stepResumed"] >= 40
    assert [record["stepsLost"] for record in (slept, last)] == [0, 0], "a rank that only waits for the other saves its last step"
    for rank in (0, 1):
        log = (local_job.run / f"attempts/0/worker-{rank}/log.txt").read_text()
        assert log.count("attempt 0 hangs") == log.count("attempt 1 hangs") == 1
        assert log.count("most recent call first") >= 2 * 2, "two threads each time"
        assert "training/loop.py" in log
    assert log.count("PeerLost: rank 1") <= 1, "the process that sleeps cannot leave the world by itself"
    calm = trainer(None, config={**config, "stepDelaySeconds": 0.0}, module="sleeper")
    with world("DDP", calm, PYTHONPATH=str(tmp_path)) as undisturbed:
        assert undisturbed.finish() == [0, 0], undisturbed.story()
    assert local_job.losses() == undisturbed.losses()
