"""A job that should run and does not for long counts as stalled, once for each such time."""

from __future__ import annotations

from muster.control.kubernetes_events import events_between
from muster.lifecycle.decide import decide
from muster.lifecycle.observed import Observed, QuotaView, ReplicaView
from tests.unit.lifecycle.lifecycle_cases import Story, at, job, replica, running, running_story

WAITS = QuotaView(admitted=False, message="queue team: Pending: insufficient unused quota")
PENDING = [replica(f"worker-{index}", phase="Pending") for index in range(2)]
"""The pods of the first attempt."""


def reasons_of_events(story: Story, *views: ReplicaView, seconds: float) -> list[str]:
    before = story.status
    story.see(*views, seconds=seconds)
    return [event.reason for event in events_between(before, story.status)]


def test_a_job_whose_pods_wait_for_long_is_stalled_and_is_looked_at_in_time() -> None:
    story = Story(job())
    story.see(seconds=0)
    decision = story.see(*PENDING, seconds=10)
    assert decision.wake is not None
    assert decision.wake <= at(900)
    assert "Stalled" not in reasons_of_events(story, *PENDING, seconds=899)
    assert reasons_of_events(story, *PENDING, seconds=900) == ["Stalled"]
    assert story.condition("Stalled") == ("True", "WaitingForReplicas")
    assert "Stalled" not in reasons_of_events(story, *PENDING, seconds=1000)
    story.see(*running(), seconds=1100)
    assert story.condition("Stalled") == ("False", "AllReplicasRunning")


def test_a_job_that_waits_for_its_queue_for_long_is_stalled() -> None:
    story = Story(job())
    for seconds in (0, 900):
        decision = decide(story.job, Observed((), service=True, quota=WAITS), at(seconds))
        story.job = story.job.with_status(decision.status)
    assert story.condition("Stalled") == ("True", "WaitingForQuota")


def test_a_recovery_that_takes_long_is_stalled_and_each_one_has_an_event_of_its_own() -> None:
    story = running_story()
    messages = []
    for start in (100, 3000):
        attempt = story.status.attempt
        story.see(replica("worker-1", attempt=attempt), seconds=start)
        story.see(seconds=start + 60)
        before = story.status
        story.see(*(replica(label, phase="Pending", attempt=before.attempt) for label in ("worker-0", "worker-1")), seconds=start + 960)
        messages += [event.mark for event in events_between(before, story.status) if event.reason == "Stalled"]
        story.see(*running(attempt=story.status.attempt), seconds=start + 1000)
    assert len(set(messages)) == len(messages) == 2


def test_a_suspended_job_is_not_stalled_and_its_time_counts_from_its_resumption() -> None:
    story = running_story()
    story.edit(suspend=True)
    story.see(*running(), seconds=10)
    story.see(seconds=20)
    story.see(seconds=5000)
    story.edit(suspend=False)
    for seconds in (5010, 5020):
        story.see(seconds=seconds)
    assert "Stalled" not in {each.type for each in story.status.conditions}
    story.see(seconds=5910)
    assert story.condition("Stalled")[0] == "True"
