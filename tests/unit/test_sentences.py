"""Golden sentences: the wording of messages to users, a sample of each kind. All other tests assert reasons and fields."""

from __future__ import annotations

from typing import Any

from muster.api.problems import Problem
from muster.api.status import ConditionType, TrainingJobStatus
from muster.control.events import events_between
from muster.lifecycle.decide import decide
from muster.lifecycle.observed import ClaimView, Observed
from tests.unit.lifecycle.lifecycle_cases import Story, at, failed, job, replica, running_story, words


def condition_message(status: TrainingJobStatus, kind: ConditionType) -> str:
    condition = status.condition(kind)
    assert condition is not None
    return condition.message


def test_a_job_that_is_held_back_says_until_when() -> None:
    story = running_story(1)
    story.see(failed(code=10, seconds=20), seconds=20)
    story.see(seconds=29)
    assert story.status.message == "attempt 1 is held back until 10:00:30 UTC, after UserError of worker-0: last words"


def test_a_startup_deadline_names_the_replicas_and_what_they_wait_for() -> None:
    story = Story(job(workers=2, startupDeadlineSeconds=100))
    story.see(seconds=0)
    story.see(replica("worker-0"), replica("worker-1", phase="Pending", reason="ImagePullBackOff", message="no such image"), seconds=100)
    assert story.status.message == "not all replicas ran within 100 s: worker-1 (1 of 2 run): ImagePullBackOff: no such image"


def test_an_invalid_job_names_field_and_remedy() -> None:
    story = Story(job(workers=1), problems=[Problem("spec.batch.globalSize", "write at least 1")])
    story.see(seconds=0)
    assert story.status.message == "the job is not valid, so nothing is started: spec.batch.globalSize: write at least 1"


def test_a_job_out_of_memory_says_what_to_raise() -> None:
    story = running_story(1, recovery={"application": {"limit": 0}})
    last = words(137, "rank 0: ended by signal 9 (SIGKILL)", step=5)
    story.see(replica(phase="Failed", exit_code=137, oom_killed=True, finished=at(30), last_words=last), seconds=30)
    story.see(seconds=90)
    assert condition_message(story.status, ConditionType.FAILED) == (
        "the budget of 0 restarts after failures of class Application is spent; worker-0: the container ran out of memory: "
        "raise resources.limits.memory of its container in spec.roles.worker.template (rank 0: ended by signal 9 (SIGKILL))"
    )


def test_a_missing_claim_is_named() -> None:
    stored: dict[str, Any] = {"checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "ckpt"}}}}
    status = decide(job(workers=2, **stored), Observed(claim=ClaimView()), at(0)).status
    assert (
        condition_message(status, ConditionType.STORAGE_SHARED)
        == "there is no claim ckpt in this namespace: the pods wait for it, 1800 s at most; create it as ReadWriteMany"
    )


def test_a_restart_names_replica_and_cause() -> None:
    story = running_story(2)
    before = story.status
    story.see(failed(code=10, seconds=20, message="ValueError: no such column"), replica("worker-1"), seconds=20)
    messages = [event.message for event in events_between(before, story.status)]
    assert messages == ["attempt 1 follows attempt 0, which failed by Application: UserError of worker-0: ValueError: no such column"]
