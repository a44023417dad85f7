"""A plot shows all that was measured, and its axes can be read."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest

from muster.report.plots import FONT_SIZE, NARROW, WIDE, Line, Lines, svg

TEXT = re.compile(r'<text style="([^"]*)" x="([-.\d]+)"[^>]*>([^<]+)</text>')
DOT = re.compile(r'<use [^>]*style="fill: var\(--line\)')


def words(plot: Lines, *, width: float = WIDE) -> list[str]:
    return [word for _, _, word in TEXT.findall(svg(plot, width))]


def losses(*values: float) -> Lines:
    return Lines("step", "loss", [Line(list(enumerate(values, start=1)))], log_y=True, whole_x=True)


@pytest.mark.parametrize("largest", [10, 16])
def test_names_of_ticks_do_not_touch_however_narrow_the_plot(largest: int) -> None:
    sizes = {4.0**power: f"{4 ** (power % 5)} {['B', 'KiB', 'MiB', 'GiB'][power // 5]}" for power in range(5, largest + 1)}
    plot = Lines("bytes", "GB/s", [Line([(size, 1.0) for size in sizes], "AllReduce")], x_ticks=sizes, log_x=True)
    drawn = [(float(x), name) for _, x, name in TEXT.findall(svg(plot, NARROW)) if name in sizes.values()]
    assert len(drawn) >= 3
    letter = 0.6 * FONT_SIZE
    assert all(after - before > (len(name) + len(following)) / 2 * letter for (before, name), (after, following) in pairwise(drawn))


def test_where_there_is_room_all_ticks_are_named() -> None:
    sizes = {1.0: "1", 2.0: "2", 4.0: "4"}
    assert set(words(Lines("processes", "s", [Line([(size, 1.0) for size in sizes])], x_ticks=sizes))) >= set(sizes.values())


@pytest.mark.parametrize(("values", "dots"), [((0.5,), 1), ((0.5, math.nan, 0.4, 0.3), 1), ((0.5, 0.4), 0), ((math.nan,), 0)])
def test_a_point_without_neighbours_is_drawn_as_a_dot(values: tuple[float, ...], dots: int) -> None:
    assert len(DOT.findall(svg(losses(*values), WIDE))) == dots


def test_losses_of_one_order_of_magnitude_fill_an_axis_of_plain_numbers() -> None:
    ticks = [float(word) for word in words(losses(1.31, 1.43, 1.35)) if "." in word]
    assert len(ticks) >= 3
    assert 1.3 <= min(ticks) < max(ticks) < 1.46


@pytest.mark.parametrize(("values", "ticks"), [((2.5, 0.3, 0.2), {"2", "1", "0.5", "0.2"}), ((2.5, 1e-4), {"1", "0.1", "0.01", "0.001"})])
def test_losses_over_decades_have_a_logarithmic_axis_of_plain_numbers(values: tuple[float, ...], ticks: set[str]) -> None:
    assert set(words(losses(*values))) >= ticks


@pytest.mark.parametrize("count", [1, 2, 18, 40])
def test_steps_are_whole_numbers(count: int) -> None:
    found = TEXT.findall(svg(losses(*[1.0] * count), WIDE))
    along = [word for style, _, word in found if "middle" in style and word not in ("step", "loss")]
    assert along
    assert all(word.isdigit() for word in along)
