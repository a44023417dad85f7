"""The status of a job with many replicas: it is short, and nothing is lost."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from muster.admission import definitions
from muster.api.compact import in_ranges, ranges, short_uid, whole_uid
from muster.api.status import MOST_LISTED_MEMBERS, AttemptRecord, Member, Phase, TrainingJobStatus, World, members_in
from muster.control.admission import readable_status
from tests.support.seeds import seeded_random

CREATED = datetime(2026, 11, 21, 10, tzinfo=UTC)
LARGE = 4096


def uids(draw: random.Random) -> str:
    return str(UUID(int=draw.getrandbits(128), version=4))


def status_of(*members: Member) -> TrainingJobStatus:
    world = World(attempt=3, size=len(members), members=members, created_time=CREATED)
    return TrainingJobStatus(phase=Phase.RUNNING, attempt=3, world=world, attempts=(AttemptRecord(attempt=3, start_time=CREATED),))


def workers(count: int) -> list[Member]:
    draw = seeded_random()
    return [Member(role="worker", index=index, uid=uids(draw)) for index in range(count)]


def after_a_recovery(count: int) -> list[Member]:
    """Half of the workers, drawn at random, have new pods with new names. The processes of the others went on."""
    draw = seeded_random()
    return [replace(each, **draw.choice(({"suffix": 3}, {"incarnation": 1, "awaited": True}))) for each in workers(count)]  # type: ignore[arg-type]


def size(status: TrainingJobStatus) -> int:
    return len(json.dumps(status.wire(), separators=(",", ":")))


@pytest.mark.parametrize(
    "members",
    [
        workers(LARGE),
        after_a_recovery(LARGE),
        [Member(role="worker", index=index) for index in range(LARGE)],
        [Member(role="chief", index=0, uid="chief/0"), *after_a_recovery(LARGE), Member(role="ps", index=7, succeeded=True)],
        [*workers(200)[::-1], Member(role="worker", index=999, unhealthy_since=CREATED)],
        [Member(role=role, index=index) for index in range(100) for role in ("worker", "ps")],
    ],
    ids=["running", "after a recovery", "before its pods exist", "several roles", "in another order", "roles that alternate"],
)
def test_a_status_with_many_members_is_read_as_it_was(members: list[Member]) -> None:
    status = status_of(*members)
    written = json.loads(json.dumps(status.wire()))
    assert written["world"]["members"] == []
    assert TrainingJobStatus.from_wire(written) == readable_status(written) == status
    read = [
        Member(**{**plain(each), "unhealthy_since": CREATED if "unhealthySince" in each else None}) for each in members_in(written["world"])
    ]
    assert read == members


def plain(member: Any) -> dict[str, Any]:
    return {name: value for name, value in member.items() if name != "unhealthySince"}


@pytest.mark.parametrize("members", [workers(LARGE), after_a_recovery(LARGE)], ids=["running", "after a recovery"])
def test_the_status_of_4096_replicas_is_short(members: list[Member]) -> None:
    listed = sum(size(status_of(each)) - size(status_of()) for each in members[:100]) / 100 * len(members)
    assert size(status_of(*members)) < min(150_000, 0.3 * listed)


def test_a_status_lists_up_to_128_members_one_by_one() -> None:
    few, many = (status_of(*workers(count)).wire()["world"] for count in (MOST_LISTED_MEMBERS, MOST_LISTED_MEMBERS + 1))
    assert (len(few["members"]), "membersByRole" in few) == (128, False), "earlier versions read such a status"
    assert (many["members"], len(members_in(many))) == ([], 129)
    assert "membersByRole" in definitions.schema()["properties"]["status"]["properties"]["world"]["properties"]


def test_many_members_that_an_earlier_version_listed_are_read_and_written_in_short() -> None:
    status = status_of(*after_a_recovery(200))
    written = status.wire()
    written["world"] = {**written["world"], "members": members_in(written["world"])}
    del written["world"]["membersByRole"]
    assert TrainingJobStatus.from_wire(written) == status
    assert TrainingJobStatus.from_wire(written).wire() == status.wire()


@pytest.mark.parametrize(
    "changes",
    [
        {"indexes": "0-999999999"},
        {"indexes": "0-9"},
        {"indexes": "many"},
        {"uids": ["no-uid"] * 200},
        {"uids": "uids"},
        {"alike": [{"indexes": "0-999999999", "suffix": 1}]},
        {"role": 7},
    ],
    ids=["too many", "too few uids", "no numbers", "other texts", "no list", "too many alike", "no role"],
)
def test_members_that_cannot_be_read_count_as_absent(changes: dict[str, Any]) -> None:
    status = status_of(*workers(200))
    written = status.wire()
    written["world"]["membersByRole"][0].update(changes)
    assert status.world is not None
    assert readable_status(written) == replace(status, world=replace(status.world, members=()))
    assert members_in(written["world"]) == []


def test_indexes_are_written_as_ranges_in_their_order() -> None:
    assert ranges([3, 4, 5, 0, 9, 8]) == "3-5,0,9,8"
    assert in_ranges("3-5,0,9,8", most=6) == [3, 4, 5, 0, 9, 8]
    assert in_ranges("5-3", most=0) == []


@pytest.mark.parametrize(
    "uid", ["", "worker-0/0", "2b1c0f5e-68b1-4a63-9c55-0d7a2a3f1e11", "2B1C0F5E-68B1-4A63-9C55-0D7A2A3F1E11", "A" * 22]
)
def test_a_uid_is_read_as_it_was(uid: str) -> None:
    assert whole_uid(short_uid(uid)) == uid


def test_a_uuid_takes_22_characters() -> None:
    assert len(short_uid("2b1c0f5e-68b1-4a63-9c55-0d7a2a3f1e11")) == 22
