"""The plots of a report, as SVG that takes its colours from the page's style sheet, so that one file serves light, dark and paper.

matplotlib draws with placeholder colours, one for each role that a colour plays; they become CSS variables in the SVG's text.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from muster.report.history import History, ReportError
from muster.report.timeline import Kind, Span

INK, GRID = "#010101", "#020202"
LINE, FAINT, MARK = "#030303", "#040404", "#050505"
KIND_COLOURS = {kind: f"#0101{number:02x}" for number, kind in enumerate(Kind, start=16)}
VARIABLES = {INK: "currentColor", GRID: "var(--grid)", LINE: "var(--line)", FAINT: "var(--faint)", MARK: "var(--mark)"} | {
    colour: f"var(--{kind.value})" for kind, colour in KIND_COLOURS.items()
}
WIDTH = 9.0
HEADROOM = 1.15
"""Room above a curve for the labels of marks."""
SMOOTHING = 25
"""Steps that the throughput is averaged over."""


def loss_plot(history: History) -> str:
    """Loss over steps; what was lost and redone stays visible, and each restart is marked where training went on."""
    curve = list(history.curve.values())

    def draw(axes: Any) -> None:
        for attempt in sorted({step.attempt for step in history.redone}):
            lost = [step for step in history.redone if step.attempt == attempt]
            axes.plot([s.step for s in lost], [s.loss for s in lost], color=FAINT, linewidth=3.2, solid_capstyle="butt")
        axes.plot([s.step for s in curve], [s.loss for s in curve], color=LINE, linewidth=1.3)
        for start in history.starts[1:]:
            _mark(axes, start.step, f" attempt {start.attempt} goes on from step {start.step}")
        if all(s.loss > 0 for s in curve if math.isfinite(s.loss)):
            axes.set_yscale("log")
            axes.set_ylim(top=axes.get_ylim()[1] * HEADROOM**2)
        axes.set_xlabel("step")
        axes.set_ylabel("loss")

    return _svg(draw, height=3.4)


def throughput_plot(history: History, begin: float) -> str:
    """Samples per second over the seconds since the run began, averaged over some steps."""

    def draw(axes: Any) -> None:
        attempts = {number: [step for step in history.steps if step.attempt == number] for number in history.attempts}
        for steps in attempts.values():
            groups = [steps[at : at + SMOOTHING] for at in range(0, len(steps), SMOOTHING)]
            rates = [(g[-1].time - begin, sum(s.samples for s in g) / max(sum(s.seconds for s in g), 1e-9)) for g in groups]
            axes.plot([time for time, _ in rates], [rate for _, rate in rates], color=LINE, linewidth=1.5)
        axes.set_xlim(left=0)
        axes.set_ylim(0, axes.get_ylim()[1] * HEADROOM)
        for number, steps in attempts.items():
            _mark(axes, steps[0].time - steps[0].seconds - begin, f" attempt {number}")
        axes.set_xlabel("seconds since the run began")
        axes.set_ylabel("samples/s")

    return _svg(draw, height=2.6)


def timeline_plot(spans: Sequence[Span], begin: float) -> str:
    """A row for each attempt, with what every moment of it was spent on."""
    attempts = sorted({span.attempt for span in spans})

    def draw(axes: Any) -> None:
        for span in spans:
            axes.barh(span.attempt, span.seconds, left=span.begin - begin, height=0.6, color=KIND_COLOURS[span.kind], linewidth=0)
        axes.set_yticks(attempts, [f"attempt {attempt}" for attempt in attempts])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("seconds since the run began")

    return _svg(draw, height=0.9 + 0.45 * len(attempts))


def _mark(axes: Any, x: float, label: str) -> None:
    axes.axvline(x, color=MARK, linewidth=1.1, linestyle=(0, (4, 3)))
    late = x > sum(axes.get_xlim()) / 2
    axes.annotate(
        f"{label} " if late else label,
        (x, 1.0),
        xycoords=("data", "axes fraction"),
        ha="right" if late else "left",
        va="top",
        fontsize=8.5,
        color=MARK,
    )


def _svg(draw: Callable[[Any], None], *, height: float) -> str:
    try:
        import matplotlib
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ReportError("plots need matplotlib: pip install 'muster-training[report]'") from error
    style: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": "muster",
        "font.family": "sans-serif",
        "font.size": 9.5,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": GRID,
        "xtick.color": INK,
        "ytick.color": INK,
        "axes.grid": True,
        "grid.color": GRID,
        "grid.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        FigureCanvasSVG(figure)
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        draw(axes)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r'\1 width="100%"', text, count=1)
    return re.sub("|".join(VARIABLES), lambda match: VARIABLES[match.group()], text)
