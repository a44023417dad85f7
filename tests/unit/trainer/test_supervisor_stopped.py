"""When a supervisor reports a process as stopped, and how it continues one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from muster_contract.reports import ProcessState
from muster_trainer.supervisor import stacks
from muster_trainer.supervisor.processes import Process
from muster_trainer.supervisor.replica import state_of
from muster_trainer.supervisor.survivors import order_to_leave
from tests.support.waiting import wait_until


@pytest.mark.parametrize(
    ("looks", "idle", "reported"),
    [
        ([(0.0, True), (1.0, True), (2.9, True)], 60, False),
        ([(0.0, True), (1.0, True), (3.0, True)], 60, True),
        ([(0.0, True), (1.0, False), (2.0, True), (3.0, True)], 60, False),
        ([(0.0, False), (3.0, True)], 60, False),
        ([(0.0, True), (3.0, True)], 0.1, False),
    ],
)
def test_a_process_counts_as_stopped_after_three_seconds(
    looks: list[tuple[float, bool]], idle: float, reported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(rank=0, pid=1, stdout=0, stderr=0, events=0)
    states = []
    for now, is_stopped in looks:
        monkeypatch.setattr(stacks, "is_stopped", lambda _, result=is_stopped: result)
        states.append(state_of(process, idle=idle, now=now))
    assert set(states[:-1]) == {ProcessState.RUNNING}
    assert (states[-1] is ProcessState.STOPPED) is reported


def test_an_ended_process_is_not_stopped() -> None:
    process = Process(rank=0, pid=1, stdout=0, stderr=0, events=0, wait_status=0, stopped_since=1.0)
    assert state_of(process, idle=60, now=9.0) is ProcessState.EXITED


def test_a_stopped_process_continues_when_it_is_to_leave_its_world() -> None:
    reading, writing = os.pipe()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as child, os.fdopen(reading, "rb") as orders:
        try:
            child.send_signal(signal.SIGSTOP)
            wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_STOPPED, "the process is stopped")
            process = Process(rank=0, pid=child.pid, stdout=0, stderr=0, events=0, orders=writing)
            order_to_leave(process, 3)
            assert orders.readline() == b'{"leave": 3}\n'
            wait_until(lambda: psutil.Process(child.pid).status() != psutil.STATUS_STOPPED, "the process continues")
        finally:
            child.kill()
            os.close(writing)
