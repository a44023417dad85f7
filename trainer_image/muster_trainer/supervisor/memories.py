"""The memory in which the processes of a replica keep snapshots. It outlives them, and ends with the supervisor."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace

from muster_contract.trainer_spec import MemorySpec
from muster_trainer.supervisor.environment import Launch

MIB = 1 << 20


class Memories:
    """One descriptor for each process of the replica, by its place in the replica."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._descriptors: list[int] = []
        self._size = 0

    def given(self, launches: list[Launch], spec: MemorySpec | None) -> list[Launch]:
        """The launches with their memory, which is that of the attempt before if its size is the same."""
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
    """Memory without a name, or a file without a name where the system has no such memory. Pages that nobody writes take none."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("muster-snapshots", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
