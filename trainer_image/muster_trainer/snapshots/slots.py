"""Which slots of the memory have snapshots of this job, and which one the next snapshot may overwrite."""

from __future__ import annotations

from muster_trainer.snapshots.arena import HEADER_BYTES, PAGE, Arena, Header, Held
from muster_trainer.snapshots.choice import Generation, generation_of

_MIB = 1 << 20
_NONE: Generation = (-1, 0)
"""Older than any snapshot."""


class Slots:
    """The slots of an arena, for one attempt of a job. A snapshot with another `identity` does not count. The snapshot of the generation
    `protected` is never overwritten."""

    def __init__(self, arena: Arena, *, job: str, attempt: int, identity: str) -> None:
        self._arena = arena
        self._job, self._attempt, self._identity = job, attempt, identity
        self.protected: Generation | None = None

    def held(self) -> list[Held]:
        """The slots with snapshots of this job."""
        return [each for each in self._arena.held() if self._is_own(each.header)]

    def generation(self, slot: int) -> Generation:
        """That of the snapshot in a slot; of a slot without one, one that is older than any."""
        header = self._arena.header(slot)
        return generation_of(header) if header and self._is_own(header) else _NONE

    def free(self, stream: int = 0) -> int:
        """Of the two slots of a stream of snapshots, the one to overwrite. Stream 0 is that of this rank."""
        first, second = 2 * stream, 2 * stream + 1
        if self.generation(first) == self.protected:
            return second
        if self.generation(second) == self.protected:
            return first
        return min(first, second, key=self.generation)

    def _is_own(self, header: Header) -> bool:
        return header.job == self._job and header.attempt <= self._attempt and header.identity == self._identity


def too_small(size_mib: int, *, needed: int, slots: int, processes: int = 1) -> str:
    """The notice if a memory of `size_mib` MiB has no room for the slots of a replica: `slots` for each process, each of `needed` bytes."""
    mib = -(-processes * (slots * (needed + HEADER_BYTES + PAGE) + PAGE) // _MIB)
    return f"snapshots do not fit into checkpoint.memory.sizeMib: {size_mib}, so none are kept in memory; write {mib} at least"
