"""The replies to supervisors."""

from __future__ import annotations

from typing import Any

import pytest

from muster.api.job import TrainingJob
from muster.channel.replies import reply_basis, reply_to
from muster.render.addresses import addresses_of
from muster_contract.inputs import InputProgress
from muster_contract.reports import MAX_SNAPSHOT_SERVERS, Reply, Report, SnapshotServer, TerminationMessage

WORLD = {
    "attempt": 2,
    "size": 2,
    "createdTime": "2026-11-21T10:00:00Z",
    "readyTime": "2026-11-21T10:00:05Z",
    "members": [{"role": "worker", "index": 0, "uid": "a"}, {"role": "worker", "index": 1, "uid": "b"}],
}
RECORD = {"attempt": 2, "startTime": "2026-11-21T10:00:00Z"}


def reply_for(uid: str = "b", *, attempt: int = 2, waiting: bool = True, status: dict[str, Any] | None = None, **fields: Any) -> Reply:
    spec = {"strategy": "DDP", "trainer": {"task": "digits"}, "roles": {"worker": {"replicas": 2}}}
    whole = {"attempt": 2, "world": WORLD, "attempts": [RECORD], "phase": "Running", **(status or {})}
    job = TrainingJob.model_validate({"metadata": {"name": "digits", "namespace": "ns"}, "spec": spec, "status": whole})
    report = Report(job="ns/digits", pod="p", role="worker", index=0, attempt=attempt, waiting=waiting, **fields)
    return reply_to(job, uid, report, addresses_of(job, 2))


def test_a_waiting_member_of_the_current_world_gets_its_environment() -> None:
    world = reply_for().world
    assert world is not None
    assert (world["MUSTER_ATTEMPT"], world["PET_NODE_RANK"], world["WORLD_SIZE"]) == ("2", "1", "2")
    assert world["MASTER_ADDR"] == "worker-0.digits.ns.svc"
    assert world["MASTER_PORT"] == "29502"


def test_a_replica_of_an_older_attempt_gets_the_current_number_and_no_world() -> None:
    reply = reply_for(attempt=1)
    assert (reply.attempt, reply.world, reply.end) == (2, None, False)


def test_only_waiting_members_of_a_complete_world_get_it() -> None:
    assert reply_for(status={"world": {key: value for key, value in WORLD.items() if key != "readyTime"}}).world is None
    assert reply_for(status={"world": {**WORLD, "members": [{"role": "worker", "index": 1, "uid": "b", "awaited": True}]}}).world is None
    assert reply_for("stranger").world is None
    assert reply_for(waiting=False).world is None


def test_ended_processes_are_not_started_again_in_the_same_attempt() -> None:
    assert reply_for(termination=TerminationMessage(20, attempt=2)).world is None
    assert reply_for(termination=TerminationMessage(20, attempt=1)).world is not None


def test_a_replica_gets_the_world_that_follows_its_termination() -> None:
    reply = reply_for(attempt=1, termination=TerminationMessage(20, attempt=1))
    assert (reply.attempt, reply.world is not None) == (2, True)
    assert reply_for(attempt=0, termination=TerminationMessage(20, attempt=0)).world is None, "it may have processes of attempt 1"


def test_a_supervisor_of_a_failed_job_ends() -> None:
    assert reply_for(status={"phase": "Failed"}).end is True


def test_processes_of_a_failed_attempt_are_ended_even_if_no_attempt_follows() -> None:
    failed = {**RECORD, "endTime": "2026-11-21T10:01:00Z", "class": "Application", "reason": "UserError"}
    reply = reply_for(waiting=False, status={"attempts": [failed]})
    assert (reply.end, reply.succeeded, reply.grace_seconds, reply.dump) == (True, False, 0, False)
    assert reply_for(waiting=True, status={"attempts": [failed]}).end is False, (
        "it may still be needed, if the class turns out to be another"
    )
    assert reply_for(waiting=False, status={"attempts": [{**failed, "reason": "Hang"}]}).dump is True


def test_a_replica_of_a_succeeded_job_may_save_before_it_ends() -> None:
    done = {**RECORD, "endTime": "2026-11-21T10:01:00Z", "reason": "Completed"}
    reply = reply_for(waiting=False, status={"phase": "Succeeded", "attempts": [done]})
    assert (reply.end, reply.succeeded, reply.grace_seconds) == (True, True, 120)


def test_stacks_are_requested_from_a_world_that_hung() -> None:
    before = {"attempt": 1, "startTime": "2026-11-21T10:00:00Z", "class": "Infrastructure"}
    assert reply_for(attempt=1, status={"attempts": [{**before, "reason": "Hang"}, RECORD]}).dump is True
    assert reply_for(attempt=1, status={"attempts": [{**before, "reason": "PeerLost"}, RECORD]}).dump is False


def test_a_replica_beyond_the_size_of_its_role_gets_no_world() -> None:
    members = [{"role": "worker", "index": 7, "uid": "b"}]
    assert reply_for(status={"world": {**WORLD, "members": members}}).world is None


WAITING = {"attempt": 2, "attempts": [RECORD], "phase": "Starting", "world": {**WORLD, "readyTime": None}}
ENDED = {**RECORD, "endTime": "2026-11-21T10:01:00Z"}


@pytest.mark.parametrize(
    "changes",
    [
        {"phase": "Failed"},
        {"attempt": 3},
        {"attempts": []},
        {"attempts": [ENDED]},
        {"attempts": [{**ENDED, "class": "Application"}]},
        {"world": WORLD},
        {"world": {**WORLD, "members": WORLD["members"][:1]}},
        {"world": {**WAITING["world"], "members": [{"role": "worker", "index": 0, "uid": "a", "incarnation": 0}]}},
        {"world": None},
    ],
)
def test_a_change_that_may_change_a_reply_changes_its_basis(changes: dict[str, Any]) -> None:
    assert reply_basis({**WAITING, **changes}) != reply_basis(WAITING)


LARGE = {"role": "worker", "indexes": "0-199", "uids": [""] * 200}


def test_a_reply_in_a_large_world_has_another_basis_when_some_of_its_members_go_on() -> None:
    def basis(world: dict[str, Any], **members: Any) -> tuple[Any, ...]:
        return reply_basis({**WAITING, "world": {**world, "members": [], "membersByRole": [{**LARGE, **members}]}})

    starting = WAITING["world"]
    trains_on = [{"indexes": "0-7", "incarnation": 0}]
    assert basis(starting, uids=["pod"] * 200) == basis(starting), "it stays while pods are created"
    assert basis(starting, alike=trains_on) != basis(starting)
    assert basis(starting, alike=trains_on, uids=["pod"] * 200) != basis(starting, alike=trains_on)
    assert basis(WORLD, uids=["pod"] * 200) != basis(WORLD)


def test_the_basis_of_a_reply_stays_while_pods_are_created() -> None:
    world = {**WAITING["world"], "members": [{"role": "worker", "index": 0, "uid": "a"}, {"role": "worker", "index": 1}]}
    assert reply_basis({**WAITING, "world": world, "message": "attempt 2 waits", "progress": {"step": 3}}) == reply_basis(WAITING)


def test_a_fetcher_gets_the_revisions_that_the_job_uses() -> None:
    status = {"inputs": [{"name": "base", "source": "hf://org/tiny", "revision": "c1"}, {"name": "rows", "source": "s3://bucket"}]}
    assert reply_for(status=status, inputs=(InputProgress("base"),)).revisions == {"base": "c1"}
    assert reply_for(status=status).revisions == {}


def sources_for(uid: str, *, members: int = 2, index: int = 2, **fields: Any) -> list[str]:
    """The hosts from which a spare copies snapshots."""
    memory = {"memory": {"sizeMib": 64}}
    spec = {
        "strategy": "FSDP",
        "trainer": {"task": "digits"},
        "roles": {"worker": {"replicas": members}},
        "checkpoint": memory,
        "recovery": {"spares": 2},
    } | fields
    world = {**WORLD, "size": members, "members": [{"role": "worker", "index": each, "uid": f"pod-{each}"} for each in range(members)]}
    status = {"attempt": 2, "world": world, "attempts": [RECORD], "phase": "Running"}
    job = TrainingJob.model_validate({"metadata": {"name": "digits", "namespace": "ns"}, "spec": spec, "status": status})
    report = Report(job="ns/digits", pod="p", role="worker", index=index, attempt=2, waiting=True)
    servers = {f"pod-{each}": SnapshotServer(7000 + each, "key") for each in range(members) if each != 1}
    return [each.host for each in reply_to(job, uid, report, addresses_of(job, 2), server_of=servers.get).snapshot_sources]


def test_a_spare_gets_the_members_that_give_their_snapshots() -> None:
    assert sources_for("spare") == ["worker-0.digits.ns.svc"]
    assert sources_for("pod-0") == [], "it is a member"
    assert sources_for("spare", checkpoint={"memory": {"sizeMib": 0}}) == []
    assert sources_for("spare", recovery={}) == []


def test_spares_of_a_large_world_get_different_members() -> None:
    hosts = sources_for("spare", members=200, index=200)
    assert len(hosts) == MAX_SNAPSHOT_SERVERS
    assert hosts != sources_for("spare", members=200, index=201)
