"""Finds the slots with snapshots of this job, and the slot that the next snapshot may overwrite."""

from __future__ import annotations

from muster_trainer.snapshots.arena import HEADER_BYTES, PAGE, Arena, FilledSlot, Header
from muster_trainer.snapshots.choice import Generation, generation_of

_MIB = 1 << 20
_NONE: Generation = (-1, 0)
"""A generation that is older than any snapshot."""


class Slots:
    """The slots of an arena, for one attempt of a job. Snapshots with another `identity` are ignored. The snapshot of the generation
    `protected` is never overwritten."""

    def __init__(self, arena: Arena, *, job: str, attempt: int, identity: str) -> None:
        self._arena = arena
        self._job, self._attempt, self._identity = job, attempt, identity
        self.protected: Generation | None = None

    def filled_slots(self) -> list[FilledSlot]:
        """The slots with snapshots of this job."""
        return [each for each in self._arena.filled_slots() if self._is_own(each.header)]

    def generation(self, slot: int) -> Generation:
        """The generation of the snapshot in a slot. For a slot without a snapshot, it is older than any other."""
        header = self._arena.header(slot)
        return generation_of(header) if header and self._is_own(header) else _NONE

    @property
    def is_newest_unconfirmed(self) -> bool:
        """Whether this rank does not know that its own newest snapshot is complete on all ranks."""
        newest = max(self.generation(0), self.generation(1))
        return newest not in (_NONE, self.protected)

    def free(self, stream: int = 0) -> int:
        """The slot to overwrite, of the two slots for one rank's snapshots. `stream` 0 are the snapshots of this rank."""
        first, second = 2 * stream, 2 * stream + 1
        if self.generation(first) == self.protected:
            return second
        if self.generation(second) == self.protected:
            return first
        return min(first, second, key=self.generation)

    def _is_own(self, header: Header) -> bool:
        return header.job == self._job and header.attempt <= self._attempt and header.identity == self._identity


def too_small(size_mib: int | None, *, needed: int, slots: int, processes: int = 1) -> str:
    """The notice for a memory of `size_mib` MiB that is too small. Each process of the replica needs `slots` slots of `needed` bytes."""
    mib = -(-processes * (slots * (needed + HEADER_BYTES + PAGE) + PAGE) // _MIB)
    if size_mib is None:
        return (
            f"snapshots need {mib} MiB in each replica, and take at most half of its free memory, so none are kept in memory; raise "
            f"resources.limits.memory, write checkpoint.memory.sizeMib: {mib} to add this memory, or 0 to do without snapshots"
        )
    return f"snapshots do not fit into checkpoint.memory.sizeMib: {size_mib}, so none are kept in memory; write {mib} at least"
