"""How long does a replica get to save when it is asked to stop? What the user allows, and more where saves were seen to take longer."""

from __future__ import annotations

from math import ceil

from muster.api.spec import MAX_GRACE_SECONDS, TrainingJobSpec
from muster.api.status import TrainingJobStatus

_SPARE_SECONDS = 5
"""To hear of the stop, to end a step that is under way, and to end."""


def needed(status: TrainingJobStatus) -> int:
    """Seconds that a save on request takes at most, by the newest save; 0 where none was measured.

    Twice as long as that one took: a save that is in flight when the stop comes is finished before the last one begins.
    """
    measured = status.checkpoint.measured_seconds if status.checkpoint else None
    return 0 if measured is None else ceil(2 * measured + _SPARE_SECONDS)


def seconds(spec: TrainingJobSpec, status: TrainingJobStatus) -> int:
    """Seconds that processes started from now on get to save."""
    return min(MAX_GRACE_SECONDS, max(spec.checkpoint.grace_period_seconds, needed(status)))
