"""The memory for the snapshots of a replica's processes. It outlives the processes, and ends with the supervisor."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace

from muster_contract.reports import SnapshotServer
from muster_contract.trainer_spec import MemorySpec
from muster_trainer.host.memory import most_for_snapshots
from muster_trainer.snapshots.arena import Arena
from muster_trainer.supervisor.environment import Launch
from muster_trainer.supervisor.snapshot_service import SnapshotService

MIB = 1 << 20


class Memories:
    """One memory for each process of the replica, by the position of the process in the replica."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._lock = threading.Lock()
        self._descriptors: list[int] = []
        self._size = 0
        self._service: SnapshotService | None = None

    def with_memory(self, launches: list[Launch], spec: MemorySpec | None) -> list[Launch]:
        """The launches with their memory. It is the memory of the previous attempt if its size is the same."""
        if spec is None or not self.reserve(len(launches), spec):
            return launches
        return [replace(launch, memory=descriptor) for launch, descriptor in zip(launches, self._descriptors, strict=True)]

    def reserve(self, processes: int, spec: MemorySpec) -> bool:
        """Reserves the memory of so many processes, unless they have it already. Returns whether they have it."""
        if spec.size_mib is None:
            size = self._size if processes == len(self._descriptors) else most_for_snapshots(os.environ) // processes
        else:
            size = spec.size_mib * MIB // processes
        if (size, processes) == (self._size, len(self._descriptors)):
            return True
        self.close()
        try:
            descriptors = [_memory(size) for _ in range(processes)]
        except OSError as error:
            self._say(f"there is no memory for snapshots: {error}")
            return False
        with self._lock:
            self._descriptors, self._size = descriptors, size
        return True

    def arena(self, position: int) -> Arena | None:
        """The memory of the process at a position; None if there is none. Any thread may call it."""
        with self._lock:
            return Arena(self._descriptors[position]) if position < len(self._descriptors) else None

    def serve(self, *, loopback: bool) -> SnapshotServer | None:
        """Gives the snapshots to spares, on the loopback interface only or on all. Returns where; None if nothing can listen."""
        if self._service is None:
            try:
                self._service = SnapshotService(self.arena, loopback=loopback)
            except OSError as error:
                self._say(f"spares cannot copy the snapshots of this replica: {error}")
                return None
        return self._service.address

    def close(self) -> None:
        """Frees the memory."""
        with self._lock:
            descriptors, self._descriptors = self._descriptors, []
        for descriptor in descriptors:
            os.close(descriptor)


def _memory(size: int) -> int:
    """A descriptor of anonymous memory, or of a file without a name on systems without memfd. Pages that were never written take no
    memory."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("muster-snapshots", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
