"""Rate limits for reports: one for each pod, and one for all pods together.

Both are token buckets. When the shared bucket runs low, a pod that reports earlier than its interval allows is refused before a pod that
keeps to its interval. So a pod that floods the server cannot block the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

REPORTS_PER_POD = 50.0  # a second; a supervisor leaves 0.02 s and a round trip between two reports
BURST_PER_POD = 100.0
REPORTS_PER_SECOND = 400.0  # of all pods together, over open connections: about a third of one core
BURST = 8000.0  # when a large world breaks, all its supervisors report at once
RESERVED = 0.5  # this share of the shared bucket is for pods that keep to their interval
_BYTES = 32 * 1024  # this part of a report costs as much as one more report
EARLY = 0.75  # a pod keeps to its interval if it waits for this share of it


@dataclass
class Bucket:
    """`rate` tokens a second, at most `size` at once. `tokens` and `at` (seconds) change with each use."""

    rate: float
    size: float
    tokens: float
    at: float

    def fill(self, now: float) -> float:
        """Adds the tokens accrued since the last use. Returns the tokens in the bucket."""
        self.tokens = min(self.size, self.tokens + (now - self.at) * self.rate)
        self.at = now
        return self.tokens


@dataclass
class _Pod:
    bucket: Bucket
    due: float = 0.0


class RateLimits:
    """The rate limits of all pods. `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float], *, per_second: float = REPORTS_PER_SECOND, burst: float = BURST) -> None:
        self._clock = clock
        self._shared = Bucket(per_second, burst, burst, clock())
        self._pods: dict[str, _Pod] = {}

    def retry_seconds(self, uid: str, *, size: int, pods: int) -> int:
        """Returns 0 if the pod may send a report of `size` bytes now, or else the whole seconds that it must wait. `pods` is the number of
        reporting pods."""
        now = self._clock()
        pod = self._pods.setdefault(uid, _Pod(Bucket(REPORTS_PER_POD, BURST_PER_POD, BURST_PER_POD, now)))
        cost = 1 + size // _BYTES
        if pod.bucket.fill(now) < cost:
            return 1
        reserved = self._shared.size * RESERVED if now < pod.due else 0.0
        if self._shared.fill(now) < cost + reserved:
            return max(1, ceil(pods / self._shared.rate))
        pod.bucket.tokens -= cost
        self._shared.tokens -= cost
        return 0

    def expect(self, uid: str, seconds: float) -> None:
        """Notes that the pod was given this interval, in seconds, until its next report."""
        if uid in self._pods:
            self._pods[uid].due = self._clock() + EARLY * seconds

    def forget(self, uid: str) -> None:
        """Drops the state of a pod that is gone."""
        self._pods.pop(uid, None)
