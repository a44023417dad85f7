"""How often may a pod report? A rate for each pod, and one for all of them together.

Both are token buckets. When the shared one runs low, a pod that comes sooner than it was asked to is refused before a pod that keeps to
its interval, so that a pod which floods the server cannot crowd out the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

REPORTS_PER_POD = 50.0  # a second; a supervisor leaves 0.02 s and a round trip between two reports
BURST_PER_POD = 100.0
REPORTS_PER_SECOND = 400.0  # of all pods together, over kept connections: about a third of one core
BURST = 8000.0  # when a large world breaks, all its supervisors report at once
RESERVED = 0.5  # this share of the shared bucket is for pods that keep to their interval
_BYTES = 32 * 1024  # each so many of a report cost as much as one more report
EARLY = 0.75  # a pod keeps to its interval if it waits for this share of it


@dataclass
class Bucket:
    """`rate` tokens a second, at most `size` at once. `left` and `at` (seconds) change with each use."""

    rate: float
    size: float
    left: float
    at: float

    def fill(self, now: float) -> float:
        """Adds what has accrued since the last use; the tokens that are there now."""
        self.left = min(self.size, self.left + (now - self.at) * self.rate)
        self.at = now
        return self.left


@dataclass
class _Pod:
    bucket: Bucket
    due: float = 0.0


class Pace:
    """The rates of all pods. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float], *, per_second: float = REPORTS_PER_SECOND, burst: float = BURST) -> None:
        self._clock = clock
        self._shared = Bucket(per_second, burst, burst, clock())
        self._pods: dict[str, _Pod] = {}

    def retry_seconds(self, uid: str, *, size: int, pods: int) -> int:
        """0 if the pod may send a report of `size` bytes now. Otherwise the whole seconds that it should wait; `pods` is how many pods
        report."""
        now = self._clock()
        pod = self._pods.setdefault(uid, _Pod(Bucket(REPORTS_PER_POD, BURST_PER_POD, BURST_PER_POD, now)))
        cost = 1 + size // _BYTES
        if pod.bucket.fill(now) < cost:
            return 1
        reserved = self._shared.size * RESERVED if now < pod.due else 0.0
        if self._shared.fill(now) < cost + reserved:
            return max(1, ceil(pods / self._shared.rate))
        pod.bucket.left -= cost
        self._shared.left -= cost
        return 0

    def expect(self, uid: str, seconds: float) -> None:
        """The pod was asked to report again after so long."""
        if uid in self._pods:
            self._pods[uid].due = self._clock() + EARLY * seconds

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self._pods.pop(uid, None)
