"""The book of reports: which report counts, and how environments that differ are named."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from muster.control.reports import Reports
from muster_contract.reports import Report

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


def test_forgotten_pods_are_no_more() -> None:
    reports = Reports()
    for uid in "012":
        reports.record(uid, report(int(uid)), NOW)
    reports.forget("2")
    reports.forget("9")
    assert reports.of("2") is None
    assert len(reports) == 2


def test_a_forgotten_pod_waits_for_no_world() -> None:
    reports = Reports()
    reports.record("0", report(waiting=True), NOW)
    reports.forget("0")
    assert (reports.waiting, len(reports)) == (0, 0)
