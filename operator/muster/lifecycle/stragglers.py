"""Is one rank slower than the others? In a synchronous world all steps take equally long, so what a rank works by itself is compared.

Each rank tells medians over its last steps. A rank is slow beside the median of the others, where that costs the world a share of each
step worth speaking of. It stops being slow only well below that, lest the condition comes and goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from muster.api.reports import ReportedPace
from muster.api.status import ConditionType, Reason, TrainingJobStatus
from muster.lifecycle import conditions
from muster.lifecycle.situation import Situation

_NAMED = 8


@dataclass(frozen=True)
class _Bounds:
    """`times` what the others work, and that much more by a `share` of the step."""

    times: float
    share: float


_SLOW = _Bounds(times=1.5, share=0.1)
_STILL_SLOW = _Bounds(times=1.25, share=0.05)


def compared(case: Situation, status: TrainingJobStatus) -> TrainingJobStatus:
    """The status with the condition Straggling. It stays as it is until ranks of this attempt have told enough to compare."""
    told = [(view.label, pace) for view, report in case.reports(status.attempt) for pace in report.ranks if pace.own_seconds is not None]
    known = status.condition(ConditionType.STRAGGLING)
    holds = known is not None and known.status == "True"
    if len(told) < 2 or len(told) < (status.world.size if status.world else 0):
        return status
    slow = _slow(told, _STILL_SLOW if holds else _SLOW)
    if known is None and not slow:
        return status
    if holds and [name for name, *_ in slow] == _names(known.message if known else ""):
        return status  # figures change all the time, and each change would be a write
    if not slow:
        return conditions.put(case, status, ConditionType.STRAGGLING, holds=False, reason=Reason.EVEN)
    message = "; ".join(f"{name} works {own:.3g} s in each step, the others {others:.3g} s and wait" for name, own, others in slow[:_NAMED])
    return conditions.put(case, status, ConditionType.STRAGGLING, holds=True, reason=Reason.SLOW_RANK, message=message)


def _slow(told: list[tuple[str, ReportedPace]], bounds: _Bounds) -> list[tuple[str, float, float]]:
    """Name, own seconds in a step, and those of the others (median), of each slow rank."""
    found = []
    for label, pace in told:
        own = pace.own_seconds or 0.0
        others = median(other.own_seconds or 0.0 for _, other in told if other is not pace)
        if own > others * bounds.times and own - others > bounds.share * (pace.seconds or own):
            found.append((f"rank {pace.rank} ({label})", own, others))
    return found


def _names(message: str) -> list[str]:
    return [part.partition(" works ")[0] for part in message.split("; ")]
