"""A training process that survives. It goes from a world that has lost a member to the world of the next attempt.

1. A collective fails. The process abandons the world: it closes its connections at once, so that peers that wait for it fail as well. The
   model and the optimizer are those after the last step, because an update needs no peer.
2. It sends the event `waiting`, and its supervisor counts it as ended with 20 (PeerLost). So the attempt ends as it does without survivors,
   and the operator needs no other rules: the same report, the same class, the same budget.
3. It waits for an order of its supervisor with the variables of the next world. After `RESCUE_AFTER` seconds it saves its state,
   because the next world may take long.
4. It joins the new world, with a new address, fence and store. All ranks exchange the steps of their states (`SurvivorSteps`). The newest
   counts. Ranks without it get it from the first survivor that has it, so nothing is read from storage. Rank 0 registers the attempt first.
5. It goes on at that step as a new process does: it agrees, seeks the reader, lays out the buckets of DDP, and trains.

Whatever else happens ends the process, after a rescue, and a fork of the warm parent takes its place: no order within `WAIT_SECONDS`, a
stop request, another shape of the world, another error, a task that does not opt in, or `MOST_SURVIVALS` worlds in one process.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from muster_contract.codes import ExitCode
from muster_contract.environment import NAMES
from muster_contract.errors import ConnectionLost
from muster_contract.events import Step, Survived, Waiting
from muster_trainer.host.events import Events
from muster_trainer.host.orders import Orders
from muster_trainer.host.stopping import StopRequest

RESCUE_AFTER = 2.0
"""Seconds. The next world is there sooner, unless a replica must be created again."""
WAIT_SECONDS = 60.0
MOST_SURVIVALS = 64
"""A process that survives still has some threads and descriptors of each world: see `muster_trainer.pytorch.compat.leave_groups`."""


@dataclass(frozen=True)
class SurvivorSteps:
    """For each rank of a new world, the step of the state that it has from the previous world. None for a new process."""

    steps: tuple[int | None, ...]

    @property
    def newest(self) -> int | None:
        """The step that the world continues from; None without survivors."""
        return max((step for step in self.steps if step is not None), default=None)

    @property
    def survivors(self) -> int:
        return sum(step is not None for step in self.steps)

    @property
    def source(self) -> int:
        """The rank that sends the newest state."""
        return self.steps.index(self.newest)

    @property
    def receivers(self) -> list[int]:
        """The ranks that need it."""
        return [rank for rank, step in enumerate(self.steps) if step != self.newest]


class Survivor:
    """The wait of this process between two worlds."""

    def __init__(self, events: Events, stop: StopRequest, *, attempt: int, disconnect: Callable[[], None]) -> None:
        self._events, self._stop, self._disconnect = events, stop, disconnect
        self._attempt, self._broken = attempt, -1
        self._survivals = 0
        self._orders = Orders.from_environment(os.environ, self._leave)

    @property
    def may_wait(self) -> bool:
        return self._orders.is_open and not self._stop.requested and self._survivals < MOST_SURVIVALS

    def wait(self, *, done: int, last: Step | None, message: str, rescue: Callable[[], None]) -> bool:
        """Waits for the next world, and sets its variables in this process. Returns False if there is no such world. Calls `rescue` if the
        wait is long or in vain."""
        if last is not None and self._events.rank:
            self._events.emit(last)  # rank 0 may have ended before it could report this step
        self._events.error(ExitCode.PEER_LOST, message)
        self._events.emit(Waiting(step=done))
        variables = self._next_world(RESCUE_AFTER)
        if variables is None:
            rescue()
            variables = self._next_world(WAIT_SECONDS)
        if variables is None:
            return False
        os.environ.update(variables)
        self._attempt = int(os.environ[NAMES["attempt"]])
        self._survivals += 1
        return True

    @contextmanager
    def joining(self, rescue: Callable[[], None]) -> Iterator[Callable[[], None]]:
        """Returns a function to call again and again during the wait for the other ranks of a world. If the wait is long, it calls `rescue`
        once. It raises ConnectionLost if the world is broken, or if the process was asked to stop."""
        due = time.monotonic() + RESCUE_AFTER

        def meanwhile() -> None:
            nonlocal due
            if self._stop.requested or self._broken == self._attempt:
                raise ConnectionLost(f"the world of attempt {self._attempt} is not waited for any longer")
            if time.monotonic() > due:
                due = math.inf
                rescue()

        self._stop.on_request = self._disconnect
        try:
            yield meanwhile
        finally:
            self._stop.on_request = lambda: None

    def _leave(self, attempt: int) -> None:
        self._broken = attempt
        if attempt == self._attempt:
            self._disconnect()

    def survived(self, step: int) -> None:
        """Sends that this process is in the new world."""
        self._events.emit(Survived(step=step, pid=os.getpid()))

    def _next_world(self, seconds: float) -> dict[str, str] | None:
        return self._orders.next_world(seconds=seconds, until=lambda: self._stop.requested)
