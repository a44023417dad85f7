"""Turns between namespaces, so that the work of one tenant does not block another."""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

URGENT_TURNS = 3
"""After so many urgent keys in a row, one other key gets a turn, if there is one."""


def namespace_of(key: str) -> str:
    return key.partition("/")[0]


@dataclass
class _Waiting:
    """The keys of one namespace, as heaps by turn. An entry that differs from the one in `Line` is out of date."""

    urgent: list[tuple[float, str]] = field(default_factory=list)
    others: list[tuple[float, str]] = field(default_factory=list)


class Line:
    """The keys that are due, in the order in which workers take them. Pure: the time is an argument.

    Urgent keys go first. Next are keys whose turn has come, and last those whose turn is in the future. Among equal keys, the namespaces
    take turns. Within a namespace, the key with the lowest turn goes first. Workers have at most `share` keys of a namespace at once.
    """

    def __init__(self, share: int) -> None:
        self._share = share
        self._entries: dict[str, tuple[float, bool]] = {}
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()
        """The namespaces that have keys. The first one has the next turn."""
        self._taken: Counter[str] = Counter()
        self._urgent: set[str] = set()
        """The urgent keys. Without any, no namespace is searched for one."""
        self._urgent_in_a_row = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def put(self, key: str, turn: float, *, urgent: bool) -> None:
        """Adds the key, or moves it forward. Never moves it back."""
        if key in self._entries:
            old_turn, old_urgent = self._entries[key]
            turn, urgent = min(turn, old_turn), urgent or old_urgent
        self._entries[key] = turn, urgent
        if urgent:
            self._urgent.add(key)
        waiting = self._waiting.setdefault(namespace_of(key), _Waiting())
        heapq.heappush(waiting.urgent if urgent else waiting.others, (turn, key))

    def take(self, now: float) -> str | None:
        """The next key. `done` must follow. None if no key may be taken now."""
        for urgent, until in self._tiers(now):
            for namespace in self._open():
                entry = self._first(namespace, urgent=urgent)
                if entry is not None and entry[0] <= until:
                    self._urgent_in_a_row = self._urgent_in_a_row + 1 if urgent else 0
                    return self._remove(namespace, entry[1])
        return None

    def done(self, key: str) -> None:
        """The worker has finished the key."""
        namespace = namespace_of(key)
        self._taken[namespace] -= 1
        if not self._taken[namespace]:
            del self._taken[namespace]

    def _tiers(self, now: float) -> list[tuple[bool, float]]:
        """Pairs (urgent, latest turn), in the order in which keys are searched."""
        others = [(False, now), (False, float("inf"))]
        if not self._urgent:
            return others
        first = (True, float("inf"))
        return [*others, first] if self._urgent_in_a_row >= URGENT_TURNS else [first, *others]

    def _open(self) -> Iterator[str]:
        return (namespace for namespace in self._waiting if self._taken[namespace] < self._share)

    def _first(self, namespace: str, *, urgent: bool) -> tuple[float, str] | None:
        heap = self._waiting[namespace].urgent if urgent else self._waiting[namespace].others
        while heap:
            turn, key = heap[0]
            if self._entries.get(key) == (turn, urgent):
                return turn, key
            heapq.heappop(heap)
        return None

    def _remove(self, namespace: str, key: str) -> str:
        del self._entries[key]
        self._urgent.discard(key)
        self._taken[namespace] += 1
        if self._first(namespace, urgent=True) or self._first(namespace, urgent=False):
            self._waiting.move_to_end(namespace)
        else:
            del self._waiting[namespace]
        return key


class Slots:
    """Allows `count` concurrent requests. Owners, such as namespaces or users, take turns when there are more. An owner holds at most
    `share` slots at once, so that one is free soon for the others. None allows all of them."""

    def __init__(self, count: int, *, share: int | None = None) -> None:
        self._free = count
        self._share = share or count
        self._held: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def of(self, owner: str) -> AsyncIterator[None]:
        """Holds one slot during the context."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        self._give()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the slot came at the same moment
                self._release(owner)
            raise
        try:
            yield
        finally:
            self._release(owner)

    def waiting(self, owner: str) -> int:
        """The number of requests of the owner that wait for a slot."""
        return len(self._waiting.get(owner, ()))

    def _release(self, owner: str) -> None:
        self._free += 1
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
        self._give()

    def _give(self) -> None:
        """Gives a free slot to the next owner that may have one."""
        for owner in list(self._waiting) if self._free else ():
            if self._held[owner] >= self._share:
                continue
            turns = self._waiting.pop(owner)
            while turns and turns[0].done():  # it was cancelled
                turns.popleft()
            if not turns:
                continue
            self._free -= 1
            self._held[owner] += 1
            turns.popleft().set_result(None)
            if turns:
                self._waiting[owner] = turns
            return
