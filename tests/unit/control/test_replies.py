"""What a supervisor is told."""

from __future__ import annotations

from typing import Any

from muster.api.job import TrainingJob
from muster.control.replies import reply_to
from muster.render.addresses import addresses_of
from muster_contract.reports import LastWords, Reply, Report

WORLD = {
    "attempt": 2,
    "size": 2,
    "createdTime": "2026-11-21T10:00:00Z",
    "readyTime": "2026-11-21T10:00:05Z",
    "members": [{"role": "worker", "index": 0, "uid": "a"}, {"role": "worker", "index": 1, "uid": "b"}],
}
RECORD = {"attempt": 2, "startTime": "2026-11-21T10:00:00Z"}


def told(uid: str = "b", *, attempt: int = 2, waiting: bool = True, status: dict[str, Any] | None = None, **said: Any) -> Reply:
    spec = {"strategy": "DDP", "trainer": {"task": "digits"}, "roles": {"worker": {"replicas": 2}}}
    whole = {"attempt": 2, "world": WORLD, "attempts": [RECORD], "phase": "Running", **(status or {})}
    job = TrainingJob.model_validate({"metadata": {"name": "digits", "namespace": "ns"}, "spec": spec, "status": whole})
    report = Report(job="ns/digits", pod="p", role="worker", index=0, attempt=attempt, waiting=waiting, **said)
    return reply_to(job, uid, report, addresses_of(job, 2))


def test_one_that_waits_for_the_current_world_gets_its_environment_by_its_own_place() -> None:
    world = told().world
    assert world is not None
    assert (world["MUSTER_ATTEMPT"], world["PET_NODE_RANK"], world["WORLD_SIZE"]) == ("2", "1", "2")
    assert world["MASTER_ADDR"] == "worker-0.digits.ns.svc"
    assert world["MASTER_PORT"] == "29502"


def test_an_older_attempt_is_told_the_number_that_counts_and_no_world() -> None:
    reply = told(attempt=1)
    assert (reply.attempt, reply.world, reply.end) == (2, None, False)


def test_no_world_is_handed_out_before_it_is_complete_or_to_who_is_awaited_or_a_stranger() -> None:
    assert told(status={"world": {key: value for key, value in WORLD.items() if key != "readyTime"}}).world is None
    assert told(status={"world": {**WORLD, "members": [{"role": "worker", "index": 1, "uid": "b", "awaited": True}]}}).world is None
    assert told("stranger").world is None
    assert told(waiting=False).world is None


def test_processes_that_have_ended_are_not_started_again_in_the_same_attempt() -> None:
    assert told(last_words=LastWords(20, attempt=2)).world is None
    assert told(last_words=LastWords(20, attempt=1)).world is not None


def test_when_the_job_has_ended_nothing_follows() -> None:
    assert told(status={"phase": "Failed"}).end is True


def test_processes_that_still_run_are_ended_while_no_attempt_follows_the_one_that_failed() -> None:
    failed = {**RECORD, "endTime": "2026-11-21T10:01:00Z", "class": "Application", "reason": "UserError"}
    reply = told(waiting=False, status={"attempts": [failed]})
    assert (reply.end, reply.succeeded, reply.grace_seconds, reply.dump) == (True, False, 0, False)
    assert told(waiting=True, status={"attempts": [failed]}).end is False, "it may still be needed, if the class turns out to be another"
    assert told(waiting=False, status={"attempts": [{**failed, "reason": "Hang"}]}).dump is True


def test_a_replica_of_a_job_that_has_succeeded_is_told_so_and_may_save() -> None:
    done = {**RECORD, "endTime": "2026-11-21T10:01:00Z", "reason": "Completed"}
    reply = told(waiting=False, status={"phase": "Succeeded", "attempts": [done]})
    assert (reply.end, reply.succeeded, reply.grace_seconds) == (True, True, 120)


def test_stacks_are_asked_for_before_the_processes_of_a_world_that_hung_are_ended() -> None:
    before = {"attempt": 1, "startTime": "2026-11-21T10:00:00Z", "class": "Infrastructure"}
    assert told(attempt=1, status={"attempts": [{**before, "reason": "Hang"}, RECORD]}).dump is True
    assert told(attempt=1, status={"attempts": [{**before, "reason": "PeerLost"}, RECORD]}).dump is False


def test_a_replica_that_the_job_no_longer_has_gets_no_world() -> None:
    members = [{"role": "worker", "index": 7, "uid": "b"}]
    assert told(status={"world": {**WORLD, "members": members}}).world is None
