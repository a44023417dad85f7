"""Do replicas get the time that a save takes?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.api import grace
from muster.api.status import CheckpointStatus, Condition, ConditionType, GraceStatus, Reason, TrainingJobStatus
from muster.lifecycle.observed import ReplicaView
from muster.lifecycle.transition.in_place import grace_seconds
from tests.unit.lifecycle.lifecycle_cases import Story, at, deleted, failed, job, replica, report, running, running_story, words

TIMES = "a save takes up to 65 s, and pods created from now on allow 120 s"
ADVICE = "where a node gives less, raise shutdownGracePeriod of its kubelet, or drain with a longer --grace-period"


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
        (status(86400), 120, 172805, 86400),  # no field may say more
    ],
)
def test_twice_the_newest_save_and_a_little_is_needed_and_never_less_than_the_job_allows_is_granted(
    measured: TrainingJobStatus, allowed: int, needed: int, granted: int
) -> None:
    spec = job(checkpoint={"gracePeriodSeconds": allowed}).spec
    assert (grace.needed(measured), grace.seconds(spec, measured)) == (needed, granted)


def saving(took: float = 30, *, attempt: int = 0, seconds: float = 20, story: Story | None = None) -> Story:
    """A job whose workers run the attempt, and whose newest save took so long."""
    subject = story or running_story()
    commit = {"step": 7 + attempt, "path": f"step-{7 + attempt}", "time": at(seconds).timestamp(), "seconds": took}
    subject.see(*running(attempt=attempt), seconds=seconds)
    told = report(step=8 + attempt, attempt=attempt, checkpoint=commit)
    subject.see(replica("worker-0", attempt=attempt, report=told), replica("worker-1", attempt=attempt), seconds=seconds)
    return subject


def asked(given: float, *, attempt: int = 0, seconds: float = 30, **changes: Any) -> ReplicaView:
    """Worker 1, which somebody else asked to go."""
    times = {"deleting": at(seconds), "due": at(seconds + given)}
    return replica("worker-1", attempt=attempt, node="node-b", **{**times, **changes})


def condition(subject: Story) -> Condition | None:
    return subject.status.condition(ConditionType.GRACE_SUFFICIENT)


def test_a_replica_that_is_asked_to_go_with_less_than_a_save_takes_is_named_with_its_node() -> None:
    subject = saving()
    assert condition(subject) is None
    looks = replica("worker-0"), asked(40)
    subject.see(*looks, seconds=30)
    found = condition(subject)
    assert found
    assert (found.status, found.reason) == ("False", "GraceTooShort")
    assert found.message == f"attempt 0: worker-1 on node-b was asked to stop with a grace period of 40 s; {TIMES}: {ADVICE}"
    subject.see(*looks, seconds=31)
    subject.see(replica("worker-0"), asked(40, phase="Failed", finished=at(35), last_words=words(22)), seconds=36)
    assert condition(subject) == found, "known of this attempt, and told"


@pytest.mark.parametrize(
    "view",
    [
        asked(65),
        asked(40, phase="Pending"),
        asked(40, due=None),
        failed("worker-1", seconds=29, deleting=at(30), due=at(70)),
    ],
    ids=["enough", "it never ran", "a process of this machine", "it had ended before"],
)
def test_nothing_is_said_where_no_save_was_cut_short(view: ReplicaView) -> None:
    subject = saving()
    subject.see(replica("worker-0"), view, seconds=30)
    assert condition(subject) is None


def test_nothing_is_said_where_no_save_was_measured() -> None:
    subject = running_story()
    subject.see(replica("worker-0"), asked(1), seconds=30)
    subject.see(replica("worker-0"), failed("worker-1", 22, seconds=31), seconds=31)
    assert condition(subject) is None


def test_one_that_ended_before_anybody_looked_was_asked_with_too_little_all_the_same() -> None:
    subject = saving()
    subject.see(replica("worker-0"), asked(40, phase="Failed", finished=at(35), exit_code=137), seconds=36)
    assert subject.condition("GraceSufficient") == ("False", "GraceTooShort")


def test_what_muster_itself_removes_says_nothing() -> None:
    subject = saving()
    subject.edit(suspend=True)
    decision = subject.see(*running(), seconds=30)
    assert deleted(decision) == ["worker-0/0", "worker-1/0"]
    subject.see(replica("worker-0"), asked(40), seconds=31)
    assert condition(subject) is None


@pytest.mark.parametrize(
    "view",
    [
        failed("worker-1", 22, seconds=30, node="node-b"),
        failed("worker-1", 22, seconds=30, node="node-b", reason="Terminated"),
        asked(90, last_words=words(22), disruption="EvictionByEvictionAPI"),
    ],
    ids=["by itself", "by a shutdown of its node", "by an eviction"],
)
def test_an_attempt_that_could_not_save_is_told_though_nobody_knows_how_long_it_was_given(view: ReplicaView) -> None:
    subject = saving()
    subject.see(replica("worker-0"), view, seconds=31)
    found = condition(subject)
    assert found
    assert (found.status, found.reason) == ("False", "PreemptedNotSaved")
    recorded = subject.status.grace
    assert recorded
    assert (recorded.attempt, recorded.replica, recorded.node, recorded.given_seconds) == (
        0,
        "worker-1",
        "node-b",
        90 if view.due else None,
    )
    given = " with a grace period of 90 s" if view.due else ""
    assert found.message == f"attempt 0: worker-1 on node-b was asked to stop{given}, and did not save; {TIMES}: {ADVICE}"


def test_that_another_than_the_preempted_one_did_not_save_says_nothing_of_its_grace() -> None:
    subject = saving()
    lost = replica("worker-1", phase="Failed", finished=at(30), reason="NodeLost", node="node-b")
    subject.see(failed("worker-0", 22, seconds=31), lost, seconds=32)
    assert condition(subject) is None


def again(subject: Story, attempt: int, *, seconds: float) -> None:
    """The attempt runs, in new pods."""
    subject.see(seconds=seconds - 2)
    saving(attempt=attempt, seconds=seconds, story=subject)
    assert subject.status.phase == "Running"


def test_it_is_sufficient_again_once_a_later_attempt_was_preempted_and_saved() -> None:
    subject = saving()
    assert condition(subject) is None
    subject.see(replica("worker-0"), asked(40), seconds=30)
    subject.see(replica("worker-0"), asked(40, phase="Failed", finished=at(35), last_words=words(21)), seconds=36)
    known = condition(subject)
    assert known
    assert known.status == "False", "saved in time by luck"
    again(subject, 1, seconds=50)
    assert condition(subject) == known
    looks = [failed(f"worker-{index}", 21, seconds=60, attempt=1) for index in range(2)]
    subject.see(*looks, seconds=61)
    found = condition(subject)
    assert found
    assert (found.status, found.reason) == ("True", "SavedInTime")
    assert subject.status.grace == GraceStatus(attempt=1, reason=Reason.SAVED_IN_TIME)
    subject.see(*looks, seconds=62)
    assert condition(subject) == found


def test_a_doubt_that_an_older_version_recorded_in_the_condition_alone_ends_too() -> None:
    subject = saving()
    subject.see(replica("worker-0"), asked(40), seconds=30)
    subject.see(replica("worker-0"), asked(40, phase="Failed", finished=at(35), last_words=words(21)), seconds=36)
    again(subject, 1, seconds=50)
    subject.job = subject.job.with_status(replace(subject.status, grace=None))
    subject.see(*running(attempt=1), seconds=51)
    assert subject.condition("GraceSufficient") == ("False", "GraceTooShort")
    subject.see(*[failed(f"worker-{index}", 21, seconds=60, attempt=1) for index in range(2)], seconds=61)
    assert subject.condition("GraceSufficient") == ("True", "SavedInTime")


def test_a_drained_replica_that_says_it_saved_counts_whatever_its_pod_says_of_the_drain() -> None:
    subject = saving()
    subject.see(replica("worker-0"), asked(40), seconds=30)
    again(subject, 1, seconds=50)
    gone = asked(90, attempt=1, seconds=60, phase="Failed", finished=at(70), last_words=words(21), disruption="EvictionByEvictionAPI")
    subject.see(replica("worker-0", attempt=1), gone, seconds=71)
    assert subject.condition("GraceSufficient") == ("True", "SavedInTime")


@given(st.lists(st.tuples(st.sampled_from([None, 40, 90]), st.sampled_from([21, 22, 137])), min_size=1, max_size=6))
def test_the_newest_attempt_that_tells_anything_decides_and_looking_again_changes_nothing(ends: list[tuple[int | None, int]]) -> None:
    subject, expected = Story(job(recovery={"infrastructure": {"limit": 100}})), ""
    for attempt, (seconds, code) in enumerate(ends):
        began = 1000.0 * attempt + 20
        again(subject, attempt, seconds=began)
        goes = replica("worker-1", attempt=attempt) if seconds is None else asked(seconds, attempt=attempt, seconds=began + 10)
        gone = replace(failed("worker-1", code, seconds=began + 20, attempt=attempt), deleting=goes.deleting, due=goes.due)
        for view, after in ((goes, 10), (gone, 21), (gone, 21)):
            subject.see(replica("worker-0", attempt=attempt), view, seconds=began + after)
        known = subject.status
        subject.see(replica("worker-0", attempt=attempt), gone, seconds=began + 21)
        assert subject.status == known
        if seconds == 40 or code == 22:
            expected = f"False, attempt {attempt}"
        elif code == 21 and expected.startswith("False"):
            expected = f"True, attempt {attempt}"
        found, recorded = condition(subject), subject.status.grace
        assert expected == (f"{found.status}, attempt {recorded.attempt}" if found and recorded else "")


def test_a_job_that_always_saved_in_time_has_no_such_condition() -> None:
    subject = saving()
    subject.see(*(failed(f"worker-{index}", 21, seconds=30) for index in range(2)), seconds=31)
    assert condition(subject) is None


def test_replicas_that_go_on_in_their_pods_get_the_time_that_saves_take() -> None:
    subject = saving(100)
    subject.edit(roles={"worker": {"replicas": 1}})
    subject.see(*running(), seconds=30)
    assert grace_seconds(subject.job.spec, subject.status) == 205


def test_how_long_a_save_takes_is_known_still_when_a_commit_is_told_without() -> None:
    subject = saving()
    commit = {"step": 9, "path": "step-9"}
    subject.see(replica("worker-0"), asked(90, phase="Failed", finished=at(35), last_words=words(21, commit=commit)), seconds=36)
    subject.see(*running(attempt=1), seconds=40)
    read = report(attempt=1, resumed={"step": 10, "found": 10, "path": "/checkpoints/step-10"})
    subject.see(replica("worker-0", attempt=1, report=read), replica("worker-1", attempt=1), seconds=41)
    found = subject.status.checkpoint
    assert found
    assert (found.step, found.verified, found.seconds, found.measured_seconds) == (10, True, None, 30)


def test_a_short_save_halves_at_most_what_is_known_of_long_ones() -> None:
    subject = saving(30)
    known = []
    for step, took in ((20, 1.0), (30, 1.0), (40, 20.0)):
        commit = {"step": step, "path": f"step-{step}", "time": at(step).timestamp(), "seconds": took}
        subject.see(replica("worker-0", report=report(step=step, checkpoint=commit)), replica("worker-1"), seconds=10 * step)
        known.append(subject.status.checkpoint and subject.status.checkpoint.measured_seconds)
    assert known == [15, 7.5, 20]
