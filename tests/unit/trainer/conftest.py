"""Both frameworks in one process, as only these tests have them, and fixtures that several modules use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

# torch's compiler loads an LLVM of its own with its first optimizer, and the process aborts where TensorFlow's is there already.
import torch._dynamo
import torch.distributed

from muster_trainer.supervisor.listener import Listener


@pytest.fixture
def world_of_one() -> Iterator[None]:
    """A process group with only this process."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def listener() -> Iterator[Listener]:
    """The events listener of a supervisor whose first process has rank 4."""
    listener = Listener(rank=4)
    yield listener
    listener.close()
