"""How long training goes on while its saves fail, and when it tries again.

Ending an attempt loses the steps since the last commit. Training on loses them only if a process is lost as well. So a storage that is away
for some minutes must not end it. But without a limit, a full disk would stay unseen, and ever more steps would depend on the processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
_WAITED = 9
"""A pause is at least so many times as long as training has waited for the save that failed: a storage that does not answer may block
each try for minutes."""


class Outage:
    """The saves that have failed since one succeeded, as this process knows them. It outlasts a world that this process survives."""

    LIMIT = 600.0
    """Seconds. In this time a storage server restarts or fails over, and somebody who has seen the notice can free space. It is shorter
    than the default of `recovery.hang.saveSeconds`, so that the last save of a job can be tried for as long."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.failures = 0
        self._began = self._due = 0.0
        self.pause = 0.0

    @property
    def is_on(self) -> bool:
        return self.failures > 0

    @property
    def is_due(self) -> bool:
        """Whether the next save should be tried now."""
        return self._clock() >= self._due

    @property
    def seconds(self) -> float:
        """For how long saves have failed."""
        return self._clock() - self._began if self.is_on else 0.0

    def add(self, *, waited: float) -> None:
        """Counts a save that has failed, and for which training has waited so many seconds."""
        now = self._clock()
        if not self.is_on:
            self._began = now - waited
        self.pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, 2 * self.pause))
        self.failures += 1
        self._due = min(now + max(self.pause, _WAITED * waited), self._began + self.LIMIT)

    def end(self) -> None:
        """The storage can be written again."""
        self.failures, self.pause = 0, 0.0
