"""A node that announces that it goes: the training saves at its next step, and a program can read the notice."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.support.local_jobs import LocalJob, announce, finish, job
from tests.support.waiting import wait_until

PROGRAM = """
import time
import muster_training as muster
for step in range(1, 10000):
    time.sleep(0.02)
    muster.report(step=step, total=10000)
    if muster.should_stop():
        break
    if (notice := muster.notice()) is not None:
        print("sees", notice.node, notice.signal, notice.goes, notice.goes_at, flush=True)
        break
"""
REGISTERED = """
import time
import muster_training as muster
state = muster.register(count=(lambda: 0, lambda saved: None))
while not state.finish_step(total=10000):
    time.sleep(0.02)
"""


def check_saves_once(run: LocalJob, *, further_steps: int) -> None:
    """After a notice there is one commit, and no other one in the steps that follow."""
    announce(run.pid_of("worker-0"))
    [commit] = wait_until(lambda: run.events("commit"), "a commit")
    assert commit["reason"] == "Periodic"
    steps = len(run.events("step"))
    wait_until(lambda: len(run.events("step")) >= steps + further_steps, f"{further_steps} further steps")
    assert run.events("commit") == [commit]


def test_the_bundled_trainer_saves_once_at_the_next_step(tmp_path: Path) -> None:
    run = LocalJob(tmp_path)
    config = {"epochs": 1000, "stepDelaySeconds": 0.05}
    run.write(job(trainer={"task": "digits", "config": config}, checkpoint={"everySteps": 100000}))
    with run.running("job.yaml") as process:
        wait_until(lambda: len(run.events("step")) >= 5, "five steps")
        assert run.events("commit") == []
        check_saves_once(run, further_steps=10)
        process.send_signal(signal.SIGINT)
        finish(process)


def test_the_ranks_of_a_program_that_registers_save_once_at_the_next_step(tmp_path: Path) -> None:
    run = LocalJob(tmp_path)
    (tmp_path / "train.py").write_text(REGISTERED)
    run.write(job(trainer={"script": "train.py"}, checkpoint={"everySteps": 100000}))
    with run.running("job.yaml") as process:
        wait_until(lambda: len(run.events("step")) >= 5, "five steps")
        check_saves_once(run, further_steps=30)
        process.send_signal(signal.SIGINT)
        finish(process)


def test_a_program_of_the_user_reads_the_notice(tmp_path: Path) -> None:
    run = LocalJob(tmp_path)
    (tmp_path / "train.py").write_text(PROGRAM)
    run.write(job(replicas=1, trainer={"script": "train.py"}))
    with run.running("job.yaml") as process:
        wait_until(lambda: run.events("step"), "a step")
        announce(run.pid_of("worker-0"))
        code, output = finish(process)
    assert code == 0, output
    assert "sees spot-1 taint karpenter.sh/disrupted True 1764400120.0" in run.logs()
