"""The book of reports: which report counts, and how environments that differ are named."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from muster.api.reports import Report
from muster.control.reports import Reports

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def report(index: int = 0, *, attempt: int = 0, sequence: int = 1, **fields: Any) -> Report:
    return Report(job="default/j", pod=f"j-worker-{index}", role="worker", index=index, attempt=attempt, sequence=sequence, **fields)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1))
def test_whatever_the_order_the_report_of_the_highest_attempt_and_sequence_stays(arrivals: list[tuple[int, int]]) -> None:
    reports = Reports()
    for attempt, sequence in arrivals:
        news = reports.record("uid", report(attempt=attempt, sequence=sequence), NOW)
        kept = reports.of("uid")
        assert kept is not None
        assert not news or (kept.report.attempt, kept.report.sequence) == (attempt, sequence)
    assert (kept.report.attempt, kept.report.sequence) == max(arrivals)


def test_a_report_that_comes_twice_is_no_news() -> None:
    reports = Reports()
    assert reports.record("uid", report(), NOW)
    assert not reports.record("uid", report(), NOW)


def fingerprint(rank: int, *, version: str = "2.15.0", numpy: str = "2.4.6", python: str = "3.11.7") -> dict[str, Any]:
    return {"rank": rank, "framework": "torch", "version": version, "libraries": {"numpy": numpy}, "python": python, "host": f"h{rank}"}


def book(*fingerprints: dict[str, Any]) -> Reports:
    reports = Reports()
    for index, each in enumerate(fingerprints):
        reports.record(str(index), report(index, fingerprints=[each]), NOW)
    return reports


def test_the_rank_the_library_and_the_versions_that_differ_are_named() -> None:
    reports = book(fingerprint(0), fingerprint(1), fingerprint(2, numpy="1.26.4"))
    assert reports.differences("012") == ["worker-2 (rank 2) has numpy 1.26.4, the others have 2.4.6"]


def test_of_two_that_differ_the_second_is_held_against_the_first() -> None:
    reports = book(fingerprint(0), fingerprint(1, version="2.14.0"))
    assert reports.differences("01") == ["worker-1 (rank 1) has version 2.14.0, worker-0 (rank 0) has 2.15.0"]


def test_a_library_that_one_rank_lacks_is_named() -> None:
    bare = fingerprint(1) | {"libraries": {}}
    assert book(fingerprint(0), bare).differences("01") == ["worker-1 (rank 1) has numpy no version, worker-0 (rank 0) has 2.4.6"]


def test_hosts_may_differ_and_forgotten_pods_are_not_compared() -> None:
    reports = book(fingerprint(0), fingerprint(1), fingerprint(2, python="3.12.1"))
    assert reports.differences("01") == []
    reports.keep_only("01")
    assert reports.of("2") is None
    assert reports.differences("012") == []
