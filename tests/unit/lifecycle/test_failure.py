"""The classes and causes of failures."""

from __future__ import annotations

from typing import Any

import pytest

from muster.api.status import FailureClass, Reason
from muster.lifecycle.facts.failure import Cause, cause_of_end, root_cause
from muster.lifecycle.observed import ReplicaView
from tests.unit.lifecycle.lifecycle_cases import at, ended_with, failed, replica, report, running, running_story

PREEMPTION, INFRASTRUCTURE, APPLICATION = FailureClass.PREEMPTION, FailureClass.INFRASTRUCTURE, FailureClass.APPLICATION
SICK: dict[str, Any] = {"unhealthy_devices": ("nvidia.com/gpu GPU-3",)}


@pytest.mark.parametrize(
    ("view", "failure_class", "reason"),
    [
        (failed(code=10), APPLICATION, Reason.USER_ERROR),
        (failed(code=11), APPLICATION, Reason.BAD_CONFIGURATION),
        (failed(code=20), INFRASTRUCTURE, Reason.PEER_LOST),
        (failed(code=21), PREEMPTION, Reason.PREEMPTED),
        (failed(code=22), PREEMPTION, Reason.PREEMPTED_NOT_SAVED),
        (failed(code=30), APPLICATION, Reason.CHECKPOINT_DAMAGED),
        (failed(code=31), INFRASTRUCTURE, Reason.STORAGE_UNAVAILABLE),
        (failed(code=137), INFRASTRUCTURE, Reason.PROCESS_KILLED),
        (failed(code=143), INFRASTRUCTURE, Reason.PROCESS_KILLED),
        (failed(code=139), APPLICATION, Reason.PROCESS_KILLED),
        (failed(code=77), APPLICATION, Reason.USER_ERROR),
        (replica(phase="Failed", exit_code=20), APPLICATION, Reason.USER_ERROR),
        (replica(phase="Failed", exit_code=137), INFRASTRUCTURE, Reason.PROCESS_KILLED),
        (replica(phase="Failed", exit_code=134), APPLICATION, Reason.PROCESS_KILLED),
        (replica(phase="Failed", exit_code=1, termination=ended_with(0)), APPLICATION, Reason.USER_ERROR),
        (replica(phase="Failed", exit_code=20, report=report(termination={"code": 20})), INFRASTRUCTURE, Reason.PEER_LOST),
        (replica(phase="Failed"), INFRASTRUCTURE, Reason.START_FAILED),
        (replica(phase="Failed", reason="InitContainerFailed"), INFRASTRUCTURE, Reason.INIT_CONTAINER_FAILED),
        (replica(phase="Failed", reason="SupervisorNotCopied"), INFRASTRUCTURE, Reason.SUPERVISOR_NOT_COPIED),
        (replica(phase="Failed", exit_code=137, oom_killed=True), APPLICATION, Reason.OUT_OF_MEMORY),
        (replica(phase="Failed", exit_code=137, reason="Evicted"), PREEMPTION, Reason.EVICTED),
        (replica(phase="Failed", reason="NodeLost"), PREEMPTION, Reason.NODE_LOST),
        (replica(phase="Failed", reason="Terminated"), PREEMPTION, Reason.NODE_LOST),
        (failed(code=10, disruption="DeletionByTaintManager"), PREEMPTION, Reason.DISRUPTED),
        (failed(code=21, disruption="DeletionByDeviceTaintManager", deleting=at(5)), INFRASTRUCTURE, Reason.DEVICE_TAINTED),
        (failed(code=10, **SICK), INFRASTRUCTURE, Reason.DEVICE_UNHEALTHY),
        (failed(code=20, **SICK), INFRASTRUCTURE, Reason.DEVICE_UNHEALTHY),
        (failed(code=139, **SICK), INFRASTRUCTURE, Reason.DEVICE_UNHEALTHY),
        (replica(phase="Failed", **SICK), INFRASTRUCTURE, Reason.DEVICE_UNHEALTHY),
        (failed(code=11, **SICK), APPLICATION, Reason.BAD_CONFIGURATION),
        (failed(code=31, **SICK), INFRASTRUCTURE, Reason.STORAGE_UNAVAILABLE),
        (replica(phase="Failed", exit_code=137, oom_killed=True, **SICK), APPLICATION, Reason.OUT_OF_MEMORY),
        (failed(code=10, disruption="EvictionByEvictionAPI", **SICK), PREEMPTION, Reason.DISRUPTED),
        (replica(deleting=at(5)), PREEMPTION, Reason.POD_DELETED),
        (replica(phase="Pending", deleting=at(5)), PREEMPTION, Reason.POD_DELETED),
        (failed(code=21, deleting=at(5)), PREEMPTION, Reason.PREEMPTED),
        (failed(code=143, deleting=at(5)), PREEMPTION, Reason.POD_DELETED),
        (failed(code=10, seconds=4, deleting=at(5)), APPLICATION, Reason.USER_ERROR),
    ],
)
def test_a_failed_replica_gets_a_class_and_a_reason(view: ReplicaView, failure_class: FailureClass, reason: Reason) -> None:
    cause = cause_of_end(view, stopped=False)
    assert cause is not None
    assert (cause.failure_class, cause.reason) == (failure_class, reason)


@pytest.mark.parametrize(
    ("view", "exit_code", "signal"),
    [
        (replica(phase="Failed", exit_code=3), 3, None),
        (replica(phase="Failed", exit_code=139), None, "SIGSEGV"),
        (replica(phase="Failed", exit_code=10, termination=ended_with(10, exit_code=1)), 1, None),
        (replica(phase="Failed", exit_code=137, termination=ended_with(137, signal="SIGKILL")), None, "SIGKILL"),
        (replica(phase="Failed", exit_code=139, termination=ended_with(139, exit_code=139)), None, "SIGSEGV"),
        (replica(phase="Failed", exit_code=1, termination=ended_with(0)), 1, None),
        (replica(phase="Failed", reason="NodeLost"), None, None),
    ],
)
def test_a_cause_has_the_exit_code_or_the_signal_of_the_process(view: ReplicaView, exit_code: int | None, signal: str | None) -> None:
    cause = cause_of_end(view, stopped=False)
    assert cause is not None
    assert (cause.exit_code, cause.signal) == (exit_code, signal)


@pytest.mark.parametrize(
    "view",
    [replica(), replica(phase="Pending"), replica(phase="Succeeded"), replica(phase="Succeeded", deleting=at(5)), replica(disruption="X")],
)
def test_a_replica_that_runs_or_succeeded_is_no_failure(view: ReplicaView) -> None:
    assert cause_of_end(view, stopped=False) is None


@pytest.mark.parametrize("code", [10, 20, 21, 22, 137, 143])
def test_the_exit_of_a_replica_that_muster_stopped_is_no_failure(code: int) -> None:
    assert cause_of_end(failed(code=code, seconds=6, deleting=at(5)), stopped=True) is None


@pytest.mark.parametrize("code", [21, 143])
def test_a_stop_code_of_a_stopped_replica_is_no_failure_if_clocks_differ(code: int) -> None:
    assert cause_of_end(failed(code=code, seconds=3, deleting=at(5)), stopped=True) is None


def test_a_lack_of_memory_is_a_failure_even_in_the_second_of_the_deletion() -> None:
    cause = cause_of_end(replica(phase="Failed", exit_code=137, oom_killed=True, finished=at(60), deleting=at(60)), stopped=True)
    assert cause is not None
    assert cause.reason is Reason.OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({"termination": ended_with(137, "rank 0: ended by signal 9 (SIGKILL)")}, " (rank 0: ended by signal 9 (SIGKILL))"),
        ({"message": "Killed"}, " (Killed)"),
        ({}, ""),
    ],
)
def test_the_message_of_a_lack_of_memory_names_the_limit_to_raise(fields: dict[str, Any], end: str) -> None:
    cause = cause_of_end(replica("evaluator-0", phase="Failed", exit_code=137, oom_killed=True, **fields), stopped=False)
    assert cause is not None
    assert "resources.limits.memory" in cause.message
    assert "spec.roles.evaluator.template" in cause.message
    assert cause.message.endswith(f"template{end}")


def test_the_status_and_condition_of_a_job_show_its_lack_of_memory() -> None:
    story = running_story(1)
    last = ended_with(137, "rank 0: ended by signal 9 (SIGKILL)", step=5)
    for attempt in (0, 1):
        story.see(replica(attempt=attempt), seconds=100 * attempt + 20)
        ended = {"exit_code": 137, "oom_killed": True, "finished": at(100 * attempt + 30), "termination": last}
        story.see(replica(attempt=attempt, phase="Failed", **ended))
        story.see(seconds=100 * attempt + 90)
    assert story.condition("Failed") == ("True", "RepeatedError")
    assert (story.record.reason, story.record.signal, story.record.exit_code) == (Reason.OUT_OF_MEMORY, "SIGKILL", None)


def test_an_error_before_the_deletion_is_a_failure() -> None:
    cause = cause_of_end(failed(code=10, seconds=3, deleting=at(5)), stopped=True)
    assert cause is not None
    assert cause.reason is Reason.USER_ERROR


def _cause(failure_class: FailureClass, reason: Reason, seconds: float, label: str = "worker-0") -> Cause:
    return Cause(failure_class, reason, "", label, at(seconds))


@pytest.mark.parametrize(
    ("causes", "expected"),
    [
        ([_cause(INFRASTRUCTURE, Reason.PEER_LOST, 1), _cause(APPLICATION, Reason.USER_ERROR, 9)], Reason.USER_ERROR),
        ([_cause(APPLICATION, Reason.USER_ERROR, 1), _cause(PREEMPTION, Reason.DISRUPTED, 9)], Reason.DISRUPTED),
        ([_cause(APPLICATION, Reason.USER_ERROR, 5), _cause(INFRASTRUCTURE, Reason.STORAGE_UNAVAILABLE, 4)], Reason.STORAGE_UNAVAILABLE),
        ([_cause(INFRASTRUCTURE, Reason.PEER_LOST, 5), _cause(INFRASTRUCTURE, Reason.PEER_LOST, 6)], Reason.PEER_LOST),
    ],
)
def test_the_root_cause_is_a_preemption_before_an_own_failure_before_a_lost_peer(causes: list[Cause], expected: Reason) -> None:
    for order in (causes, causes[::-1]):
        root = root_cause(order)
        assert root is not None
        assert root.reason is expected


def test_a_missing_member_fails_the_attempt_only_after_a_live_observation() -> None:
    story = running_story()
    decision = story.see(running()[0], seconds=20, live=False)
    assert [type(action).__name__ for action in decision.actions] == ["LookLive"]
    assert story.status.attempt == 0
    story.see(running()[0])
    assert story.status.attempt == 1
    assert story.status.attempts[0].reason is Reason.REPLICA_LOST
    assert story.status.attempts[0].failure_class is PREEMPTION
    assert story.status.attempts[0].replica == "worker-1"


def test_a_failed_evaluator_is_replaced_and_does_not_fail_the_attempt() -> None:
    story = running_story(1, strategy="MultiWorkerMirrored", roles={"worker": {"replicas": 1}, "evaluator": {"replicas": 1}})
    broke = failed("evaluator-0", seconds=20)
    decision = story.see(replica(), broke, seconds=21)
    assert (story.status.attempt, decision.actions) == (0, ())
    assert decision.wake == at(50)
    assert [action.uid for action in story.see(replica(), broke, seconds=50).actions] == [broke.uid]
    assert [action.role for action in story.see(replica(), seconds=51).actions] == ["evaluator"]


@pytest.mark.parametrize(
    ("seconds", "message", "named"),
    [
        (60.0, "rank 0: ValueError: no such class", "worker-1"),  # the end of a container, in whole seconds
        (59.5, "rank 0: ValueError: no such class", "worker-1"),
        (58.0, "rank 0: ValueError: no such class", "worker-0"),
        (60.0, "rank 0: KeyError: 'loss'", "worker-0"),
        (61.0, "rank 0: KeyError: 'loss'", "worker-1"),
    ],
)
def test_the_first_worker_stays_named_if_others_fail_alike_in_the_same_second(seconds: float, message: str, named: str) -> None:
    story = running_story(2)
    first = failed("worker-1", 10, seconds=60.4, message="rank 1: ValueError: no such class")
    story.see(first, replica("worker-0"), seconds=61)
    assert story.status.attempts[0].replica == "worker-1"
    story.see(first, failed("worker-0", 10, seconds=seconds, message=message), seconds=61.5)
    assert story.status.attempts[0].replica == named
