"""When a supervisor reports a process as stopped."""

from __future__ import annotations

import pytest

from muster_contract.reports import ProcessState
from muster_trainer.supervisor import stacks
from muster_trainer.supervisor.processes import Process
from muster_trainer.supervisor.replica import state_of


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
