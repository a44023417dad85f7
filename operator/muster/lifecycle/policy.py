"""The times that are the operator's to choose, not the user's. A cluster takes the defaults; a laptop shorter ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from muster.api.constants import CONTROLLER
from muster.api.status import FailureClass

_MOST_DOUBLINGS = 30


@dataclass(frozen=True)
class Delays:
    """Seconds before the next attempt: none for the `free` first that fail in a row without progress, then `first`, doubled by each
    further one, at most `longest`."""

    first: float
    longest: float
    free: int = 0

    def after(self, failures: int) -> float:
        """Before the attempt that follows so many failures in a row, from 1."""
        held = failures - self.free
        return min(self.first * 2.0 ** min(held - 1, _MOST_DOUBLINGS), self.longest) if held > 0 else 0.0


_DELAYS: Mapping[FailureClass, Delays] = MappingProxyType(
    {
        # a drain takes the pods of a world one by one; whatever ends attempts again and again before they do a step is a loop
        FailureClass.PREEMPTION: Delays(1, 60, free=2),
        # what broke once is seldom broken still, and a whole recovery takes little more than a second
        FailureClass.INFRASTRUCTURE: Delays(1, 60, free=1),
        FailureClass.APPLICATION: Delays(10, 300),
    }
)


@dataclass(frozen=True)
class Policy:
    """All in seconds, but `pace`, which all back-offs are multiplied by (0: never wait), and `controller`."""

    settle_seconds: float = 60
    """How long after an attempt's end later news may still correct its class: survivors die in seconds, DisruptionTarget comes late."""
    progress_seconds: float = 30
    """Progress alone changes the status at most so often."""
    acknowledge_seconds: float = 15
    """How long a replica that is kept may take to end the processes of the attempt before; then it is replaced."""
    look_seconds: float = 5
    """How long to wait between live looks for something to be gone, where no event says so."""
    evaluator_seconds: float = 30
    """How long an evaluator that broke lies before it is made again."""
    arrival_seconds: float = 30
    """How long, from its making, a replica that a node has is on its way and not lost, where `shrinkAfterSeconds` allows less."""
    lasting_seconds: float = 600
    """An attempt of a program that reports no steps has gained something if its processes ran so long, as far as anybody can know."""
    node_seconds: float = 3600
    """How long a node is avoided after an attempt has died on it for the second time."""
    stopped_seconds: float = 60
    """How long a world may stand still in which a process is stopped, where `recovery.hang` allows more: such a one does nothing."""
    silent_seconds: float = 10
    """How long after its grace period a replica that does not go shows that its node does not answer."""
    stuck_seconds: float = 60
    """How long after its grace period a replica that does not go is removed by force, where fences keep its processes from doing harm."""
    stuck_unfenced_seconds: float = 300
    """The same for programs of the user's own, which no fence holds."""
    delays: Mapping[FailureClass, Delays] = field(default_factory=lambda: _DELAYS)
    pace: float = 1.0
    controller: str = CONTROLLER
    """Only jobs whose `spec.managedBy` is this name are managed."""


DEFAULT_POLICY = Policy()
