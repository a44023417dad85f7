"""The memory for snapshots of processes without a supervisor. The test holds it in its place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from muster_trainer.snapshots.arena import HEADER_BYTES, Arena


class Replicas:
    """The memories of replicas with one process each, as their supervisors hold them."""

    def __init__(self, size: int, *, kib: int = 65536) -> None:
        self.bytes = kib << 10
        self.descriptors = [self._new() for _ in range(size)]

    def _new(self) -> int:
        descriptor = os.memfd_create("snapshots")
        os.ftruncate(descriptor, self.bytes)
        return descriptor

    def lose(self, rank: int) -> None:
        """The replica is replaced by a new one."""
        os.close(self.descriptors[rank])
        self.descriptors[rank] = self._new()

    def damage(self, rank: int, part: str) -> None:
        """Flips a bit of each snapshot of its own."""
        arena = Arena(self.descriptors[rank])
        for each in arena.filled_slots():
            if each.slot < 2:
                inside = 100 if part == "header" else HEADER_BYTES + each.header.size // 2
                at = arena.start(each.slot) + inside
                byte = os.pread(self.descriptors[rank], 1, at)[0] ^ 1
                os.pwrite(self.descriptors[rank], bytes([byte]), at)

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


@contextmanager
def replicas(size: int, **options: int) -> Iterator[Replicas]:
    made = Replicas(size, **options)
    try:
        yield made
    finally:
        made.close()
