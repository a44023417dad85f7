"""Figures of the operator in Prometheus' text format. Names of the queue's are client-go's, so that existing dashboards fit.

Source: Prometheus documentation, "Exposition formats". Written by hand: it is a page of code, and a client library would be a dependency.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

Labels = tuple[tuple[str, str], ...]

_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)


@dataclass
class Counter:
    """Grows only."""

    name: str
    help: str
    values: defaultdict[Labels, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, labels: Mapping[str, str], by: float = 1.0) -> None:
        """That much more with these labels."""
        self.values[tuple(sorted(labels.items()))] += by

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, self.help, "counter")
        for labels, value in sorted(self.values.items()) or ([((), 0.0)] if not self.values else []):
            yield _line(self.name, labels, value)


@dataclass
class Gauge:
    """Is read when somebody asks."""

    name: str
    help: str
    read: Callable[[], float | Mapping[Labels, float]]

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, self.help, "gauge")
        value = self.read()
        values = value if isinstance(value, Mapping) else {(): value}
        for labels, each in sorted(values.items()):
            yield _line(self.name, labels, each)


@dataclass
class Histogram:
    """Durations in seconds."""

    name: str
    help: str
    counts: list[int] = field(default_factory=lambda: [0] * (len(_BUCKETS) + 1))
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(_BUCKETS, seconds)] += 1
        self.total += seconds

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, self.help, "histogram")
        seen = 0
        for bound, count in zip((*map(str, _BUCKETS), "+Inf"), self.counts, strict=True):
            seen += count
            yield _line(f"{self.name}_bucket", (("le", bound),), seen)
        yield _line(f"{self.name}_sum", (), self.total)
        yield _line(f"{self.name}_count", (), seen)


Metric = Counter | Gauge | Histogram


def exposition(metrics: Iterable[Metric]) -> str:
    """All metrics as one page."""
    return "".join(f"{line}\n" for metric in metrics for line in metric.lines())


def _head(name: str, text: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"


def _line(name: str, labels: Labels, value: float) -> str:
    written = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
    return f"{name}{{{written}}} {_number(value)}" if written else f"{name} {_number(value)}"


def _number(value: float) -> str:
    """Every digit: a moment in Unix seconds has ten before the point, and a counter must not grow in steps."""
    return f"{value:.0f}" if float(value).is_integer() else repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
