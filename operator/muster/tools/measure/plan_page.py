"""The output of `muster plan`: the worlds that it compares, as a table and a page. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from muster.tools.measure.advice import MEBI, Advice
from muster.tools.measure.cost import Costs
from muster.tools.report.page import Finding, Page, Section, Story, Table
from muster.tools.report.plots import Bar, Bars

MILLI = 1e3
HOUR = 3600.0
MILLION = 10**6

METHOD = (
    "Steps were measured with several numbers of samples, in one process and in as many processes side by side as the worlds above "
    "have. An all-reduce was measured between two processes. The step of a world is the computing time of its largest share plus "
    "an all-reduce in a ring, which sends 2 (P - 1) / P of the gradients' bytes over each link. Computing and all-reduce run one "
    "after the other. Reading data files, saving and evaluating are not included."
)


def worlds_table(advice: Advice, *, prices: Sequence[tuple[str, float]] = (), epoch: int = MILLION) -> Table:
    """The worlds, smallest first. Speed-up and efficiency are relative to one process. The last columns are for an epoch of so many
    samples: the device-hours, and the cost at each of the `prices` of a device-hour, which may have names."""
    single = advice.candidates[0].world.seconds
    rows: list[list[str | int | float | None]] = []
    for one in advice.candidates:
        world = one.world
        gain = single / world.seconds
        figures = (world.seconds * MILLI, world.computing * MILLI, world.communication * MILLI)
        efficiency, memory = 100 * gain / world.processes, world.memory / MEBI
        note = "advised" if one is advice.chosen else "" if one.fits else "too little memory"
        hours = world.processes * world.seconds * epoch / world.samples / HOUR
        spent = [hours, *(hours * price for _, price in prices)]
        rows.append(
            [world.processes, one.strategy, world.share, *figures, world.samples / world.seconds, gain, efficiency, memory, *spent, note]
        )
    head = [
        "processes",
        "strategy",
        "samples each",
        "step ms",
        "computing ms",
        "all-reduce ms",
        "samples/s",
        "speed-up",
        "efficiency %",
        "MiB each",
        "device-h an epoch",
        *(f"cost an epoch, {name}" if name else "cost an epoch" for name, _ in prices),
        "",
    ]
    return Table(head, rows)


def page(
    advice: Advice, costs: Costs, *, title: str, subtitle: str, prices: Sequence[tuple[str, float]] = (), epoch: int = MILLION
) -> Page:
    """The whole page."""
    bars = [
        Bar(
            f"{one.world.processes} process{'es' if one.world.processes > 1 else ''}",
            [
                (0.0, one.world.computing * MILLI, "series-1", "computing"),
                (one.world.computing * MILLI, one.world.communication * MILLI, "series-2", "all-reduce"),
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
            Section("A step, by the number of processes", [_bars(bars), worlds_table(advice, prices=prices, epoch=epoch)]),
            Section("How it was measured", [METHOD]),
        ],
    )


def _bars(bars: list[Bar]) -> Bars:
    return Bars("milliseconds", bars, {"series-1": "computing", "series-2": "all-reduce of the gradients"})
