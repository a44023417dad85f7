"""The memory for the snapshots of a replica's processes. It outlives the processes, and ends with the supervisor."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace

from muster_contract.trainer_spec import MemorySpec
from muster_trainer.supervisor.environment import Launch

MIB = 1 << 20


class Memories:
    """One memory for each process of the replica, by the position of the process in the replica."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._descriptors: list[int] = []
        self._size = 0

    def with_memory(self, launches: list[Launch], spec: MemorySpec | None) -> list[Launch]:
        """The launches with their memory. It is the memory of the previous attempt if its size is the same."""
        if spec is None:
            return launches
        size = spec.size_mib * MIB // len(launches)
        if (size, len(launches)) != (self._size, len(self._descriptors)):
            self.close()
            try:
                self._descriptors = [_memory(size) for _ in launches]
            except OSError as error:
                self._say(f"there is no memory for snapshots: {error}")
                return launches
            self._size = size
        return [replace(launch, memory=descriptor) for launch, descriptor in zip(launches, self._descriptors, strict=True)]

    def close(self) -> None:
        """Frees the memory."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []


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
