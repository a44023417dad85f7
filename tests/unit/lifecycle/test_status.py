"""The status for users: phase, counts, conditions, records and the message."""

from __future__ import annotations

from dataclasses import replace

from muster.api.status import ConditionType, Phase
from tests.support.texts import absent
from tests.unit.lifecycle.lifecycle_cases import Story, at, failed, job, replica, running, running_story


def test_the_phases_of_a_job_that_breaks_once() -> None:
    story = Story(job(workers=2))
    phases = []
    for seconds, views in (
        (0, []),
        (1, [replica("worker-0", phase="Pending")]),
        (2, [replica("worker-0"), replica("worker-1", phase="Pending")]),
        (3, running(2)),
        (20, [failed("worker-0", 21, seconds=20), replica("worker-1")]),
        (30, []),
        (31, [replica("worker-0", attempt=1)]),
        (32, running(2, attempt=1)),
        (40, running(2, attempt=1, phase="Succeeded")),
    ):
        story.see(*views, seconds=seconds)
        phases.append(story.status.phase.value)
    assert phases == ["Pending", "Pending", "Starting", "Running", "Recovering", "Recovering", "Recovering", "Running", "Succeeded"]
    assert (story.status.admitted_time, story.status.start_time) == (at(0), at(3))


def test_replicas_are_counted_by_role() -> None:
    roles = {"chief": {"replicas": 1}, "worker": {"replicas": 2}, "ps": {"replicas": 1}}
    story = Story(job(strategy="ParameterServer", roles=roles))
    story.see(seconds=0)
    story.see(replica("chief-0"), replica("worker-0"), replica("worker-1", phase="Pending"), replica("ps-0"), seconds=5)
    counts = {role.name: (role.ready, role.desired) for role in story.status.roles}
    assert counts == {"chief": (1, 1), "worker": (1, 2), "ps": (1, 1)}
    assert (story.status.workers, story.status.replicas, story.status.ready_replicas) == ("1/2", 2, 1)
    assert story.status.selector == "muster.dev/job-name=digits,muster.dev/role=worker"


def test_a_condition_has_the_time_of_its_last_change() -> None:
    story = running_story(1)
    story.see(*running(1), seconds=500)
    ready = story.status.condition(ConditionType.READY)
    assert ready is not None
    assert (ready.status, ready.reason, ready.last_transition_time) == ("True", "AllReplicasRunning", at(10))
    story.see(failed(code=21, seconds=600), seconds=600)
    ready = story.status.condition(ConditionType.READY)
    assert ready is not None
    assert (ready.status, ready.reason, ready.last_transition_time) == ("False", "Restarting", at(600))
    assert [condition.type for condition in story.status.conditions].count(ConditionType.READY) == 1


def test_a_record_has_the_end_of_its_attempt() -> None:
    story = running_story(2)
    story.see(failed("worker-1", 10, seconds=20, message="ValueError: no", step=7), replica("worker-0"), seconds=21)
    record = story.status.attempts[0]
    assert (record.reason, record.failure_class, record.replica, record.message) == (
        "UserError",
        "Application",
        "worker-1",
        "ValueError: no",
    )
    assert (record.start_time, record.end_time, record.failed_time, record.last_step) == (at(0), at(21), at(20), 7)
    assert not record.settled


def test_the_status_has_only_the_last_ten_records() -> None:
    story = running_story(1, recovery={"attemptsWithoutProgress": 100})
    for number in range(14):
        story.see(failed(code=21, attempt=number, seconds=100 + number), seconds=100 + number)
    assert [record.attempt for record in story.status.attempts] == list(range(5, 15))


def test_the_message_names_the_awaited_replicas_and_the_reason() -> None:
    story = Story(job(workers=2))
    story.see(seconds=0)
    story.see(replica("worker-0"), replica("worker-1", phase="Pending", reason="ImagePullBackOff"), seconds=5)
    assert "worker-1" in story.status.message
    assert "worker-0" not in story.status.message
    assert "ImagePullBackOff" in story.status.message


def test_the_message_has_the_short_cause_if_there_is_one() -> None:
    story = Story(job(workers=2, startupDeadlineSeconds=60))
    story.see(seconds=0)
    raw = {"phase": "Pending", "reason": "Unschedulable", "message": "0/4 nodes are available: 4 Insufficient cpu."}
    waits = "Unschedulable: no node has enough free CPU for a pod"
    pods = [replica(f"worker-{index}", **raw, waits_for=waits) for index in range(2)]
    story.see(*pods, seconds=5)
    assert story.status.message.endswith(waits)
    story.see(*pods, seconds=70)
    assert story.status.message.endswith(raw["message"]), "the message of a failed job has the words of the scheduler"


def test_the_message_of_a_recovery_has_its_cause() -> None:
    story = running_story(2)
    story.see(failed("worker-1", 21, seconds=20, message="saved at step 340"), replica("worker-0"), seconds=20)
    assert absent(story.status.message, "digits-worker-0", "digits-worker-1", "was asked to stop", "saved at step 340") == []
    story.see(replica("worker-0", attempt=1), replica("worker-1", attempt=1, phase="Pending"), seconds=30)
    assert "digits-worker" not in story.status.message
    assert absent(story.status.message, "worker-1 was asked to stop", "saved at step 340") == []


def test_the_message_of_a_failed_job_names_the_spent_budget() -> None:
    story = running_story(1, recovery={"application": {"limit": 0}})
    story.see(failed(code=10, seconds=20, message="ValueError: no"), seconds=20)
    assert story.status.phase is Phase.FAILED
    assert story.condition("Failed") == ("True", "ApplicationLimitExceeded")
    assert absent(story.status.message, "your code failed once (limit: 0 restarts)", "worker-0", "ValueError: no") == []


def test_the_message_lists_only_a_few_replicas() -> None:
    story = Story(job(workers=100))
    story.see(seconds=0)
    assert [f"worker-{index}" in story.status.message for index in range(5)] == [True, True, True, False, False]
    assert "97 more" in story.status.message


def test_a_pod_whose_containers_do_not_begin_says_what_may_be_missing() -> None:
    story = Story(job(workers=2))
    story.see(seconds=0)
    placed = [replica(f"worker-{index}", phase="Pending", node="n1", placed=at(5)) for index in (0, 1)]
    decision = story.see(*placed, seconds=10)
    assert ("explain" in story.status.message, decision.wake) == (False, at(35))
    story.see(*placed, seconds=35)
    assert absent(story.status.message, "worker-0, worker-1 (0 of 2 run): ", "ConfigMap", "muster explain digits") == []
    story.see(*(replace(each, reason="ImagePullBackOff") for each in placed), seconds=40)
    assert ("ImagePullBackOff" in story.status.message, "explain" in story.status.message) == (True, False)
    story.see(*running(), seconds=50)
    assert "explain" not in story.status.message
