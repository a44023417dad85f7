"""Differences between the software of the processes of a world."""

from __future__ import annotations

from typing import Any

from muster.lifecycle.recording.ranks import differences
from muster_contract.notices import NoticeReason
from muster_contract.reports import Report
from tests.support.texts import absent
from tests.unit.lifecycle.lifecycle_cases import replica, report, running_story


def fingerprint(rank: int, **other: Any) -> dict[str, Any]:
    same = {"framework": "torch", "version": "2.15.0", "libraries": {"numpy": "2.4.6"}, "python": "3.11.7", "devices": ["cpu"]}
    return {**same, "rank": rank, "host": f"h{rank}", **other}


def reports_of(*fingerprints: dict[str, Any], role: str = "worker") -> list[Report]:
    return [report(f"{role}-{index}", fingerprints=[each]) for index, each in enumerate(fingerprints)]


def test_a_difference_names_the_rank_the_library_and_the_versions() -> None:
    old = fingerprint(2, libraries={"numpy": "1.26.4"})
    [difference] = differences(reports_of(fingerprint(0), fingerprint(1), old))
    assert absent(difference, "worker-2", "rank 2", "numpy 1.26.4", "2.4.6") == []


def test_the_second_of_two_ranks_is_compared_with_the_first() -> None:
    other = fingerprint(1, devices=["A100"])
    [difference] = differences(reports_of(fingerprint(0), other))
    assert absent(difference, "worker-1 (rank 1) has devices A100", "worker-0 (rank 0) has cpu") == []


def test_a_library_that_one_rank_lacks_is_named() -> None:
    bare = fingerprint(1, libraries={})
    [difference] = differences(reports_of(fingerprint(0), bare))
    assert absent(difference, "rank 1", "numpy no version", "rank 0", "2.4.6") == []


def test_hosts_and_roles_may_differ() -> None:
    assert differences(reports_of(fingerprint(0), fingerprint(1))) == []
    assert differences([*reports_of(fingerprint(0)), *reports_of(fingerprint(1, python="3.12.1"), role="ps")]) == []


def test_the_ranks_of_one_replica_are_compared() -> None:
    both = report(fingerprints=[fingerprint(0), fingerprint(1, threads=2)])
    [difference] = differences([both])
    assert absent(difference, "worker-0 (rank 1)", "threads 2", "worker-0 (rank 0)") == []


def test_a_difference_becomes_a_notice_once_all_replicas_have_reported() -> None:
    story = running_story(2)
    first = replica(report=report(step=1, fingerprints=[fingerprint(0)]))
    other = report("worker-1", step=1, fingerprints=[fingerprint(1, version="2.14.0")])
    story.see(first, replica("worker-1"), seconds=20)
    assert story.status.notices == ()
    story.see(first, replica("worker-1", report=other), seconds=60)
    (notice,) = story.status.notices
    assert notice.reason is NoticeReason.ENVIRONMENTS_DIFFER
    assert absent(notice.message, "worker-1", "2.14.0", "worker-0", "2.15.0") == []
