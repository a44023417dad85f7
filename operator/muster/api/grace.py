"""The grace period of a replica: the user's value, or more if measured saves take longer."""

from __future__ import annotations

from math import ceil

from muster.api.spec import MAX_GRACE_SECONDS, TrainingJobSpec
from muster.api.status import TrainingJobStatus

SECONDS_AFTER_GRACE = 15
"""Seconds from the end of the grace period until the pod is killed. The termination message is written and side-cars end in this time."""
_SPARE_SECONDS = 5
"""Seconds to receive the signal, to end the current step, and to exit."""


def needed(status: TrainingJobStatus) -> int:
    """Seconds that a stop with a save takes at most, estimated from the newest save. 0 if no save was measured.

    The estimate has the time of two saves, because a save that is under way when the stop comes ends before the last one begins.
    """
    measured = status.checkpoint.measured_seconds if status.checkpoint else None
    return 0 if measured is None else ceil(2 * measured + _SPARE_SECONDS)


def seconds(spec: TrainingJobSpec, status: TrainingJobStatus) -> int:
    """The grace period, in seconds, of processes that start from now on."""
    return min(MAX_GRACE_SECONDS, max(spec.checkpoint.grace_period_seconds, needed(status)))


def pod_seconds(spec: TrainingJobSpec, status: TrainingJobStatus | None = None) -> int:
    """The grace period of the pod around them, in seconds. Without a status, the shortest one that the job may have."""
    return seconds(spec, status or TrainingJobStatus()) + SECONDS_AFTER_GRACE
