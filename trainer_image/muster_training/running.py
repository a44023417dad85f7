"""Programs that are written as a function: a process that has lost a peer calls it again in the next world."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from muster_contract.text import text_of
from muster_training.session import current

Result = TypeVar("Result")


def run(train: Callable[[], Result]) -> Result:
    """Calls `train`, and returns its result. If a peer of this process is lost, calls it again, in the world of the next attempt.

    So the process keeps its imports, and what it has made outside `train`, such as data sets. `train` joins the process group, makes the
    model, and calls `register`, which restores the last step that is finished: from the memory of the ranks that are left, if the steps
    have a `total`, and otherwise from a checkpoint. It should not depend on what an earlier call has changed.

    Only a `script` with PyTorch is called again, in collectives that do not run on a GPU. Other programs, and those outside Muster, are
    called once. Raises what `train` raises, and PeerLost if there is no next world.
    """
    survival = current().survival
    survival.go_on()
    while True:
        try:
            survival.meet()
            return train()
        except Exception as error:
            if not survival.keep(error):
                raise
            message = text_of(error)
        survival.await_world(message)
