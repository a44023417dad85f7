"""Draws the plots of a page as SVG. Its colours come from the style sheet of the page, for light mode, dark mode and paper.

There are no legends for lines. A line has its label at its end, a bar beside it, and a mark at its top. matplotlib draws with a
placeholder for each colour role, and `svg` replaces the placeholders by CSS variables.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from muster.tools.report.history import ReportError
from muster.tools.report.timeline import Kind

SERIES = tuple(f"series-{number}" for number in range(1, 7))
"""Colours for curves and bars that are compared, in the order in which to use them."""
ROLES = ("ink", "grid", "paper", "line", "faint", "mark", *SERIES, *(kind.value for kind in Kind))
"""The colours of a plot. They are the names of variables of the style sheet."""
PLACEHOLDER = {role: f"#0101{number:02x}" for number, role in enumerate(ROLES)}
_ROLE = {colour: role for role, colour in PLACEHOLDER.items()}
_PLACEHOLDER = re.compile("|".join(_ROLE))
_TAG = re.compile("<[a-z][^>]*>")
"""Colours are replaced only in attributes, because the same characters in a label are text."""

WIDE, NARROW = 9.0, 4.6
"""Width in inches of a plot for large and for small screens. Each page has both."""
FONT_SIZE, LABEL_SIZE = 9.5, 8.5
LINE_HEIGHT = 1.25
HEADROOM = 0.15
"""Space above a curve for the labels of marks, as a share of the axis."""
DECADE = 10.0
LARGEST, SMALLEST = 1e100, 1e-100
"""A value beyond these is a gap in its line, because axes with room around it would be infinite, or end at 0."""
BESIDE: Any = {"textcoords": "offset points", "va": "center", "fontsize": LABEL_SIZE, "annotation_clip": False}
"""Annotation options of a label that is `xytext` points away from its point."""
LABEL_WRAP = {WIDE: 28, NARROW: 13}


@dataclass(frozen=True)
class Line:
    """A curve through `points` with `label` at its end. NaN leaves a gap."""

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
    height: float = 3.4
    """In inches."""


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
    def height(self) -> float:
        return 0.9 + 0.45 * len(self.bars)


def svg(plot: Lines | Bars, width: float) -> Markup:
    """The plot as one SVG element of `width` inches. Raises ReportError if matplotlib is missing."""
    try:
        import matplotlib
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ReportError("plots need matplotlib, which is not installed: pip install matplotlib") from error
    ink, grid = PLACEHOLDER["ink"], PLACEHOLDER["grid"]
    style: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": f"muster-{width}",
        "font.family": "sans-serif",
        "font.size": FONT_SIZE,
        "text.color": ink,
        "axes.labelcolor": ink,
        "axes.edgecolor": grid,
        "xtick.color": ink,
        "ytick.color": ink,
        "axes.grid": True,
        "grid.color": grid,
        "grid.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "text.parse_math": False,  # labels are names and messages, in which a dollar sign is text
    }
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # the browser draws the text, with fonts of its own
        figure = Figure(figsize=(width, plot.height), layout="constrained")
        FigureCanvasSVG(figure)
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        if isinstance(plot, Lines):
            _draw_lines(axes, replace(plot, lines=[replace(line, points=_bounded(line.points)) for line in plot.lines]), width)
        else:
            _draw_bars(axes, plot, width)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r'\1 width="100%"', text, count=1)
    return Markup(_TAG.sub(lambda tag: _PLACEHOLDER.sub(lambda colour: f"var(--{_ROLE[colour[0]]})", tag[0]), text))


def printable(text: str) -> str:
    """The text with spaces for white space, and escapes for control characters and halves of surrogate pairs."""
    return "".join(
        letter if letter.isprintable() else " " if letter.isspace() else letter.encode("unicode_escape").decode() for letter in text
    )


def _draw_lines(axes: Any, plot: Lines, width: float) -> None:
    for line in plot.lines:
        colour, dots = PLACEHOLDER[line.colour], None if line.dots else _isolated(line.points)
        axes.plot(*zip(*line.points, strict=True), color=colour, linewidth=line.width, marker="o", markevery=dots)
    if plot.log_x:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    elif not plot.x_ticks and min(x for line in plot.lines for x, _ in line.points) >= 0:
        axes.set_xlim(left=0)
    if plot.whole_x:
        axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    _scale_y(axes, plot)
    for x, label in plot.marks:
        _mark(axes, x, label)
    axes.set_xlabel(printable(plot.x_label))
    axes.set_ylabel(printable(plot.y_label))
    _name_ends(axes, [line for line in plot.lines if line.label], wrap=LABEL_WRAP[width])
    if plot.x_ticks:
        _name_ticks(axes, {x: printable(name) for x, name in plot.x_ticks.items()})


def _bounded(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(x, y if y == 0 or SMALLEST <= abs(y) <= LARGEST else math.nan) for x, y in points]


def _isolated(points: Sequence[tuple[float, float]]) -> list[int]:
    """The indices of points without a neighbour. A line alone would not show them."""
    is_drawn = [False, *(math.isfinite(y) for _, y in points), False]
    return [at for at in range(len(points)) if is_drawn[at : at + 3] == [False, True, False]]


def _scale_y(axes: Any, plot: Lines) -> None:
    """A logarithmic axis if `log_y` is set and the values span a decade; else a linear one, which begins at 0 unless `log_y` is set."""
    values = [y for line in plot.lines for _, y in line.points if math.isfinite(y)] or [1.0]
    if plot.log_y and max(values) >= DECADE * min(values):
        axes.set_yscale("log", subs=(2, 5) if max(values) < DECADE**3 * min(values) else ())
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        bottom, top = axes.get_ylim()
        axes.set_ylim(top=top * (top / bottom) ** HEADROOM)
        return
    bottom, top = axes.get_ylim()
    if plot.log_y:
        axes.ticklabel_format(axis="y", useOffset=False)
    else:
        bottom = min(0, bottom)
    axes.set_ylim(bottom, top + HEADROOM * (top - bottom))


def _name_ticks(axes: Any, names: Mapping[float, str]) -> None:
    """Draws all ticks. If names would overlap, only every second, third, ... has its name."""
    letter = 0.6 * FONT_SIZE
    axes.set_xticks(list(names), list(names.values()))
    axes.minorticks_off()
    axes.figure.draw_without_rendering()  # the axes have no size before
    scale = 72.0 / axes.figure.dpi
    spans = [(axes.transData.transform((x, 1.0))[0] * scale, (len(name) + 1) * letter) for x, name in sorted(names.items())]

    def overlap(every: int) -> bool:
        return any(after - before < (width + next_width) / 2 for (before, width), (after, next_width) in pairwise(spans[::every]))

    every = next(every for every in range(1, len(spans) + 1) if not overlap(every))
    axes.set_xticks(sorted(names), [name if at % every == 0 else "" for at, (_, name) in enumerate(sorted(names.items()))])


def _name_ends(axes: Any, lines: Sequence[Line], *, wrap: int) -> None:
    """Writes each line's label behind its end, and moves it up if it would overlap the one below."""
    scale = 72.0 / axes.figure.dpi
    above = float("-inf")
    ends = [(next((point for point in reversed(line.points) if math.isfinite(point[1])), None), line) for line in lines]
    for (x, y), line in sorted(((end, line) for end, line in ends if end), key=lambda each: each[0][1]):
        label = textwrap.fill(printable(line.label), wrap)
        half = LINE_HEIGHT * LABEL_SIZE * (1 + label.count("\n")) / 2
        at = axes.transData.transform((x, y))[1] * scale
        middle = max(at, above + half)
        above = middle + half
        axes.annotate(label, (x, y), **BESIDE, xytext=(6, middle - at), color=PLACEHOLDER[line.colour])


def _mark(axes: Any, x: float, label: str) -> None:
    axes.axvline(x, color=PLACEHOLDER["mark"], linewidth=1.1, linestyle=(0, (4, 3)))
    late = x > sum(axes.get_xlim()) / 2
    axes.annotate(
        printable(label),
        (x, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(-4 if late else 4, 0),
        textcoords="offset points",
        ha="right" if late else "left",
        va="top",
        fontsize=LABEL_SIZE,
        color=PLACEHOLDER["mark"],
    )


def _draw_bars(axes: Any, plot: Bars, width: float) -> None:
    end = max((begin + length for bar in plot.bars for begin, length, _, _ in bar.segments), default=1.0)
    room = 0.6 * width * 72 / (0.6 * LABEL_SIZE)  # letters that fit into the width of the axes
    for row, bar in enumerate(plot.bars):
        for begin, length, colour, words in bar.segments:
            axes.barh(row, length, left=begin, height=0.6, color=PLACEHOLDER[colour], linewidth=0)
            if words and len(words) < room * length / end:
                axes.text(
                    begin + length / 2, row, printable(words), ha="center", va="center", fontsize=LABEL_SIZE, color=PLACEHOLDER["paper"]
                )
        tail = max((begin + length for begin, length, _, _ in bar.segments), default=0.0)
        axes.annotate(printable(bar.note), (tail, row), **BESIDE, xytext=(5, 0))
    axes.set_yticks(range(len(plot.bars)), [textwrap.fill(printable(bar.label), LABEL_WRAP[width]) for bar in plot.bars])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(printable(plot.x_label))
