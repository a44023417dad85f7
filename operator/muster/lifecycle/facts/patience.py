"""How long Muster waits for a report or a step before it takes a replica for lost. The limits are shorter while reports come regularly."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from muster.lifecycle.policy import Policy


@dataclass(frozen=True)
class Limit:
    """A limit in seconds."""

    usual: float
    longest: float
    """The limit if reports do not come regularly."""


@dataclass(frozen=True)
class Patience:
    """The limits of one pass."""

    silence: Limit
    """Without a report, while others report."""
    silence_after_the_end: Limit
    """Without a report after the attempt is over."""
    reconnection: Limit
    """Without a connection after the last one has closed."""
    standstill: Limit
    """Without a step of the peers of a silent replica, at least."""


def patience(policy: Policy, gap_seconds: float | None) -> Patience:
    """The limits, if `gap_seconds` is the longest recent time between two reports of one replica. None if that is unknown."""
    fraction = _fraction(policy, gap_seconds)

    def limit(seconds: float, *, shortest: float = 0.0) -> Limit:
        return Limit(max(shortest, seconds * fraction), seconds)

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
