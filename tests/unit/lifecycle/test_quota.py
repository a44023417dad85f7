"""A job whose queue holds it until there is quota, and takes the quota back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from muster.api.status import Phase, TrainingJobStatus
from muster.lifecycle.actions import Decision, DeleteReplica
from muster.lifecycle.decide import decide
from muster.lifecycle.observed import Observed, QueuePosition, QuotaView, ReplicaView
from tests.unit.lifecycle.lifecycle_cases import Story, at, created, job, running, running_story

WAITS = QuotaView(admitted=False, message="queue team: Pending: insufficient unused quota")
EVICTED = QuotaView(admitted=False, message="queue team: Preempted: by another job")
ADMITTED = QuotaView(admitted=True)


def see(story: Story, quota: QuotaView, *views: ReplicaView, seconds: float) -> Decision:
    decision = decide(story.job, Observed(views, service=True, quota=quota), at(seconds))
    story.job = story.job.with_status(TrainingJobStatus.from_wire(decision.status.wire()))
    return decision


def deletions(decision: Decision) -> Sequence[int | None]:
    return [action.grace_seconds for action in decision.actions if isinstance(action, DeleteReplica)]


def test_a_job_that_waits_for_quota_has_no_attempt_and_its_time_counts_as_queued() -> None:
    story = Story(job())
    assert not see(story, WAITS, seconds=0).actions
    assert not see(story, WAITS, seconds=60).actions
    assert (story.status.phase, story.status.attempts) == (Phase.PENDING, ())
    assert story.condition("QuotaReserved") == ("False", "WaitingForQuota")
    assert story.condition("Ready") == ("False", "WaitingForQuota")
    assert created(see(story, ADMITTED, seconds=100)) == ["worker-0/0", "worker-1/0"]
    assert story.status.goodput is not None
    assert story.status.goodput.queued_seconds >= 100
    assert story.condition("QuotaReserved") == ("True", "QuotaReserved")


def test_an_eviction_ends_the_attempt_without_a_failure_and_pods_keep_their_grace() -> None:
    story = running_story()
    decision = see(story, EVICTED, *running(), seconds=30)
    assert deletions(decision) == [None, None]
    assert (story.record.reason, story.record.failure_class) == ("EvictedByQueue", None)
    assert "save and stop" in story.status.message
    see(story, WAITS, seconds=40)
    assert (story.status.phase, story.status.restarts.total) == (Phase.PENDING, 0)
    assert created(see(story, ADMITTED, seconds=110)) == ["worker-0/1", "worker-1/1"]
    assert story.status.goodput is not None
    assert story.status.goodput.queued_seconds >= 70
    assert story.status.restarts.total == 0
    assert story.status.next_attempt_time is None


def test_a_long_message_of_the_queue_fits_the_status() -> None:
    """The condition of a Workload has up to 32,768 characters."""
    story = running_story()
    see(story, replace(EVICTED, message="x" * 32768), *running(), seconds=30)
    assert story.record.reason == "EvictedByQueue"


def test_a_suspended_job_waits_for_quota_when_it_resumes() -> None:
    story = running_story()
    story.edit(suspend=True)
    see(story, ADMITTED, *running(), seconds=30)
    see(story, WAITS, seconds=40)
    assert story.status.phase is Phase.SUSPENDED
    assert story.condition("QuotaReserved") == ("False", "Suspended")
    story.edit(suspend=False)
    see(story, WAITS, seconds=50)
    assert story.status.phase is Phase.PENDING
    assert created(see(story, ADMITTED, seconds=60)) == ["worker-0/1", "worker-1/1"]


def test_the_status_says_queue_and_position_while_the_job_waits_and_since_when() -> None:
    story = Story(job(scheduling={"queue": "team"}))
    see(story, WAITS, seconds=0)
    assert story.status.queue is not None
    assert (story.status.queue.summary, story.status.queue.position) == ("team", None)
    since = story.status.queue.since
    see(story, replace(WAITS, position=QueuePosition(3, 7)), seconds=60)
    queue = story.status.queue
    assert (queue.name, queue.since, queue.position, queue.cluster_queue_position, queue.summary) == ("team", since, 3, 7, "3 in team")
    story.edit(scheduling={"queue": "other"})
    see(story, WAITS, seconds=70)
    assert story.status.queue is not None
    assert (story.status.queue.name, story.status.queue.since) == ("other", at(70))
    see(story, ADMITTED, seconds=100)
    assert story.status.queue is None


def test_a_job_that_is_suspended_or_has_ended_waits_in_no_queue() -> None:
    story = Story(job(scheduling={"queue": "team"}, activeDeadlineSeconds=60))
    story.edit(suspend=True)
    see(story, WAITS, seconds=0)
    assert story.status.queue is None
    story.edit(suspend=False)
    see(story, WAITS, seconds=10)
    assert story.status.queue is not None
    assert story.status.queue.since == at(10)
    see(story, WAITS, seconds=500)
    assert (story.status.phase, story.status.queue) == (Phase.FAILED, None)


def elastic_story(workers: int = 4) -> Story:
    elastic = {"minReplicas": 1, "maxReplicas": 4}
    return Story(job(workers=workers, elastic=elastic, batch={"globalSize": 64}, scheduling={"queue": "team"}))


def given(workers: int) -> QuotaView:
    return QuotaView(admitted=True, workers=workers)


def test_an_elastic_job_starts_with_the_workers_that_its_queue_has_quota_for() -> None:
    story = elastic_story()
    assert created(see(story, given(2), seconds=0)) == ["worker-0/0", "worker-1/0"]
    assert not created(see(story, given(2), *running(2), seconds=5))
    decision = see(story, given(2), *running(2), seconds=500)
    assert not decision.actions  # no worker stands by, because there is no quota for it
    assert (story.status.phase, story.status.workers, len(story.status.attempts)) == (Phase.RUNNING, "2/4", 1)


def test_an_elastic_job_is_made_smaller_and_does_not_grow_beyond_its_quota() -> None:
    story = elastic_story()
    see(story, given(4), seconds=0)
    see(story, given(4), *running(4), seconds=5)
    story.edit(roles={"worker": {"replicas": 2}})
    see(story, given(4), *running(4), seconds=100)
    assert (story.status.attempt, len(story.status.world.members if story.status.world else ())) == (1, 2)
    story.edit(roles={"worker": {"replicas": 3}})
    views = running(2, attempt=1)
    see(story, given(2), *views, seconds=120)
    decision = see(story, given(2), *views, seconds=300)
    assert not created(decision)
    assert (story.status.attempt, story.status.workers) == (1, "2/3")


def test_an_elastic_job_that_is_admitted_again_with_less_resumes_with_less() -> None:
    story = elastic_story()
    see(story, given(4), seconds=0)
    see(story, given(4), *running(4), seconds=5)
    see(story, EVICTED, *running(4), seconds=30)
    see(story, WAITS, seconds=40)
    assert created(see(story, given(1), seconds=50)) == ["worker-0/1"]
