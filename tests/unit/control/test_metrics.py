"""Figures in Prometheus' text format."""

from __future__ import annotations

import pytest

from muster.control.metrics import Counter, Gauge, Histogram, exposition


@pytest.mark.parametrize(
    ("value", "written"),
    [(1795370123.25, "1795370123.25"), (1234567.0, "1234567"), (3, "3"), (0.1, "0.1"), (1e17, "100000000000000000"), (float("nan"), "nan")],
)
def test_a_number_has_all_its_digits(value: float, written: str) -> None:
    assert exposition([Gauge("figure", "A figure", lambda: value)]).splitlines()[-1] == f"figure {written}"


def test_a_counter_beyond_a_million_grows_by_one() -> None:
    counter = Counter("requests_total", "Requests")
    counter.add({"verb": "GET"}, 1_000_000)
    counter.add({"verb": "GET"})
    assert 'requests_total{verb="GET"} 1000001\n' in exposition([counter])


def test_the_sum_of_a_histogram_has_all_its_digits() -> None:
    histogram = Histogram("work_seconds", "Work")
    histogram.observe(1_234_567.125)
    page = exposition([histogram])
    assert "work_seconds_sum 1234567.125\n" in page
    assert 'work_seconds_bucket{le="+Inf"} 1\n' in page
