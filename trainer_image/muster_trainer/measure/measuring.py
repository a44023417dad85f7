"""Measures durations in the same way for all figures of the trainer.

It warms up clocks and devices first. The result is the median with its confidence interval, because a single outlier would change a mean.
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
    """The default of `synchronise` and `prepare`."""


def alone(count: int) -> int:
    """The default of `agree`, for a process that measures by itself."""
    return count


@dataclass(frozen=True)
class Timing:
    """The median of `count` durations in seconds, and its 95 % confidence interval.

    The ends of the interval are two of the sorted durations, chosen by the sign test. The test holds for any distribution, because each
    duration is below the true median with probability 1/2. For fewer than six durations, the ends are the shortest and the longest.
    """

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, durations: Sequence[float]) -> Timing:
        """The timing of one or more durations in seconds."""
        ordered = sorted(durations)
        cut = _beyond(len(ordered))
        return cls(median(ordered), ordered[cut], ordered[-1 - cut], len(ordered))

    def fields(self) -> dict[str, Any]:
        """The fields of an event, rounded to four digits."""
        return {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in asdict(self).items()}


def _beyond(count: int) -> int:
    """The number of the `count` sorted durations that are outside the interval, at each of its ends."""
    tail = 1 / 2**count  # the probability that none of them is below the true median
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
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Calls `call` repeatedly for about `seconds`, and returns the duration of each call in seconds.

    There are `least` to `most` calls, after `warm_up` calls (at least 1) that are not measured. `synchronise` waits until the device is
    done. `prepare` runs before each call, outside the measured time. If several ranks measure together, `agree` must return the
    number of calls of one rank on all of them.
    """

    def once() -> float:
        prepare()
        synchronise()
        began = clock()
        call()
        synchronise()
        return clock() - began

    for _ in range(warm_up):
        began = clock()
        once()
    each = clock() - began
    count = agree(int(min(max(seconds / max(each, 1e-9), least), most)))
    return [once() for _ in range(count)]


def timed(call: Callable[[], object], **how: Any) -> Timing:
    """The timing of a call. `how` are the arguments of `durations`."""
    return Timing.of(durations(call, **how))
