"""Plots show all points, and have readable axes."""

from __future__ import annotations

import html
import math
import re
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from muster.tools.report.plots import FONT_SIZE, NARROW, ROLES, WIDE, Bar, Bars, Line, Lines, printable, svg

TEXT = re.compile(r'<text style="([^"]*)" x="([-.\d]+)"[^>]*>([^<]+)</text>')
DOT = re.compile(r'<use [^>]*style="fill: var\(--line\)')


def words(plot: Lines, *, width: float = WIDE) -> list[str]:
    return [word for _, _, word in TEXT.findall(svg(plot, width))]


def losses(*values: float) -> Lines:
    return Lines("step", "loss", [Line(list(enumerate(values, start=1)))], log_y=True, whole_x=True)


@pytest.mark.parametrize("largest", [10, 16])
def test_names_of_ticks_do_not_touch_in_a_narrow_plot(largest: int) -> None:
    sizes = {4.0**power: f"{4 ** (power % 5)} {['B', 'KiB', 'MiB', 'GiB'][power // 5]}" for power in range(5, largest + 1)}
    plot = Lines("bytes", "GB/s", [Line([(size, 1.0) for size in sizes], "AllReduce")], x_ticks=sizes, log_x=True)
    drawn = [(float(x), name) for _, x, name in TEXT.findall(svg(plot, NARROW)) if name in sizes.values()]
    assert len(drawn) >= 3
    letter = 0.6 * FONT_SIZE
    assert all(after - before > (len(name) + len(following)) / 2 * letter for (before, name), (after, following) in pairwise(drawn))


def test_all_ticks_are_named_if_there_is_room() -> None:
    sizes = {1.0: "1", 2.0: "2", 4.0: "4"}
    assert set(words(Lines("processes", "s", [Line([(size, 1.0) for size in sizes])], x_ticks=sizes))) >= set(sizes.values())


@pytest.mark.parametrize(("values", "dots"), [((0.5,), 1), ((0.5, math.nan, 0.4, 0.3), 1), ((0.5, 0.4), 0), ((math.nan,), 0)])
def test_a_point_without_neighbours_is_drawn_as_a_dot(values: tuple[float, ...], dots: int) -> None:
    assert len(DOT.findall(svg(losses(*values), WIDE))) == dots


def test_losses_of_one_order_of_magnitude_have_an_axis_of_plain_numbers() -> None:
    ticks = [float(word) for word in words(losses(1.31, 1.43, 1.35)) if "." in word]
    assert len(ticks) >= 3
    assert 1.3 <= min(ticks) < max(ticks) < 1.46


@pytest.mark.parametrize(("values", "ticks"), [((2.5, 0.3, 0.2), {"2", "1", "0.5", "0.2"}), ((2.5, 1e-4), {"1", "0.1", "0.01", "0.001"})])
def test_losses_over_decades_have_a_logarithmic_axis_of_plain_numbers(values: tuple[float, ...], ticks: set[str]) -> None:
    assert set(words(losses(*values))) >= ticks


@pytest.mark.parametrize("count", [1, 2, 18, 40])
def test_steps_are_whole_numbers(count: int) -> None:
    texts = TEXT.findall(svg(losses(*[1.0] * count), WIDE))
    along = [word for style, _, word in texts if "middle" in style and word not in ("step", "loss")]
    assert along
    assert all(word.isdigit() for word in along)


HOSTILE = [
    "#0101ff",
    "#010101",
    "$\\frac{",
    "$x^2$",
    "\\alpha",
    "<b> & '\"",
    "a\x00b\x1b[2J\x07",
    "\ud800",
    "\u202eabc",
    "\u3000",
    "\U0001f680",
    "]]>",
    "-->",
]
labels = st.sampled_from(HOSTILE) | st.text(min_size=1, max_size=20)


def shown(drawn: str) -> str:
    """All text of a drawing, without the line breaks that long labels get."""
    return "".join(html.unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)</text>", drawn)).replace(" ", "")


def check(drawn: str, *texts: str) -> None:
    """Checks that every text is unchanged, and every colour is one of the style sheet."""
    drawn.encode()
    assert all(printable(text).replace(" ", "") in shown(drawn) for text in texts)
    assert set(re.findall(r"var\(--([^)]*)\)", re.sub(r"<text.*?</text>", "", drawn))) <= set(ROLES)
    assert not re.search("#0101[0-9a-f]{2}", " ".join(re.findall("<[a-z][^>]*>", drawn)))


@settings(deadline=None, max_examples=20)
@given(labels, labels, labels, labels)
@example(*HOSTILE[:4])
@example("$", "$$", "\x7f", "#0101")
def test_a_plot_of_lines_shows_any_label_unchanged(name: str, mark: str, tick: str, axis: str) -> None:
    lines = [Line([(1.0, 1.0), (2.0, 3.0)], name)]
    check(svg(Lines(axis, "s", lines, marks=[(1.5, mark)]), WIDE), axis, mark, name)
    check(svg(Lines("x", axis, lines, x_ticks={1.0: tick, 2.0: "2"}), WIDE), tick, axis, name)


@settings(deadline=None, max_examples=20)
@given(labels, labels, labels)
@example(*HOSTILE[:3])
def test_a_plot_of_bars_shows_any_label_unchanged(name: str, words: str, note: str) -> None:
    check(svg(Bars("s", [Bar(name, [(0.0, 10.0, "series-1", words)], note)], {"series-1": name}), WIDE), name, words, note)


def test_a_logarithmic_axis_without_names_has_plain_numbers() -> None:
    assert {"1", "10", "100"} <= set(words(Lines("bytes", "s", [Line([(1.0, 1.0), (100.0, 2.0)])], log_x=True)))


@pytest.mark.parametrize("values", [(1.0, 1.7e308), (1e308, -1e308), (1e308,), (1e300, 1e-300), (1e100, 1e-100)])
def test_extreme_values_leave_a_gap(values: tuple[float, ...]) -> None:
    assert "step" in words(losses(*values))
    assert "step" in words(Lines("step", "loss", [Line(list(enumerate(values)))]))
