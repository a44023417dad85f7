"""Caches of objects, for any kind. They may be stale: a decision that depends on the absence of an object needs a live list.

Objects come from watches, from lists and from the answers to writes. The latest resourceVersion wins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from cachetools import FIFOCache

T = TypeVar("T")

MOST_DELETED = 20_000


class Deletions:
    """The uids of recently deleted objects, so that a list that began before a deletion does not bring the object back."""

    def __init__(self) -> None:
        self._uids: FIFOCache[str, None] = FIFOCache(MOST_DELETED)

    def __contains__(self, uid: str) -> bool:
        return uid in self._uids

    def add(self, uid: str) -> None:
        self._uids[uid] = None


class ObjectStore(Generic[T]):
    """The newest version of each object, in groups by a key, such as the pods of one owner. Objects in `deletions` are not taken."""

    def __init__(self, deletions: Deletions) -> None:
        self._deletions = deletions
        self._groups: dict[str, dict[str, tuple[int, T]]] = {}
        self._keys: dict[str, str] = {}

    @property
    def keys(self) -> dict[str, str]:
        """The key of each object, by its uid."""
        return dict(self._keys)

    def key(self, uid: str) -> str | None:
        return self._keys.get(uid)

    def get(self, uid: str) -> T | None:
        entry = self._groups.get(self._keys.get(uid, ""), {}).get(uid)
        return entry[1] if entry is not None else None

    def group(self, key: str) -> list[T]:
        return [obj for _, obj in self._groups.get(key, {}).values()]

    def count(self, key: str) -> int:
        return len(self._groups.get(key, ()))

    def put(self, key: str, uid: str, *, version: int, obj: T) -> bool:
        """Takes the object, unless it is deleted or a newer version is here. Moves it if it was in another group. Returns whether it was
        taken."""
        cached = self._groups.get(self._keys.get(uid, ""), {}).get(uid)
        if uid in self._deletions or (cached is not None and cached[0] > version):
            return False
        if self._keys.get(uid, key) != key:
            self._remove(uid)
        self._groups.setdefault(key, {})[uid] = version, obj
        self._keys[uid] = key
        return True

    def drop(self, uid: str) -> None:
        """Removes the object, which was deleted."""
        self._deletions.add(uid)
        self._remove(uid)

    def _remove(self, uid: str) -> None:
        key = self._keys.pop(uid, "")
        group = self._groups.get(key, {})
        group.pop(uid, None)
        if not group:
            self._groups.pop(key, None)


class Echoes:
    """Waits for the watches to deliver what this process has written. If they do not, a watch has stalled. `clock` returns monotonic
    seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._expected: dict[str, float] = {}
        self._received: dict[str, int] = {}

    def __len__(self) -> int:
        """Of how many objects a version is remembered."""
        return len(self._received)

    def expect(self, uid: str, version: int) -> None:
        """This version was written. A watch may have delivered it before the write was answered."""
        if self._received.get(uid, 0) < version:
            self._expected.setdefault(uid, self._clock())

    def received(self, uid: str, version: int) -> None:
        """A watch has delivered the object at this version."""
        self._received[uid] = version
        self._expected.pop(uid, None)

    def forget(self, uid: str) -> None:
        """Drops the state of an object that is gone."""
        self._expected.pop(uid, None)
        self._received.pop(uid, None)

    def silence(self) -> float:
        """Seconds since the oldest write that no watch has delivered yet."""
        return self._clock() - min(self._expected.values(), default=self._clock())
