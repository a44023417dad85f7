"""What the coordinator answers: which attempt counts, and what a replica that outlives its processes does next. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from muster_trainer.supervisor.events import number, whole


@dataclass(frozen=True)
class Orders:
    """`world` is the environment to start the processes of `attempt` with, once all members of that world have reaped theirs.

    `grace` is how many seconds those of an older attempt get to save. `dump`: that attempt hung, and its stacks are wanted first.
    `end`: the job is over, or this attempt is and no other follows: processes that still run are ended, and the replica ends too.
    `succeeded`: the job is over because it has succeeded.
    """

    attempt: int
    grace: float = 0.0
    world: Mapping[str, str] | None = None
    end: bool = False
    dump: bool = False
    succeeded: bool = False


def read_orders(reply: object) -> Orders | None:
    """The orders in a reply; None where it has none: an older coordinator replaces pods instead."""
    if not isinstance(reply, dict) or "graceSeconds" not in reply:
        return None
    attempt, grace, world = whole(reply.get("attempt")), number(reply.get("graceSeconds")), reply.get("world")
    if attempt is None or grace is None:
        return None
    named = isinstance(world, dict) and all(isinstance(name, str) and isinstance(value, str) for name, value in world.items())
    end, dump, succeeded = (reply.get(name) is True for name in ("end", "dump", "succeeded"))
    return Orders(attempt, max(0.0, grace), world if named else None, end, dump, succeeded)
