"""The seconds between the saves of `spec.checkpoint.everySeconds`. They are fixed, or chosen by the cost of saves and failures."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Literal, assert_never

from muster_contract.trainer_spec import CheckpointSpec

Policy = Literal["Auto", "Continuous"]

FIRST_SECONDS = 10.0
"""The interval until the first save of an attempt, which measures the cost of a save."""
LONGEST_SECONDS = 3600.0
EXPECTED_SECONDS = 6 * 3600.0
"""The assumed time between failures of a new job."""


def chosen_seconds(policy: Policy, *, seconds: float, blocked: float, age: float, failures: int) -> float:
    """The seconds from the beginning of one save to the beginning of the next.

    Auto is the interval with the least expected loss: sqrt(2 x cost of a save x mean time between failures), after Young (1974) and
    Daly (2006). The mean includes one failure after `EXPECTED_SECONDS` besides those of the job, so that it is defined for a new job.

    Args:
        policy: `spec.checkpoint.everySeconds`.
        seconds: the duration of the newest save.
        blocked: the part of `seconds` in which training waited. It is the cost of a save.
        age: seconds since the job was created.
        failures: the number of restarts so far.
    """
    match policy:
        case "Continuous":
            return 0.0
        case "Auto":
            between = (EXPECTED_SECONDS + max(0.0, age)) / (1 + failures)
            return min(LONGEST_SECONDS, max(seconds, math.sqrt(2 * blocked * between)))
        case _:
            assert_never(policy)


class SaveInterval:
    """The interval of one attempt. `seconds` is the time from the beginning of one save to the beginning of the next. It is None if saves
    do not depend on time."""

    def __init__(self, spec: CheckpointSpec, *, job_created: datetime, failures: int) -> None:
        self.policy, self._job_created, self._failures = spec.interval, job_created, failures
        self.seconds: float | None = spec.every_seconds
        if spec.interval is not None:
            self.seconds = 0.0 if spec.interval == "Continuous" else FIRST_SECONDS

    def measure(self, *, seconds: float, blocked: float) -> float | None:
        """Chooses the interval again after a save. Returns it, or None if the interval is fixed."""
        if self.policy is None:
            return None
        age = (datetime.now(UTC) - self._job_created).total_seconds()
        self.seconds = chosen_seconds(self.policy, seconds=seconds, blocked=blocked, age=age, failures=self._failures)
        return self.seconds
