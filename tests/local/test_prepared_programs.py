"""A program of the user that saves at stops is imported beforehand where its job is about to move: in a spare, and beside a node that
goes."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.local_jobs import LocalJob, finish, job
from tests.support.supervisors import Coordinator, SupervisorRun
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a warm parent")
PROGRAM = """
import os, sys, time
print("wave is imported:", "wave" in sys.modules, "attempt", os.environ["MUSTER_ATTEMPT"], flush=True)
import wave
import muster_training as muster

steps = int(sys.argv[1])
done = int(found.step) if (found := muster.latest()) else 0
while done < steps:
    done += 1
    time.sleep(0.1 if muster.environment().attempt in (0, 3) else 0)
    muster.report(step=done, total=steps, loss=1.0)
    stop = muster.should_stop()
    if stop or done == steps:
        with muster.checkpoint(done) as folder:
            (folder / f"rank-{muster.environment().rank}").write_text("")
    if stop:
        break
"""


@pytest.fixture
def local_job(tmp_path: Path) -> LocalJob:
    (tmp_path / "own.py").write_text(PROGRAM)
    return LocalJob(tmp_path)


def imported(printed: str, attempt: int) -> list[bool]:
    """For each process of an attempt, whether it began with the module of the program."""
    lines = [line.split() for line in printed.splitlines() if line.startswith("wave is imported:")]
    return [words[3] == "True" for words in lines if words[5] == str(attempt)]


def test_a_spare_has_imported_what_the_program_begins_with(local_job: LocalJob) -> None:
    document = job(
        trainer={"script": "own.py 600"},
        checkpoint={"everySteps": 50, "gracePeriodSeconds": 10},
        recovery={"spares": 1},
    )
    with local_job.running(local_job.write(document)) as run:
        wait_until(lambda: local_job.status.get("readySpares") == 1, "the spare is ready")
        local_job.wait_for_step(3)
        os.kill(local_job.supervisor_of("worker-0"), signal.SIGKILL)
        code, output = finish(run)
    assert code == 0, output
    [log] = local_job.run.glob("attempts/*/worker-2/log.txt")
    assert imported(log.read_text(), attempt=1) == [True]
    assert imported(local_job.logs(), attempt=0) == [False, False]


def test_a_program_beside_a_node_that_goes_begins_its_next_attempt_with_its_imports(run: SupervisorRun, coordinator: Coordinator) -> None:
    coordinator.reply = {"attempt": 3, "intervalSeconds": 0.1, "graceSeconds": 0.0}
    source = PROGRAM.replace("sys.argv[1]", "100000")
    run.start(source, MUSTER_COORDINATOR=coordinator.url)
    coordinator.wait_for_report(lambda report: (report["progress"] or {}).get("step", 0) >= 3)
    assert len(psutil.Process(run.pid).children()) == 1, "nothing is prepared while no node goes"
    coordinator.reply |= {"notice": {"node": "spot-1", "signal": "taint", "since": 1.0}}
    wait_until(lambda: len(psutil.Process(run.pid).children()) == 3, "the warm parent and a prepared process")
    coordinator.reply = {"attempt": 4, "intervalSeconds": 0.1, "graceSeconds": 20.0}
    coordinator.wait_for_report(lambda report: report["attempt"] == 4 and report["waiting"])
    coordinator.reply |= {"world": {"MUSTER_ATTEMPT": "4", "MASTER_PORT": "29504"}}
    wait_until(lambda: imported(run.out.read_text(), attempt=4), "the next attempt")
    assert imported(run.out.read_text(), attempt=3) == [False]
    assert imported(run.out.read_text(), attempt=4) == [True]
