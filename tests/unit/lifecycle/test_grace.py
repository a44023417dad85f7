"""The grace period of replicas, compared with the time of a save."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.api import grace
from muster.api.status import CheckpointStatus, Condition, ConditionType, GraceStatus, Reason, TrainingJobStatus
from muster.lifecycle.facts.acknowledging import grace_seconds
from muster.lifecycle.observed import ReplicaView
from tests.support.texts import absent
from tests.unit.lifecycle.lifecycle_cases import Story, at, deleted, ended_with, failed, job, replica, report, running, running_story

TIMES = ("65 s", "120 s")
"""Of a save, and of the pods that are created from now on."""
REMEDY = "shutdownGracePeriod"


def status(seconds: float | None) -> TrainingJobStatus:
    return TrainingJobStatus(checkpoint=CheckpointStatus(step=7, path="step-7", committed_at=at(20), measured_seconds=seconds))


@pytest.mark.parametrize(
    ("measured", "allowed", "needed", "granted"),
    [
        (TrainingJobStatus(), 120, 0, 120),
        (status(None), 120, 0, 120),
        (status(0.2), 1, 6, 6),
        (status(30), 120, 65, 120),
        (status(57.5), 120, 120, 120),
        (status(57.6), 120, 121, 121),
        (status(300), 120, 605, 605),
        (status(86400), 120, 172805, 86400),  # the maximum of the field
    ],
)
def test_the_grace_period_is_at_least_twice_the_newest_save(measured: TrainingJobStatus, allowed: int, needed: int, granted: int) -> None:
    spec = job(checkpoint={"gracePeriodSeconds": allowed}).spec
    assert (grace.needed(measured), grace.seconds(spec, measured)) == (needed, granted)


def saving(took: float = 30, *, attempt: int = 0, seconds: float = 20, story: Story | None = None) -> Story:
    """A job with running workers. Its newest save took `took` seconds."""
    subject = story or running_story()
    commit = {"step": 7 + attempt, "path": f"step-{7 + attempt}", "time": at(seconds).timestamp(), "seconds": took}
    subject.see(*running(attempt=attempt), seconds=seconds)
    reported = report(step=8 + attempt, attempt=attempt, checkpoint=commit)
    subject.see(replica("worker-0", attempt=attempt, report=reported), replica("worker-1", attempt=attempt), seconds=seconds)
    return subject


def leaving(given: float, *, attempt: int = 0, seconds: float = 30, **changes: Any) -> ReplicaView:
    """Worker 1, which somebody other than Muster deletes."""
    times = {"deleting": at(seconds), "due": at(seconds + given)}
    return replica("worker-1", attempt=attempt, node="node-b", **{**times, **changes})


def condition(subject: Story) -> Condition | None:
    return subject.status.condition(ConditionType.GRACE_SUFFICIENT)


def test_a_replica_with_too_short_a_grace_period_is_named_with_its_node() -> None:
    subject = saving()
    assert condition(subject) is None
    looks = replica("worker-0"), leaving(40)
    subject.see(*looks, seconds=30)
    shown = condition(subject)
    assert shown
    assert (shown.status, shown.reason) == ("False", "GraceTooShort")
    assert absent(shown.message, "worker-1", "node-b", "40 s", *TIMES, REMEDY) == []
    subject.see(*looks, seconds=31)
    subject.see(replica("worker-0"), leaving(40, phase="Failed", finished=at(35), termination=ended_with(22)), seconds=36)
    assert condition(subject) == shown, "known of this attempt, and told"


@pytest.mark.parametrize(
    "view",
    [
        leaving(65),
        leaving(40, phase="Pending"),
        leaving(40, due=None),
        failed("worker-1", seconds=29, deleting=at(30), due=at(70)),
    ],
    ids=["enough", "it never ran", "a process of this machine", "it had ended before"],
)
def test_there_is_no_condition_if_no_save_was_cut_short(view: ReplicaView) -> None:
    subject = saving()
    subject.see(replica("worker-0"), view, seconds=30)
    assert condition(subject) is None


def test_there_is_no_condition_if_no_save_was_measured() -> None:
    subject = running_story()
    subject.see(replica("worker-0"), leaving(1), seconds=30)
    subject.see(replica("worker-0"), failed("worker-1", 22, seconds=31), seconds=31)
    assert condition(subject) is None


def test_a_short_grace_period_is_noticed_after_the_end_of_the_replica() -> None:
    subject = saving()
    subject.see(replica("worker-0"), leaving(40, phase="Failed", finished=at(35), exit_code=137), seconds=36)
    assert subject.condition("GraceSufficient") == ("False", "GraceTooShort")


def test_replicas_that_muster_removes_do_not_count() -> None:
    subject = saving()
    subject.edit(suspend=True)
    decision = subject.see(*running(), seconds=30)
    assert deleted(decision) == ["worker-0/0", "worker-1/0"]
    subject.see(replica("worker-0"), leaving(40), seconds=31)
    assert condition(subject) is None


@pytest.mark.parametrize(
    "view",
    [
        failed("worker-1", 22, seconds=30, node="node-b"),
        failed("worker-1", 22, seconds=30, node="node-b", reason="Terminated"),
        leaving(90, termination=ended_with(22), disruption="EvictionByEvictionAPI"),
    ],
    ids=["by itself", "by a shutdown of its node", "by an eviction"],
)
def test_an_unsaved_attempt_is_shown_even_if_its_grace_period_is_unknown(view: ReplicaView) -> None:
    subject = saving()
    subject.see(replica("worker-0"), view, seconds=31)
    shown = condition(subject)
    assert shown
    assert (shown.status, shown.reason) == ("False", "PreemptedNotSaved")
    recorded = subject.status.grace
    assert recorded
    assert (recorded.attempt, recorded.replica, recorded.node, recorded.given_seconds) == (
        0,
        "worker-1",
        "node-b",
        90 if view.due else None,
    )
    assert absent(shown.message, "worker-1", "node-b", *TIMES, REMEDY) == []
    assert ("90 s" in shown.message) is (view.due is not None)


def test_only_an_unsaved_replica_that_was_preempted_itself_counts() -> None:
    subject = saving()
    lost = replica("worker-1", phase="Failed", finished=at(30), reason="NodeLost", node="node-b")
    subject.see(failed("worker-0", 22, seconds=31), lost, seconds=32)
    assert condition(subject) is None


def again(subject: Story, attempt: int, *, seconds: float) -> None:
    """Starts the attempt in new pods."""
    subject.see(seconds=seconds - 2)
    saving(attempt=attempt, seconds=seconds, story=subject)
    assert subject.status.phase == "Running"


def test_the_grace_period_is_sufficient_once_a_later_preempted_attempt_saved() -> None:
    subject = saving()
    assert condition(subject) is None
    subject.see(replica("worker-0"), leaving(40), seconds=30)
    subject.see(replica("worker-0"), leaving(40, phase="Failed", finished=at(35), termination=ended_with(21)), seconds=36)
    earlier = condition(subject)
    assert earlier
    assert earlier.status == "False", "saved in time by luck"
    again(subject, 1, seconds=50)
    assert condition(subject) == earlier
    looks = [failed(f"worker-{index}", 21, seconds=60, attempt=1) for index in range(2)]
    subject.see(*looks, seconds=61)
    shown = condition(subject)
    assert shown
    assert (shown.status, shown.reason) == ("True", "SavedInTime")
    assert subject.status.grace == GraceStatus(attempt=1, reason=Reason.SAVED_IN_TIME)
    subject.see(*looks, seconds=62)
    assert condition(subject) == shown


def test_a_condition_of_an_older_version_becomes_true_after_a_save_in_time() -> None:
    subject = saving()
    subject.see(replica("worker-0"), leaving(40), seconds=30)
    subject.see(replica("worker-0"), leaving(40, phase="Failed", finished=at(35), termination=ended_with(21)), seconds=36)
    again(subject, 1, seconds=50)
    subject.job = subject.job.with_status(replace(subject.status, grace=None))
    subject.see(*running(attempt=1), seconds=51)
    assert subject.condition("GraceSufficient") == ("False", "GraceTooShort")
    subject.see(*[failed(f"worker-{index}", 21, seconds=60, attempt=1) for index in range(2)], seconds=61)
    assert subject.condition("GraceSufficient") == ("True", "SavedInTime")


def test_a_drained_replica_with_a_save_in_time_counts() -> None:
    subject = saving()
    subject.see(replica("worker-0"), leaving(40), seconds=30)
    again(subject, 1, seconds=50)
    disruption = "EvictionByEvictionAPI"
    gone = leaving(90, attempt=1, seconds=60, phase="Failed", finished=at(70), termination=ended_with(21), disruption=disruption)
    subject.see(replica("worker-0", attempt=1), gone, seconds=71)
    assert subject.condition("GraceSufficient") == ("True", "SavedInTime")


@given(st.lists(st.tuples(st.sampled_from([None, 40, 90]), st.sampled_from([21, 22, 137])), min_size=1, max_size=6))
def test_the_newest_attempt_with_evidence_decides_the_condition(ends: list[tuple[int | None, int]]) -> None:
    subject, expected = Story(job(recovery={"infrastructure": {"limit": 100}})), ""
    for attempt, (seconds, code) in enumerate(ends):
        began = 1000.0 * attempt + 20
        again(subject, attempt, seconds=began)
        goes = replica("worker-1", attempt=attempt) if seconds is None else leaving(seconds, attempt=attempt, seconds=began + 10)
        gone = replace(failed("worker-1", code, seconds=began + 20, attempt=attempt), deleting=goes.deleting, due=goes.due)
        for view, after in ((goes, 10), (gone, 21), (gone, 21)):
            subject.see(replica("worker-0", attempt=attempt), view, seconds=began + after)
        status_before = subject.status
        subject.see(replica("worker-0", attempt=attempt), gone, seconds=began + 21)
        assert subject.status == status_before
        if seconds == 40 or code == 22:
            expected = f"False, attempt {attempt}"
        elif code == 21 and expected.startswith("False"):
            expected = f"True, attempt {attempt}"
        shown, recorded = condition(subject), subject.status.grace
        assert expected == (f"{shown.status}, attempt {recorded.attempt}" if shown and recorded else "")


def test_a_job_that_always_saved_in_time_has_no_condition() -> None:
    subject = saving()
    subject.see(*(failed(f"worker-{index}", 21, seconds=30) for index in range(2)), seconds=31)
    assert condition(subject) is None


def test_replicas_that_restart_in_place_get_the_time_of_a_save() -> None:
    subject = saving(100)
    subject.edit(roles={"worker": {"replicas": 1}})
    subject.see(*running(), seconds=30)
    assert grace_seconds(subject.job.spec, subject.status) == 205


def test_the_measured_time_of_a_save_outlives_commits_without_a_time() -> None:
    subject = saving()
    commit = {"step": 9, "path": "step-9"}
    subject.see(replica("worker-0"), leaving(90, phase="Failed", finished=at(35), termination=ended_with(21, commit=commit)), seconds=36)
    subject.see(*running(attempt=1), seconds=40)
    read = report(attempt=1, resumed={"step": 10, "committedStep": 10, "path": "/checkpoints/step-10"})
    subject.see(replica("worker-0", attempt=1, report=read), replica("worker-1", attempt=1), seconds=41)
    checkpoint = subject.status.checkpoint
    assert checkpoint
    assert (checkpoint.step, checkpoint.verified, checkpoint.seconds, checkpoint.measured_seconds) == (10, True, None, 30)


def test_a_short_save_at_most_halves_the_measured_time() -> None:
    subject = saving(30)
    measured = []
    for step, took in ((20, 1.0), (30, 1.0), (40, 20.0)):
        commit = {"step": step, "path": f"step-{step}", "time": at(step).timestamp(), "seconds": took}
        subject.see(replica("worker-0", report=report(step=step, checkpoint=commit)), replica("worker-1"), seconds=10 * step)
        measured.append(subject.status.checkpoint and subject.status.checkpoint.measured_seconds)
    assert measured == [15, 7.5, 20]
