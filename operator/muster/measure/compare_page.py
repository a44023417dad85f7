"""What `muster compare` shows: variants of a job side by side, as a table and a page. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from muster.measure.figures import RunFigures
from muster.report.page import Cell, Finding, Page, Section, Source, Table
from muster.report.plots import SERIES, Bar, Bars, Line, Lines
from muster.report.run import METRICS

MEBI = 2**20
COLOURS = {
    "computing": "series-1",
    "waiting for others": "series-2",
    "waiting for samples": "series-6",
    "saving, evaluating": "suspended",
}
METHOD = (
    "The variants ran one after another. Speed-up is the training time of the first variant that succeeded over that of this one, and "
    "efficiency the speed-up by the processes it was paid for with. A step is the median over all steps but the first, ± half the width of "
    "its 95 % interval. Communication is the share of the steps in which a process waited for what others sent; where a strategy exchanges "
    "all through its passes, it cannot be told, and stands with the computing. Memory is the peak of the largest process."
)


@dataclass(frozen=True)
class Outcome:
    """A variant that ran: its figures, or None and its last words."""

    name: str
    strategy: str
    figures: RunFigures | None
    last_words: str = ""


def comparison_table(outcomes: Sequence[Outcome]) -> Table:
    """A row for each variant, in their order."""
    first = next((one.figures for one in outcomes if one.figures), None)
    metrics = list(dict.fromkeys(name for one in outcomes if one.figures for name in one.figures.metrics if name != "loss"))
    head = ["variant", "processes", "training s", "speed-up", "efficiency %", "step ms", "± ms", "samples/s"]
    head += ["communication %", "input stall %", "memory MiB", "final loss", *(METRICS.get(name, name) for name in metrics)]
    return Table(head, [_row(one, first, metrics) for one in outcomes])


def _row(one: Outcome, first: RunFigures | None, metrics: Sequence[str]) -> list[Cell]:
    found = one.figures
    if found is None or first is None:
        return [one.name, "failed"]
    low, high = found.interval
    gain = first.training_seconds / found.training_seconds
    return [
        one.name,
        found.processes,
        found.training_seconds,
        gain,
        100 * gain * first.processes / found.processes,
        1e3 * found.step_seconds,
        1e3 * (high - low) / 2,
        found.samples_per_second,
        None if found.communication is None else 100 * found.communication,
        100 * found.input_stall,
        found.peak_bytes and found.peak_bytes / MEBI,
        found.loss,
        *(found.metrics.get(name) for name in metrics),
    ]


def comparison_page(outcomes: Sequence[Outcome], *, title: str, subtitle: str) -> Page:
    """The whole page: training time by variant and by number of processes, all figures, and the last words of what failed."""
    done = [(one, one.figures) for one in outcomes if one.figures]
    failed = [one for one in outcomes if one.figures is None]
    sections = [Section("All figures", [comparison_table(outcomes), METHOD])]
    if done:
        sections.insert(0, Section("Training time", [_times(done), *_scaling(done)]))
    sections += [Section(f"Why {one.name} failed", [Source(one.last_words)]) for one in failed]
    return Page(title=title, subtitle=subtitle, findings=findings(outcomes), sections=sections)


def findings(outcomes: Sequence[Outcome]) -> list[Finding]:
    """What the comparison says, in a sentence or two."""
    done = [(one.name, one.figures) for one in outcomes if one.figures]
    failed = [one.name for one in outcomes if one.figures is None]
    found = []
    if done:
        name, best = min(done, key=lambda one: one[1].training_seconds)
        base, first = done[0]
        gain = first.training_seconds / best.training_seconds
        against = f", {gain:.2f} times as fast as {base}" if name != base else f"; no other variant is faster than {base}, the first"
        found.append(Finding(f"{name} trains fastest: {best.training_seconds:.1f} s{against}.", "good"))
    if failed:
        found.append(Finding(f"{', '.join(failed)} failed; the last words are below.", "bad"))
    return found


def _times(done: Sequence[tuple[Outcome, RunFigures]]) -> Bars:
    """A bar for each variant, with what its time went into from the first step on."""
    bars = []
    for one, figures in done:
        parts = figures.parts()
        begins = accumulate(parts.values(), initial=0.0)
        said = {"computing": "computing and communicating"} if figures.communication is None else {}
        segments = [
            (begin, length, COLOURS[name], said.get(name, name)) for begin, (name, length) in zip(begins, parts.items(), strict=False)
        ]
        bars.append(Bar(one.name, segments, f"{figures.training_seconds:.1f} s"))
    return Bars("seconds of training, from the first step to the last", bars, {colour: name for name, colour in COLOURS.items()})


def _scaling(done: Sequence[tuple[Outcome, RunFigures]]) -> list[Lines]:
    """Training time by processes, a line for each strategy that ran in several worlds, and what perfect scaling would give."""
    strategies: dict[str, dict[int, float]] = {}
    for one, figures in done:
        strategies.setdefault(one.strategy, {}).setdefault(figures.processes, figures.training_seconds)
    several = {name: sorted(points.items()) for name, points in strategies.items() if len(points) > 1}
    if not several:
        return []
    sizes = sorted({size for points in several.values() for size, _ in points})
    size, seconds = min(next(iter(several.values())))
    lines = [Line(points, name, SERIES[at % len(SERIES)], dots=True) for at, (name, points) in enumerate(several.items())]
    ideal = Line([(each, seconds * size / each) for each in sizes], "perfect scaling", "suspended", width=1.0)
    return [Lines("processes", "seconds of training", [*lines, ideal], x_ticks={each: str(each) for each in sizes})]
