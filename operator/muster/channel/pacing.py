"""How often supervisors report. Pure.

Intervals grow with the number of supervisors. So no job can slow down the reports of other jobs, and the rate limit refuses no supervisor
that keeps to its interval.
"""

from __future__ import annotations

SHORTEST_INTERVAL, LONGEST_INTERVAL = 0.2, 2.0  # seconds between two reports of one supervisor
REPORTS_PER_SECOND = 50.0  # of all supervisors together, within the limits above
SHORTEST_WAIT, LONGEST_WAIT = 0.02, 0.5  # seconds between two reports of one supervisor that waits for a world; a recovery waits for it
WAITS_PER_SECOND = 200.0
SUSTAINED_PER_SECOND = 300.0  # beyond the limits above, the intervals grow so that the rate limit refuses no supervisor
SHORTEST_LONG_POLL, LONGEST_LONG_POLL = 2.0, 10.0  # seconds in which a report of a waiting supervisor is held, if nothing changes
GATHER_SECONDS_PER_POD = 0.0001  # about twice the time that a pass needs for one pod
JITTER = 0.2  # intervals differ by this share, so that supervisors started together do not post together


def interval_seconds(supervisors: int, random: float, *, waiting: bool = False) -> float:
    """Seconds until the next report of a supervisor. They grow with the number of supervisors, so that no job can slow down the reports of
    other jobs. `random` is in [0, 1). `waiting`: these supervisors all wait for a world."""
    if waiting:
        fair = min(LONGEST_WAIT, max(SHORTEST_WAIT, supervisors / WAITS_PER_SECOND))
    else:
        fair = min(LONGEST_INTERVAL, max(SHORTEST_INTERVAL, supervisors / REPORTS_PER_SECOND))
    fair = max(fair, supervisors / SUSTAINED_PER_SECOND)
    return round(fair * (1 + JITTER * (2 * random - 1)), 3)


def long_poll_seconds(preferred: float, waiting: int) -> float:
    """Seconds for which the operator holds a report of a supervisor that waits. `preferred` is the limit that the supervisor has sent.
    `waiting` is the number of supervisors that wait."""
    return min(preferred, LONGEST_LONG_POLL, max(SHORTEST_LONG_POLL, waiting / SUSTAINED_PER_SECOND))


def gather_seconds(least: float, pods: int) -> float:
    """Seconds in which changes of a job with this many pods are gathered for one pass, `least` for a small job. A pass takes the longer the
    more pods there are, so the passes of a large job would otherwise leave no time to receive the reports that they wait for."""
    return max(least, pods * GATHER_SECONDS_PER_POD)


def delay_seconds(supervisors: int) -> float:
    """Seconds by which reports of this many supervisors may come later than the usual longest interval."""
    return max(0.0, (1 + JITTER) * supervisors / SUSTAINED_PER_SECOND - LONGEST_INTERVAL)
