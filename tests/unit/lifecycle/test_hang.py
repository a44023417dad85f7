"""The detection of hangs, and the stacks of a world that hung."""

from __future__ import annotations

from typing import Any

import pytest

from muster.api.status import Reason
from muster.lifecycle.policy import Policy
from tests.support.texts import absent
from tests.unit.lifecycle.lifecycle_cases import Story, at, replica, report, running, running_story

HANG = {"hang": {"stepSeconds": 60, "startSeconds": 200, "saveSeconds": 100, "evaluationSeconds": 150}}

STOPPED = [{"rank": 0, "pid": 4711, "state": "Running"}, {"rank": 1, "pid": 4712, "state": "Stopped"}]


def reporting(seconds: float, **fields: Any) -> Any:
    return replica(report=report(**fields), reported=at(seconds))


def story(**spec: Any) -> Story:
    subject = running_story(1, recovery=HANG, **spec)
    subject.policy = Policy(stopped_seconds=30)
    return subject


@pytest.mark.parametrize(
    ("fields", "idle", "hangs"),
    [
        ({"step": 5}, 59, False),
        ({"step": 5}, 60, True),
        ({"step": 5, "phase": "Saving"}, 99, False),
        ({"step": 5, "phase": "Saving"}, 100, True),
        ({"step": 5, "phase": "Evaluating"}, 149, False),
        ({"step": 5, "phase": "Evaluating"}, 150, True),
        ({"step": 5}, None, False),
        ({"phase": "Starting"}, 199, False),
        ({"phase": "Starting"}, 200, True),
        ({"phase": "Starting", "processes": STOPPED}, 29, False),
        ({"phase": "Starting", "processes": STOPPED}, 30, True),
        ({"step": 5, "phase": "Saving", "processes": STOPPED}, 29, False),
        ({"step": 5, "phase": "Saving", "processes": STOPPED}, 30, True),
    ],
)
def test_each_activity_has_a_limit_of_its_own(fields: dict[str, Any], idle: float | None, hangs: bool) -> None:
    subject = story()
    subject.see(reporting(500, idleSeconds=idle, **fields), seconds=500)
    assert (subject.status.attempt == 1) is hangs
    if hangs:
        record = subject.status.attempts[0]
        assert (record.reason, record.failure_class, record.replica) == (Reason.HANG, "Infrastructure", "worker-0")


def test_missing_reports_alone_do_not_restart() -> None:
    subject = story()
    subject.see(reporting(20, step=5, idleSeconds=0), seconds=20)
    subject.see(reporting(20, step=5, idleSeconds=0), seconds=100_000)
    assert subject.status.attempt == 0


def test_a_replica_that_never_reported_does_not_hang() -> None:
    subject = story()
    subject.see(*running(1), seconds=100_000)
    assert subject.status.attempt == 0


def test_a_new_leader_without_reports_does_not_restart() -> None:
    subject = story()
    subject.see(reporting(20, step=5, idleSeconds=0), seconds=20)
    subject.see(*running(1), seconds=100_000)
    assert subject.status.attempt == 0


def test_the_time_without_a_step_starts_with_each_attempt() -> None:
    subject = story()
    subject.see(reporting(80, step=5, idleSeconds=60), seconds=80)
    subject.see(seconds=90)
    subject.see(replica(attempt=1), seconds=1000)
    subject.see(replica(attempt=1, report=report(step=5, idleSeconds=981), reported=at(1001)), seconds=1001)
    assert subject.status.attempt == 1, "a report of the attempt before says nothing of this one"
    subject.see(replica(attempt=1, report=report(attempt=1, phase="Restoring", idleSeconds=300), reported=at(1199)), seconds=1199)
    assert subject.status.attempt == 1
    subject.see(replica(attempt=1, report=report(attempt=1, phase="Restoring", idleSeconds=301), reported=at(1200)), seconds=1200)
    assert subject.status.attempt == 2


def test_a_script_without_steps_does_not_hang_by_steps() -> None:
    subject = story(trainer={"script": "train.py"})
    subject.see(reporting(100_000, phase="Training"), seconds=100_000)
    assert subject.status.attempt == 0


@pytest.mark.parametrize("fields", [{"step": 5, "at_second": 20}, {"phase": "Starting"}])
def test_a_clock_that_jumps_is_no_hang(fields: dict[str, Any]) -> None:
    subject = story()
    subject.see(reporting(20, idleSeconds=1, **fields), seconds=20)
    subject.see(reporting(100_000, idleSeconds=2, **fields), seconds=100_000)
    subject.see(reporting(-100_000, idleSeconds=3, **fields), seconds=-100_000)
    assert subject.status.attempt == 0


WAITING = ("all_reduce (torch/distributed/distributed_c10d.py:1)", "step (pytorch/engine.py:2)")
WAITS = "all_reduce (torch/distributed/distributed_c10d.py:1) < step (pytorch/engine.py:2)"
Stand = tuple[str, tuple[str, ...], bool]
"""State, frames, and whether it waits."""
ALL_WAIT = [("sleeping", WAITING, True), ("sleeping", WAITING, True), ("sleeping", WAITING, True)]
STOPPED = [*ALL_WAIT[:2], ("stopped", WAITING, True)]
READS = [("running", WAITING, True), ("disk-sleep", ("read (data.py:7)", "take (input.py:8)"), False), ("sleeping", WAITING, True)]
UNSEEN = [("sleeping", (), False)]
ALONE = [("running", ("spin (mine.py:1)",), False)]


@pytest.mark.parametrize(
    ("stands", "verdict", "culprit", "first"),
    [
        (ALL_WAIT, "all ranks that answer wait for each other, or for the network", None, f"rank 0, 1, 2: sleeping, {WAITS}"),
        (STOPPED, "rank 2 (worker-2) is stopped by SIGSTOP; the others wait for it", "worker-2", f"rank 2: stopped, {WAITS}"),
        (
            READS,
            "rank 1 (worker-1) is disk-sleep at read (data.py:7); the others wait for it",
            "worker-1",
            "rank 1: disk-sleep, read (data.py:7) < take (input.py:8)",
        ),
        (ALONE, "", None, "rank 0: running, spin (mine.py:1)"),
        (UNSEEN, "", None, "rank 0: sleeping, at an unknown place"),
    ],
)
def test_stacks_name_the_rank_that_caused_the_hang(stands: list[Stand], verdict: str, culprit: str | None, first: str) -> None:
    subject = running_story(len(stands), recovery=HANG)
    others = [replica_of(index, 80) for index in range(1, len(stands))]
    subject.see(replica(report=report(step=5, idleSeconds=60), reported=at(80)), *others, seconds=80)
    base = subject.status.attempts[0].message
    assert subject.status.attempt == 1
    assert absent(base, "step 5", "60 s", "training") == []
    for reported in range(len(stands)):
        views = [replica_of(index, 81, stands[index] if index <= reported else None) for index in range(len(stands))]
        subject.see(*views, seconds=81)
    record = subject.status.attempts[0]
    assert (record.message, record.replica or None) == (f"{base}: {verdict}" if verdict else base, culprit)
    assert record.stacks.splitlines()[0] == first


def replica_of(index: int, seconds: float, stands: Stand | None = None) -> Any:
    """A replica of the attempt that hung. With `stands`, its processes have ended and it reports their stack."""
    fields: dict[str, Any] = {"inPlace": True}
    if stands:
        state, frames, waits = stands
        stack = {"attempt": 0, "rank": index, "state": state, "frames": list(frames), "waits": waits}
        fields |= {"attempt": 1, "waiting": True, "phase": "Starting", "stacks": [stack]}
    return replica(f"worker-{index}", report=report(f"worker-{index}", **fields), reported=at(seconds))


def test_other_ranks_show_progress_when_rank_0_is_cut_off() -> None:
    subject = running_story(2, recovery=HANG)
    silent = replica("worker-0", report=report(step=5, idleSeconds=0), reported=at(20))

    def other(step: int, stepped: float, reported: float) -> Any:
        newest = report("worker-1", ranks=[{"rank": 1, "step": step}], idleSeconds=reported - stepped)
        return replica("worker-1", report=newest, reported=at(reported))

    subject.see(silent, other(90, 139, 140), seconds=140)
    assert subject.status.attempt == 0
    subject.see(silent, other(91, 141, 200), seconds=200)
    assert subject.status.attempt == 0
    subject.see(silent, other(91, 141, 201), seconds=201)
    assert "step 91" in subject.status.attempts[0].message
