"""The table of causes. An earlier cause is the reason for later ones."""

from __future__ import annotations

from muster.explain.accepting import NOT_ACCEPTED, REFUSED
from muster.explain.cause import Cause
from muster.explain.failing import END_OF_JOB, INPUTS, PROGRAM, STORAGE, TAKEN_AWAY
from muster.explain.running import NODES, RISKS, SLOW, STATES
from muster.explain.scheduling import SCHEDULING, WAITING
from muster.explain.starting import STARTING

CAUSES: tuple[Cause, ...] = (
    *NOT_ACCEPTED,
    *REFUSED,
    *SCHEDULING,
    *NODES,
    *STARTING,
    *WAITING,
    *TAKEN_AWAY,
    *INPUTS,
    *STORAGE,
    *PROGRAM,
    *END_OF_JOB,
    *SLOW,
    *STATES,
    *RISKS,
)
