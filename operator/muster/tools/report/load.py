"""The plots of what the replicas of a run took of their machines, over time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from muster.tools.report.page import Section
from muster.tools.report.plots import SERIES, Line, Lines
from muster_contract.events import Load

MOST_LINES = len(SERIES)
"""The number of replicas with a line each. Of more replicas, a plot has the highest, the mean and the lowest value."""
BINS = 200
"""The number of points in time of a plot of many replicas."""
_GIB, _MB = 1 << 30, 1e6

_FIGURES: tuple[tuple[str, Callable[[Load], float | None]], ...] = (
    ("busy processors", lambda load: load.cpus),
    ("memory, GiB", lambda load: load.memory_bytes / _GIB),
    ("received, MB/s", lambda load: _in(load.received_bytes_per_second, _MB)),
    ("sent, MB/s", lambda load: _in(load.sent_bytes_per_second, _MB)),
    ("busy GPUs, %", lambda load: _in(load.gpu_share, 0.01)),
    ("memory of GPUs, GiB", lambda load: _in(load.gpu_memory_bytes, _GIB)),
)
"""The name of each figure with its unit."""

Points = list[tuple[float, float]]


def load_sections(loads: Sequence[Load], *, begin: float, most_attempts: int) -> Iterator[Section]:
    """A section with a plot of each figure that was measured, of the newest attempts. None without samples. `begin` is in Unix seconds."""
    attempts = sorted({load.attempt for load in loads})[-most_attempts:]
    plots = [plot for name, figure in _FIGURES if (plot := _plot(name, figure, loads, attempts, begin)) is not None]
    if plots:
        yield Section("Load of the machines", plots)


def _plot(name: str, figure: Callable[[Load], float | None], loads: Sequence[Load], attempts: Sequence[int], begin: float) -> Lines | None:
    curves: dict[str, dict[int, Points]] = {}
    """The points by replica and attempt."""
    for load in loads:
        value = figure(load)
        if value is not None and attempts and load.attempt >= attempts[0]:
            by_attempt = curves.setdefault(f"{load.role}-{load.index}", {})
            by_attempt.setdefault(load.attempt, []).append((load.time - begin, value))
    if not curves:
        return None
    lines = _each(curves) if len(curves) <= MOST_LINES else _summary(curves)
    return Lines("seconds since the run began", name, lines, height=200)


def _each(curves: dict[str, dict[int, Points]]) -> list[Line]:
    """The curve of each replica, with a gap between attempts."""
    return [
        Line(points, replica, SERIES[number])
        for number, replica in enumerate(sorted(curves, key=_place))
        for _, points in sorted(curves[replica].items())
    ]


def _summary(curves: dict[str, dict[int, Points]]) -> list[Line]:
    """The highest, the mean and the lowest value of the replicas, each of which counts with its mean in a span of time."""
    times = [at for by_attempt in curves.values() for points in by_attempt.values() for at, _ in points]
    first, width = min(times), (max(times) - min(times)) / BINS or 1.0
    bins: dict[int, list[float]] = {}
    for by_attempt in curves.values():
        points = sorted(point for each in by_attempt.values() for point in each)
        for number, group in groupby(points, key=lambda point: int((point[0] - first) / width)):
            values = [value for _, value in group]
            bins.setdefault(number, []).append(sum(values) / len(values))
    at = {number: first + (number + 0.5) * width for number in sorted(bins)}
    return [
        Line([(at[number], max(bins[number])) for number in at], f"highest of {len(curves)} replicas", SERIES[0]),
        Line([(at[number], sum(bins[number]) / len(bins[number])) for number in at], "mean", SERIES[1]),
        Line([(at[number], min(bins[number])) for number in at], "lowest", SERIES[2]),
    ]


def _place(replica: str) -> tuple[str, int]:
    role, _, index = replica.rpartition("-")
    return role, int(index)


def _in(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit
