"""What `muster plan` shows: the worlds that it looked at, as a table and a page. Pure."""

from __future__ import annotations

from muster.measure.advice import MEBI, Advice
from muster.measure.cost import Costs
from muster.report.page import Finding, Page, Section, Story, Table
from muster.report.plots import Bar, Bars

MILLI = 1e3

METHOD = (
    "A step was measured in one process, and in as many side by side as the worlds above have, each "
    "with several numbers of samples; an all-reduce was measured between two processes. A world's step is the computing of its largest "
    "share, and an all-reduce in a ring: 2 (P - 1) / P of the gradients' bytes over each link. Computing and adding up are taken to come "
    "one after the other. Reading data files, saving and evaluating are not in it."
)


def worlds_table(advice: Advice) -> Table:
    """The worlds, smallest first; speed-up and efficiency are against one process."""
    alone = advice.candidates[0].world.seconds
    rows: list[list[str | int | float | None]] = []
    for one in advice.candidates:
        world = one.world
        gain = alone / world.seconds
        figures = (world.seconds * MILLI, world.computing * MILLI, world.communication * MILLI)
        efficiency, memory = 100 * gain / world.processes, world.memory / MEBI
        note = "advised" if one is advice.chosen else "" if one.fits else "too little memory"
        rows.append(
            [world.processes, one.strategy.value, world.share, *figures, world.samples / world.seconds, gain, efficiency, memory, note]
        )
    head = [
        "processes",
        "strategy",
        "samples each",
        "step ms",
        "computing ms",
        "adding up ms",
        "samples/s",
        "speed-up",
        "efficiency %",
        "MiB each",
        "",
    ]
    return Table(head, rows)


def page(advice: Advice, costs: Costs, *, title: str, subtitle: str) -> Page:
    """The whole page."""
    bars = [
        Bar(
            f"{one.world.processes} process{'es' if one.world.processes > 1 else ''}",
            [
                (0.0, one.world.computing * MILLI, "series-1", "computing"),
                (one.world.computing * MILLI, one.world.communication * MILLI, "series-2", "adding up"),
            ],
            f"{one.world.seconds * MILLI:.3g} ms",
        )
        for one in advice.candidates
    ]
    return Page(
        title=title,
        subtitle=subtitle,
        findings=[Finding(advice.sentence, "good" if advice.chosen else "bad")],
        figures={"gradients": f"{costs.gradient_bytes / MEBI:.3g} MiB", "state": f"{costs.state_bytes / MEBI:.3g} MiB"},
        sections=[
            Section("Why", [Story(advice.reasons)]),
            Section("A step, by the number of processes", [_bars(bars), worlds_table(advice)]),
            Section("How it was measured", [METHOD]),
        ],
    )


def _bars(bars: list[Bar]) -> Bars:
    return Bars("milliseconds", bars, {"series-1": "computing", "series-2": "adding up gradients"})
