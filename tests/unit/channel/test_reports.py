"""The store of reports: the newest report of each pod counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.channel.reports import PAUSE_SECONDS, Reports
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


def test_only_a_pod_that_has_reported_can_lose_its_connection() -> None:
    reports = Reports()
    assert not reports.disconnect("uid", NOW)
    reports.record("uid", report(), NOW)
    assert reports.disconnect("uid", NOW)
    assert reports.disconnected_since("uid") == NOW
    reports.forget("uid")
    assert reports.disconnected_since("uid") is None


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


@pytest.mark.parametrize(
    ("arrivals", "missed"),
    [
        ((0,), 0),
        ((0, 0.5, PAUSE_SECONDS + 0.5), 0),
        ((0, 4.5, 5.0), 4.5 - PAUSE_SECONDS),
        ((0, 1.5, 3.0, 4.5), 3 * (1.5 - PAUSE_SECONDS)),
        ((0, 60, 61), 60 - PAUSE_SECONDS),
        ((50, 51, 40, 41), 0),
    ],
    ids=["no other", "no pause", "a pause", "a busy machine", "a long pause", "a clock that was set back"],
)
def test_only_the_time_after_a_pause_in_all_reports_proves_no_silence(arrivals: tuple[float, ...], missed: float) -> None:
    reports = Reports()
    reports.record("lost", report(sequence=1), NOW + timedelta(seconds=arrivals[0]))
    for number, second in enumerate(arrivals):
        reports.record("peer", report(sequence=number), NOW + timedelta(seconds=second))
    received = reports.of("lost")
    assert received is not None
    assert reports.missed_since(received) == pytest.approx(missed)


def test_an_old_report_shows_too_that_the_operator_listens() -> None:
    reports = Reports()
    reports.record("lost", report(sequence=1), NOW)
    for tenth in range(0, 50, 9):
        reports.record("uid", report(sequence=1), NOW + timedelta(seconds=tenth / 10))
    received = reports.of("lost")
    assert received is not None
    assert reports.missed_since(received) == 0


@pytest.mark.parametrize(
    ("phase", "count", "gap", "then", "longest"),
    [
        ("Training", 49, 0.2, 0, None),
        ("Training", 50, 0.2, 0, 0.2),
        ("Training", 300, 0.25, 0, 0.25),
        ("Training", 60, 0.5, 25, 0.5),
        ("Training", 60, 0.5, 120, None),
        ("Starting", 60, 0.2, 0, None),
    ],
    ids=["too few", "enough", "several windows", "of the window before", "long ago", "of replicas that do not train"],
)
def test_the_longest_gap_between_reports_is_known(phase: str, count: int, gap: float, then: float, longest: float | None) -> None:
    reports = Reports()
    for number in range(count + 1):
        reports.record("uid", report(sequence=number, phase=phase), NOW + timedelta(seconds=number * gap))
    assert reports.longest_gap(NOW + timedelta(seconds=count * gap + then)) == (None if longest is None else pytest.approx(longest))


def test_a_pause_of_all_reports_is_no_gap() -> None:
    reports = Reports()
    for number in range(100):
        reports.record("uid", report(sequence=number, phase="Training"), NOW + timedelta(seconds=number * 0.2 + (number > 50) * 9))
    assert reports.longest_gap(NOW + timedelta(seconds=29)) == pytest.approx(PAUSE_SECONDS)


def test_a_frozen_node_that_comes_back_makes_no_gap() -> None:
    reports = Reports()
    for number in range(100):
        now = NOW + timedelta(seconds=number * 0.2)
        reports.record("uid", report(sequence=number, phase="Training"), now)
        if number in (0, 60):
            reports.record("frozen", report(1, sequence=number, phase="Training"), now)
    assert reports.longest_gap(NOW + timedelta(seconds=20)) == pytest.approx(0.2)
