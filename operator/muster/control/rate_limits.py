"""Rate limits: for reports, one for each pod and one for all pods together. For what needs a review of a token, one for each address.

All are token buckets. When the shared bucket of reports runs low, a pod that reports earlier than its interval allows is refused before a
pod that keeps to its interval. So a pod that floods the server cannot block the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from cachetools import LRUCache

REPORTS_PER_POD = 50.0  # a second; a supervisor leaves 0.02 s and a round trip between two reports
BURST_PER_POD = 100.0
REPORTS_PER_SECOND = 400.0  # of all pods together, over open connections: about a third of one core
BURST = 8000.0
BURST_FOR_EACH = 8.0  # reports of each pod; when a large world breaks, all its supervisors report three times in a row
RESERVED = 0.5  # this share of the shared bucket is for pods that keep to their interval
_BYTES = 16 * 1024  # this part of a report costs as much as one more report; a report of eight processes has 12 KiB
MOST_ADDRESSES = 1000
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


class AddressLimits:
    """A bucket for each address of a peer, so that no address can use up what others have. `clock` returns monotonic seconds."""

    def __init__(self, rate: float, size: float, clock: Callable[[], float]) -> None:
        self._rate, self._size = rate, size
        self._clock = clock
        self._buckets: LRUCache[str, Bucket] = LRUCache(MOST_ADDRESSES)

    def bucket(self, address: str) -> Bucket:
        """The bucket of the address, filled up to now. The addresses that were seen last are kept."""
        bucket = self._buckets.setdefault(address, Bucket(self._rate, self._size, self._size, self._clock()))
        bucket.fill(self._clock())
        return bucket


@dataclass
class _Pod:
    bucket: Bucket
    due: float = 0.0
    news: tuple[int, bool] = (-1, False)


class RateLimits:
    """The rate limits of all pods. `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float], *, per_second: float = REPORTS_PER_SECOND, burst: float = BURST) -> None:
        self._clock = clock
        self._burst = burst
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
        self._grow(max(self._burst, BURST_FOR_EACH * pods))
        reserved = self._shared.size * RESERVED if now < pod.due else 0.0
        if self._shared.fill(now) < cost + reserved:
            return max(1, ceil(pods / self._shared.rate))
        pod.bucket.tokens -= cost
        self._shared.tokens -= cost
        return 0

    def _grow(self, size: float) -> None:
        """Changes the size of the shared bucket. New pods bring their own tokens."""
        self._shared.fill(self._clock())
        self._shared.tokens += max(0.0, size - self._shared.size)
        self._shared.size = size

    def expect(self, uid: str, seconds: float, *, news: tuple[int, bool] | None = None) -> None:
        """Notes that the pod was given this interval, in seconds, until its next report. `news` is the attempt that the reply names, and
        whether the reply starts its processes. The supervisor acts on news, so its next report may come at once."""
        pod = self._pods.get(uid)
        if pod is None:
            return
        is_new = news is not None and news > pod.news  # each counts once, because a hostile pod may seem to need it again and again
        pod.due = self._clock() + (0.0 if is_new else EARLY * seconds)
        pod.news = max(pod.news, news or pod.news)

    def forget(self, uid: str) -> None:
        """Drops the state of a pod that is gone."""
        self._pods.pop(uid, None)
