"""Rate limits as token buckets: one bucket, or one for each address of a peer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cachetools import LRUCache

MOST_ADDRESSES = 1000


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
