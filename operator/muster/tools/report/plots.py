"""The plots of a page, as data. `plots.js` draws lines with uPlot, and the template draws bars. Colours come from the style sheet of the
page, for light mode, dark mode and paper."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from muster.tools.report.timeline import Kind

SERIES = tuple(f"series-{number}" for number in range(1, 7))
"""Colours for curves and bars that are compared, in the order in which to use them."""
ROLES = ("ink", "grid", "paper", "line", "faint", "mark", *SERIES, *(kind.value for kind in Kind))
"""The colours of a plot. They are the names of variables of the style sheet."""
DECADE = 10.0
LARGEST, SMALLEST = 1e100, 1e-100
"""A value beyond these is a gap in its line, because axes with room around it would be infinite, or end at 0."""
MOST_POINTS = 4000
"""The largest number of points of a line that a page has. Screens have fewer pixels."""
LETTERS = 100
"""The letters that fit into the width of a bar."""


@dataclass(frozen=True)
class Line:
    """A curve through `points`, named by `label`. NaN leaves a gap."""

    points: Sequence[tuple[float, float]]
    label: str = ""
    colour: str = "line"
    width: float = 1.5
    dots: bool = False
    """Whether each point has a dot, for a few measured points."""


@dataclass(frozen=True)
class Lines:
    """Curves over one x axis. `marks` are positions on it, with a label each. `x_ticks` replaces numbers by words; some are
    left out if they would overlap. With `log_y`, the y axis is logarithmic if the values span more than one order of magnitude."""

    x_label: str
    y_label: str
    lines: Sequence[Line]
    marks: Sequence[tuple[float, str]] = ()
    x_ticks: Mapping[float, str] = field(default_factory=dict)
    log_x: bool = False
    log_y: bool = False
    whole_x: bool = False
    """Whether x has only whole numbers."""
    height: int = 320
    """In pixels."""


@dataclass(frozen=True)
class Bar:
    """A row of `segments` (begin, length, colour, words), with gaps or without. `note` follows its end."""

    label: str
    segments: Sequence[tuple[float, float, str, str]]
    note: str = ""


@dataclass(frozen=True)
class Bars:
    """Rows of bars from top to bottom. `key` explains the colours, because short segments have no room for words."""

    x_label: str
    bars: Sequence[Bar]
    key: Mapping[str, str] = field(default_factory=dict)

    @property
    def end(self) -> float:
        """The end of the longest bar."""
        return max((begin + length for bar in self.bars for begin, length, _, _ in bar.segments), default=0.0) or 1.0

    def fits(self, words: str, length: float) -> bool:
        """Whether a segment of this length has room for the words."""
        return len(words) <= LETTERS * length / self.end


def plot_data(plot: Lines) -> str:
    """The plot as JSON, which `plots.js` reads. Lines without a label are named by the y axis."""
    lines = [
        {
            "label": printable(line.label or plot.y_label),
            "colour": line.colour,
            "width": line.width,
            "dots": line.dots,
            "points": [[_short(x), _short(y)] for x, y in _thinned(line.points)],
        }
        for line in _joined(plot.lines)
    ]
    values = [y for line in plot.lines for _, y in line.points if _is_drawn(y)]
    data = {
        "xLabel": printable(plot.x_label),
        "yLabel": printable(plot.y_label),
        "lines": lines,
        "marks": [[_short(x), printable(label)] for x, label in plot.marks],
        "ticks": [[_short(x), printable(name)] for x, name in sorted(plot.x_ticks.items())],
        "logX": plot.log_x,
        "logY": plot.log_y and bool(values) and min(values) > 0 and max(values) >= DECADE * min(values),
        "fromZero": not plot.log_y,
        "wholeX": plot.whole_x,
        "height": plot.height,
    }
    return json.dumps(data, separators=(",", ":"))


def printable(text: str) -> str:
    """The text with spaces for white space, and escapes for control characters and halves of surrogate pairs."""
    return "".join(
        letter if letter.isprintable() else " " if letter.isspace() else letter.encode("unicode_escape").decode() for letter in text
    )


def _joined(lines: Sequence[Line]) -> list[Line]:
    """The lines, with one line in place of several that follow each other and look the same, such as those of attempts."""
    joined: list[Line] = []
    for line in lines:
        before = joined[-1] if joined else None
        looks = (line.label, line.colour, line.width, line.dots)
        if before and looks == (before.label, before.colour, before.width, before.dots) and before.points[-1][0] < line.points[0][0]:
            gap = ((before.points[-1][0] + line.points[0][0]) / 2, math.nan)
            joined[-1] = Line([*before.points, gap, *line.points], *looks)
        elif line.points:
            joined.append(line)
    return joined


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """At most MOST_POINTS of the points. Of each group of neighbours, the lowest and the highest stay."""
    if len(points) <= MOST_POINTS:
        return points
    size = math.ceil(2 * len(points) / MOST_POINTS)
    kept = []
    for begin in range(0, len(points), size):
        group = range(begin, min(begin + size, len(points)))
        drawn = [at for at in group if _is_drawn(points[at][1])] or [begin]
        kept += sorted({min(drawn, key=lambda at: points[at][1]), max(drawn, key=lambda at: points[at][1])})
    return [points[at] for at in kept]


def _is_drawn(y: float) -> bool:
    return y == 0 or SMALLEST <= abs(y) <= LARGEST


def _short(value: float) -> float | None:
    return float(f"{value:.9g}") if _is_drawn(value) else None
