"""Plots have all points that a screen can show, and show any text as text."""

from __future__ import annotations

import html
import json
import math
import re
from hashlib import sha256
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from muster.tools.report.page import Page, Section, as_html
from muster.tools.report.plots import MOST_POINTS, Bar, Bars, Line, Lines, plot_data, printable


def data_of(plot: Lines) -> Any:
    return json.loads(plot_data(plot))


def losses(*values: float) -> Lines:
    return Lines("step", "loss", [Line(list(enumerate(values, start=1)))], log_y=True, whole_x=True)


def test_the_files_of_the_plot_library_are_those_of_its_release() -> None:
    folder = files("muster.tools.report") / "uplot"
    recorded = re.findall(r"`(uPlot\S+)` \| sha256 (\S+)", (folder / "README.md").read_text())
    assert len(recorded) == 2
    for name, digest in recorded:
        assert sha256((folder / name).read_bytes()).hexdigest() == digest


@pytest.mark.parametrize(("values", "is_log"), [((1.31, 1.43), False), ((2.5, 0.2), True), ((2.5, 0.0), False), ((math.nan,), False)])
def test_losses_over_decades_have_a_logarithmic_axis(values: tuple[float, ...], is_log: bool) -> None:
    assert data_of(losses(*values))["logY"] is is_log


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e308, -1e308, 1e-300])
def test_a_value_that_no_axis_can_show_is_a_gap(value: float) -> None:
    assert data_of(losses(1.0, value))["lines"][0]["points"] == [[1.0, 1.0], [2.0, None]]


def test_the_peaks_of_a_long_line_stay() -> None:
    values = [1.0] * 100_000
    values[54_321], values[77_777] = 50.0, 0.01
    points = data_of(losses(*values))["lines"][0]["points"]
    assert len(points) <= MOST_POINTS
    assert {(54_322, 50.0), (77_778, 0.01)} <= {tuple(point) for point in points}
    assert points == sorted(points)


def test_attempts_in_a_row_are_one_line_with_a_gap() -> None:
    one, two, before = Line([(1, 1), (2, 1)]), Line([(3, 1)]), Line([(2, 5)])
    joined = data_of(Lines("s", "samples/s", [one, two, before]))["lines"]
    assert [line["points"] for line in joined] == [[[1, 1], [2, 1], [2.5, None], [3, 1]], [[2, 5]]]
    assert {line["label"] for line in joined} == {"samples/s"}


def test_words_are_in_segments_that_have_room_for_them() -> None:
    bars = Bars("s", [Bar("a", [(0, 9, "line", "productive"), (9, 0.5, "mark", "recovering")])])
    page = as_html(Page("t", "", [Section("s", [bars])]))
    assert re.findall(r">([a-z]*)</i>", page) == ["productive", ""]


HOSTILE = ["</script><script>", "$x^2$", "<b> & '\"", "a\x00b\x1b[2J\x07", "\ud800", "\u202eabc", "\u3000", "]]>", "-->", "{{ 7 }}"]
labels = st.sampled_from(HOSTILE) | st.text(min_size=1, max_size=20)


@settings(deadline=None, max_examples=20)
@given(labels, labels, labels, labels)
@example(*HOSTILE[:4])
def test_a_plot_of_lines_shows_any_label_unchanged(name: str, mark: str, tick: str, axis: str) -> None:
    plot = Lines(axis, "s", [Line([(1.0, 1.0), (2.0, 3.0)], name)], marks=[(1.5, mark)], x_ticks={1.0: tick})
    page = as_html(Page("t", "", [Section("s", [plot])]))
    (found,) = re.findall(r'data-plot="([^"]*)"', page)
    data = json.loads(html.unescape(found))
    assert [data["lines"][0]["label"], data["marks"][0][1], data["ticks"][0][1], data["xLabel"]] == list(
        map(printable, (name, mark, tick, axis))
    )
    assert page.count("<script>") == 2


@settings(deadline=None, max_examples=20)
@given(labels, labels, labels)
@example(*HOSTILE[:3])
def test_a_plot_of_bars_shows_any_label_as_text(name: str, words: str, note: str) -> None:
    page = as_html(Page("t", "", [Section("s", [Bars("s", [Bar(name, [(0.0, 10.0, "series-1", words)], note)], {"series-1": name})])]))
    assert html.escape(words).replace("&#x27;", "&#39;").replace("&quot;", "&#34;") in page
    assert page.count("<script>") == 2
