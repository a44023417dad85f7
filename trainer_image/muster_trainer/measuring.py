"""How long something takes: the one place of the trainer that measures, so that all its figures are taken alike.

Clocks and devices are warm before anything counts, and what is told is the median with its interval: a mean would follow the one time
in which the machine did something else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

CONFIDENCE = 0.95


def nothing() -> None:
    """For a device that is done when the call returns, and calls that need no preparation."""


def alone(count: int) -> int:
    """For a process that measures by itself: as often as it thinks right."""
    return count


@dataclass(frozen=True)
class Timing:
    """The median of `count` durations, in seconds, and the interval in which the true median lies with 95 % confidence.

    The interval is made of two of the durations, by their order (a sign test turned round: each duration is below the true median as a
    coin falls), which holds for any distribution. Fewer than six durations cannot give it: then it is the shortest and the longest.
    """

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, durations: Sequence[float]) -> Timing:
        """Of at least one duration in seconds."""
        ordered = sorted(durations)
        cut = _beyond(len(ordered))
        return cls(median(ordered), ordered[cut], ordered[-1 - cut], len(ordered))

    def fields(self) -> dict[str, Any]:
        """As an event tells it."""
        return asdict(self)


def _beyond(count: int) -> int:
    """How many of `count` ordered durations lie beyond the interval at each of its ends."""
    tail = 1 / 2**count  # how likely none of them is below the true median
    beyond = 0
    while (tail := tail + math.comb(count, beyond + 1) / 2**count) <= (1 - CONFIDENCE) / 2:
        beyond += 1
    return beyond


def durations(
    call: Callable[[], object],
    *,
    synchronise: Callable[[], object] = nothing,
    prepare: Callable[[], object] = nothing,
    agree: Callable[[int], int] = alone,
    warm_up: int = 2,
    least: int = 7,
    most: int = 200,
    seconds: float = 0.5,
) -> list[float]:
    """The seconds that each of `least` to `most` calls takes, as many as fit into about `seconds`,
    after `warm_up` (at least 1) that do not count.

    `synchronise` waits until the device has done what the call asked of it. `prepare` comes before each call and does not count. Where
    several ranks call something together, `agree` gives all of them the number of calls that one of them thinks right.
    """

    def once() -> float:
        prepare()
        synchronise()
        began = time.perf_counter()
        call()
        synchronise()
        return time.perf_counter() - began

    for _ in range(warm_up):
        began = time.perf_counter()
        once()
    each = time.perf_counter() - began
    count = agree(int(min(max(seconds / max(each, 1e-9), least), most)))
    return [once() for _ in range(count)]


def timed(call: Callable[[], object], **how: Any) -> Timing:
    """How long a call takes; `how` is what `durations` takes."""
    return Timing.of(durations(call, **how))
