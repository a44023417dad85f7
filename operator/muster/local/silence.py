"""Counts for how long each supervisor of a run has sent no report. Pure.

In a cluster, a silent replica may only be cut off from the operator, so its peers must stand still as well. On one machine nothing can be
cut off: a silent supervisor is stopped or stuck. Its training may go on, but it would never be reported, and the job would never end. So
silence alone is enough here.
"""

from __future__ import annotations

from datetime import datetime

from muster.lifecycle.policy import DEFAULT_POLICY

SECONDS = DEFAULT_POLICY.silence_seconds
"""A supervisor without a report for this long is lost, as in a cluster."""
LONGEST_PAUSE = 0.5
"""If more time passes between two looks, `muster run` itself stood still, for example by Ctrl-Z. The rest of the pause proves nothing."""


class Silence:
    """For how long each supervisor has been silent, by the uid of its replica."""

    def __init__(self) -> None:
        self._silent: dict[str, tuple[datetime, float]] = {}

    def look(self, reported: dict[str, datetime], passed: float) -> set[str]:
        """The uids of the silent supervisors. `reported` has the time of the newest report of each supervisor that runs, and `passed` the
        seconds since the last look."""
        seconds = min(passed, LONGEST_PAUSE)
        before, self._silent = self._silent, {}
        for uid, time in reported.items():
            last, silent = before.get(uid, (None, 0.0))
            self._silent[uid] = (time, silent + seconds if time == last else 0.0)
        return {uid for uid, (_, silent) in self._silent.items() if silent >= SECONDS}
