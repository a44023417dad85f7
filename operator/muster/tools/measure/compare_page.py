"""The output of `muster compare`: variants of a job side by side, as a table and a page. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from muster.tools.measure.figures import RunFigures
from muster.tools.report.page import Cell, Finding, Page, Section, Source, Table
from muster.tools.report.plots import SERIES, Bar, Bars, Line, Lines
from muster.tools.report.run import METRICS

MEBI = 2**20
COLOURS = {
    "computing": "series-1",
    "waiting for others": "series-2",
    "waiting for samples": "series-6",
    "saving, evaluating": "suspended",
}
METHOD = (
    "The variants ran one after another, and in turns if there are several rounds. Figures are means over the rounds. Speed-up is the "
    "training time of the first variant that succeeded, divided by that of this variant. Efficiency is the speed-up divided by the number "
    "of processes, relative to that first variant. A step is the median over all steps but the first, ± half the width of its 95 % "
    "intervals in all rounds. Communication is the share of the steps in which a process waited for data from others. If a strategy "
    "communicates during its passes, that share cannot be measured, and is part of computing. Memory is the peak of the largest process. "
    "Device-hours are those that the status of the run counts: its replicas from their start to their end."
)


@dataclass(frozen=True)
class Outcome:
    """A variant that ran: its figures, or None and the last lines of its output if it failed."""

    name: str
    strategy: str
    figures: RunFigures | None
    last_output: str = ""


def comparison_table(outcomes: Sequence[Outcome], *, prices: Sequence[tuple[str, float]] = ()) -> Table:
    """A row for each variant, in the order of the file. It has the cost of a run at each of the `prices` of a device-hour, which may have
    names."""
    first = next((one.figures for one in outcomes if one.figures), None)
    metrics = list(dict.fromkeys(name for one in outcomes if one.figures for name in one.figures.metrics if name != "loss"))
    head = ["variant", "processes", "training s", "speed-up", "efficiency %", "step ms", "± ms", "samples/s"]
    head += ["communication %", "input stall %", "memory MiB", "device-h a run"]
    head += [
        *(f"cost a run, {name}" if name else "cost a run" for name, _ in prices),
        "final loss",
        *(METRICS.get(name, name) for name in metrics),
    ]
    return Table(head, [_row(one, first, metrics, prices=prices) for one in outcomes])


def _row(one: Outcome, first: RunFigures | None, metrics: Sequence[str], *, prices: Sequence[tuple[str, float]]) -> list[Cell]:
    figures = one.figures
    if figures is None or first is None:
        return [one.name, "failed"]
    low, high = figures.interval
    gain = first.training_seconds / figures.training_seconds
    return [
        one.name,
        figures.processes,
        figures.training_seconds,
        gain,
        100 * gain * first.processes / figures.processes,
        1e3 * figures.step_seconds,
        1e3 * (high - low) / 2,
        figures.samples_per_second,
        None if figures.communication is None else 100 * figures.communication,
        100 * figures.input_stall,
        figures.peak_bytes and figures.peak_bytes / MEBI,
        figures.device_hours,
        *(None if figures.device_hours is None else figures.device_hours * price for _, price in prices),
        figures.loss,
        *(figures.metrics.get(name) for name in metrics),
    ]


def comparison_page(outcomes: Sequence[Outcome], *, title: str, subtitle: str, prices: Sequence[tuple[str, float]] = ()) -> Page:
    """The page: training time by variant and by number of processes, all figures, and the output of variants that failed."""
    done = [(one, one.figures) for one in outcomes if one.figures]
    failed = [one for one in outcomes if one.figures is None]
    sections = [Section("All figures", [comparison_table(outcomes, prices=prices), METHOD])]
    if done:
        sections.insert(0, Section("Training time", [_times(done), *_scaling(done)]))
    sections += [Section(f"Why {one.name} failed", [Source(one.last_output)]) for one in failed]
    return Page(title=title, subtitle=subtitle, findings=findings(outcomes), sections=sections)


def findings(outcomes: Sequence[Outcome]) -> list[Finding]:
    """The results of the comparison, in one or two sentences."""
    done = [(one.name, one.figures) for one in outcomes if one.figures]
    failed = [one.name for one in outcomes if one.figures is None]
    results = []
    if done:
        results.append(_fastest(done))
    if failed:
        results.append(Finding(f"{', '.join(failed)} failed; their last output is below.", "bad"))
    return results


def _fastest(done: Sequence[tuple[str, RunFigures]]) -> Finding:
    """Which variant takes the shortest time for its samples, by the median step. The time of the training as a whole also has pauses of the
    machine, so it does not decide. Variants whose intervals overlap cannot be told apart."""
    base, first = done[0]
    if len(done) == 1:
        return Finding(f"{base} trained for {first.training_seconds:.1f} s.")
    if not all(figures.step_seconds for _, figures in done):
        return Finding("The programs do not report the time of their steps, so the variants cannot be compared.")
    has_samples = all(figures.step_samples for _, figures in done)

    def cost(figures: RunFigures, step_seconds: float) -> float:
        return step_seconds / (figures.step_samples if has_samples else 1.0)

    name, best = min(done, key=lambda one: cost(one[1], one[1].step_seconds))
    slowest = cost(best, best.interval[1])
    alike = [other for other, figures in done if other != name and cost(figures, figures.interval[0]) <= slowest]
    if alike:
        return Finding(
            f"Too short or too noisy to tell whether {name} or {' or '.join(alike)} trains fastest: the intervals of their steps overlap. "
            "Train for more steps, with nothing else on the machine."
        )
    gain = cost(first, first.step_seconds) / cost(best, best.step_seconds)
    against = f", {gain:.2f} times as fast as {base}" if name != base else f"; no other variant is faster than {base}, the first"
    return Finding(f"{name} trains fastest: {1e3 * best.step_seconds:.3g} ms a step{against}.", "good")


def _times(done: Sequence[tuple[Outcome, RunFigures]]) -> Bars:
    """A bar for each variant, with the use of its time from the first step on."""
    bars = []
    for one, figures in done:
        parts = figures.parts()
        begins = accumulate(parts.values(), initial=0.0)
        labels = {"computing": "computing and communicating"} if figures.communication is None else {}
        segments = [
            (begin, length, COLOURS[name], labels.get(name, name)) for begin, (name, length) in zip(begins, parts.items(), strict=False)
        ]
        bars.append(Bar(one.name, segments, f"{figures.training_seconds:.1f} s"))
    return Bars("seconds of training, from the first step to the last", bars, {colour: name for name, colour in COLOURS.items()})


def _scaling(done: Sequence[tuple[Outcome, RunFigures]]) -> list[Lines]:
    """Training time by number of processes: a line for each strategy that ran in several worlds, and one for perfect scaling."""
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
