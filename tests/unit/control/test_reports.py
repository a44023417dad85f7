"""The store of reports: the newest report of each pod counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.control.reports import PAUSE_SECONDS, Reports
from muster_contract.inputs import InputProgress
from muster_contract.reports import Report

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def report(index: int = 0, *, attempt: int = 0, sequence: int = 1, **fields: Any) -> Report:
    return Report(job="default/j", pod=f"j-worker-{index}", role="worker", index=index, attempt=attempt, sequence=sequence, **fields)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1))
def test_the_report_with_the_highest_attempt_and_sequence_stays(arrivals: list[tuple[int, int]]) -> None:
    reports = Reports()
    for attempt, sequence in arrivals:
        is_new = reports.record("uid", report(attempt=attempt, sequence=sequence), NOW)
        stored = reports.of("uid")
        assert stored is not None
        assert not is_new or (stored.report.attempt, stored.report.sequence) == (attempt, sequence)
    assert (stored.report.attempt, stored.report.sequence) == max(arrivals)


def test_a_repeated_report_is_not_new() -> None:
    reports = Reports()
    assert reports.record("uid", report(), NOW)
    assert not reports.record("uid", report(), NOW)


def test_a_removed_pod_has_no_report() -> None:
    reports = Reports()
    for uid in "012":
        reports.record(uid, report(int(uid)), NOW)
    reports.forget("2")
    reports.forget("9")
    assert reports.of("2") is None
    assert len(reports) == 2


def test_a_removed_pod_does_not_count_as_waiting() -> None:
    reports = Reports()
    reports.record("0", report(waiting=True), NOW)
    reports.forget("0")
    assert (reports.waiting, len(reports)) == (0, 0)


def test_any_report_of_a_supervisor_is_newer_than_those_of_the_fetcher() -> None:
    reports, inputs = Reports(), (InputProgress("base"),)
    assert reports.record("uid", report(sequence=40, inputs=inputs), NOW)
    assert reports.record("uid", report(sequence=1), NOW)
    assert not reports.record("uid", report(sequence=41, inputs=inputs), NOW)


def listening_after(*arrivals: float) -> float | None:
    """Since which second reports have come without a pause, if reports of some replicas arrive at these seconds."""
    reports = Reports()
    for number, second in enumerate(arrivals):
        reports.record(f"uid-{number % 3}", report(sequence=number), NOW + timedelta(seconds=second))
    return (reports.listening - NOW).total_seconds() if reports.listening else None


@pytest.mark.parametrize(
    ("arrivals", "since"),
    [
        ((), None),
        ((7,), 7),
        ((0, 2, 4, 6, 6 + PAUSE_SECONDS), 0),
        ((0, 2, 2.1 + PAUSE_SECONDS), 2.1 + PAUSE_SECONDS),
        ((0, 2, 60, 61, 62), 60),
        ((50, 51, 40, 41), 40),
    ],
    ids=["no report", "the first", "no pause", "a pause", "a pause before others", "a clock that was set back"],
)
def test_the_operator_listens_since_the_first_report_after_a_pause(arrivals: tuple[float, ...], since: float | None) -> None:
    assert listening_after(*arrivals) == since


def test_an_old_report_shows_too_that_the_operator_listens() -> None:
    reports = Reports()
    for second in range(0, 12, 3):
        reports.record("uid", report(sequence=1), NOW + timedelta(seconds=second))
    assert reports.listening == NOW
