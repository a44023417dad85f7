"""The times that the operator chooses, not the user. A cluster uses the defaults; a local run uses shorter ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from types import MappingProxyType

from muster.api.constants import CONTROLLER
from muster.api.status import FailureClass
from muster.kubernetes.backoff import Delays

_DELAYS: Mapping[FailureClass, Delays] = MappingProxyType(
    {
        # a drain removes the pods of a world one by one; further preemptions before any step are a loop
        FailureClass.PREEMPTION: Delays(1, 60, free=2),
        # most infrastructure failures do not last, and a whole recovery takes little more than a second
        FailureClass.INFRASTRUCTURE: Delays(1, 60, free=1),
        FailureClass.APPLICATION: Delays(10, 300),
    }
)


@dataclass(frozen=True)
class Policy:
    """Times in seconds. `pace` multiplies all back-offs (0: never wait)."""

    settle_seconds: float = 60
    """How long after an attempt's end later reports may correct its class: survivors die in seconds, but DisruptionTarget comes late."""
    progress_seconds: float = 30
    """The shortest time between two writes of a status in which only figures have changed."""
    acknowledge_seconds: float = 15
    """How long a replica that the next attempt keeps may take to end its old processes. Then Muster replaces the replica."""
    look_seconds: float = 5
    """The time between two live observations, if a replica must be gone and no event has reported that."""
    evaluator_seconds: float = 30
    """How long after the failure of an evaluator Muster creates it again."""
    arrival_seconds: float = 30
    """How long after its creation Muster expects a pending replica that has a node, even if `shrinkAfterSeconds` is shorter."""
    lasting_seconds: float = 600
    """An attempt of a program that reports no steps counts as progress if its processes ran this long."""
    repeats_without_steps: bool = False
    """Whether the same error twice in a row also ends the job of a program that reports no steps, unless its attempt lasted. On a laptop
    the user waits for the message. In a cluster the cause may be a service that comes back."""
    node_seconds: float = 3600
    """How long Muster avoids a node after an attempt has failed on it for the second time, or once because of a device."""
    device_seconds: float = 10
    """How long a device must be unhealthy to end the attempt of the replica that has it."""
    stopped_seconds: float = 2
    """How long a world may stand still once a process of it is reported as stopped, even if `recovery.hang` allows more. A process is
    reported as stopped after 3 s, and its peers may have ended their step meanwhile."""
    silence_seconds: float = 8
    """How long a supervisor may go without a report while others report. It is more than three of the longest intervals of reports."""
    shortest_silence_seconds: float = 3
    """The lower limit for `silence_seconds`. It applies if reports come regularly, as they do in a cluster that is not too busy."""
    silence_gaps: float = 4
    """Between these two limits, the time is this many times the longest recent gap between two reports of one supervisor.
    The other limits for silence and standstill become shorter in proportion."""
    acknowledgement_silence_seconds: float = 5
    """How long a supervisor may go without a report after the attempt is over. A live supervisor acknowledges the next attempt in this
    time."""
    reconnection_seconds: float = 3
    """How long a supervisor may go without a connection after its last one has closed. It is more than the longest interval of reports."""
    standstill_seconds: float = 5
    """How long, at least, the peers of a silent replica stand still before Muster concludes that its loss stopped them."""
    shortest_standstill_seconds: float = 2.5
    """The lower limit for `standstill_seconds`. It applies if reports come regularly."""
    standstill_steps: float = 3
    """The standstill of the peers in steps of the job, if that is longer."""
    standstill_saves: float = 3
    """How many times the duration of a save is added to the standstill while the peers save."""
    unplaced_seconds: float = 20
    """How long a pod may wait for a node although it excludes nodes that it could go to again."""
    split_seconds: float = 5
    """How long a gang that starts may have only a part of its nodes, counted from the last pod that got a node."""
    split_reused_seconds: float = 60
    """The same limit if pods of the attempt before are among the pods with a node, because a lost node is often replaced soon."""
    overdue_seconds: float = 10
    """How long after its grace period a replica that still exists proves that its node does not answer."""
    stuck_seconds: float = 60
    """How long after its grace period Muster removes a replica by force, if fences keep its processes from doing harm."""
    stuck_unfenced_seconds: float = 300
    """The same limit for a program of the user, which no fence stops."""
    notice_seconds: float = 900
    """How long before the time that a node announces for its end the job leaves it."""
    replacement_seconds: float = 20
    """How long a job whose nodes go waits for a replacement of each worker that leaves. Then it moves those for which there is one."""
    return_seconds: float = 60
    """How long workers that go back to their preferred capacity class wait for replacements of all, after the last one got a node."""
    stalled_seconds: float = 900
    """How long a job that should run may wait for its pods, its queue or a recovery until it counts as stalled. By default this is before
    `startupDeadlineSeconds` ends it."""
    delays: Mapping[FailureClass, Delays] = field(default_factory=lambda: _DELAYS)
    pace: float = 1.0
    controller: str = CONTROLLER
    """Only jobs whose `spec.managedBy` is this name are managed."""

    @property
    def notice_time(self) -> timedelta:
        return timedelta(seconds=self.notice_seconds)


DEFAULT_POLICY = Policy()


@dataclass(frozen=True)
class Tolerance:
    """How long Muster waits for a sign of life, in seconds. It waits less while reports come regularly."""

    usual: float
    longest: float
    """The limit if reports do not come regularly."""


@dataclass(frozen=True)
class Patience:
    """How long Muster waits for a report or a step in one pass before it takes a replica for lost."""

    silence: Tolerance
    """Without a report, while others report."""
    silence_after_the_end: Tolerance
    """Without a report after the attempt is over."""
    reconnection: Tolerance
    """Without a connection after the last one has closed."""
    standstill: Tolerance
    """Without a step of the peers of a silent replica, at least."""


def patience(policy: Policy, gap_seconds: float | None) -> Patience:
    """The limits, if `gap_seconds` is the longest recent time between two reports of one replica. None if that is unknown."""
    fraction = _fraction(policy, gap_seconds)

    def limit(seconds: float, *, shortest: float = 0.0) -> Tolerance:
        return Tolerance(max(shortest, seconds * fraction), seconds)

    return Patience(
        silence=limit(policy.silence_seconds),
        silence_after_the_end=limit(policy.acknowledgement_silence_seconds),
        reconnection=limit(policy.reconnection_seconds),
        standstill=limit(policy.standstill_seconds, shortest=policy.shortest_standstill_seconds),
    )


def _fraction(policy: Policy, gap_seconds: float | None) -> float:
    """The fraction of each limit that is enough, because supervisors report regularly."""
    usual = inf if gap_seconds is None else policy.silence_gaps * gap_seconds
    return min(1.0, max(policy.shortest_silence_seconds, usual) / policy.silence_seconds)
