"""The place of a process: its rank in its world, and the attempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from muster_contract.environment import NAMES, RANK, ReplicaEnvironment


@dataclass(frozen=True)
class Environment:
    """The place of this process.

    `rank` is from 0 to `world` - 1. `attempt` is the number of the job's attempt, from 0. `inside` is True if Muster runs the program.
    `in_world` is False for a replica that does not train with the others, such as an evaluator or a parameter server. Such a replica
    is a world of its own. It may read checkpoints, but not write them.
    """

    rank: int = 0
    world: int = 1
    attempt: int = 0
    inside: bool = False
    in_world: bool = True


def environment_of(variables: Mapping[str, str], replica: ReplicaEnvironment | None) -> Environment:
    """The place that the variables describe. torchrun's `RANK` and `WORLD_SIZE` take precedence over Muster's variables, because torchrun
    starts several processes for one command."""
    rank, world = _whole(variables.get("RANK")), _whole(variables.get("WORLD_SIZE"))
    has_both = rank is not None and world is not None and rank < world
    if replica is None:
        return Environment(rank or 0, world or 1) if has_both else Environment()
    if replica.first_rank is None:
        return Environment(attempt=replica.attempt, inside=True, in_world=False)
    if not has_both:
        rank, world = _whole(variables.get(RANK)), replica.world_size
        rank = replica.first_rank if rank is None else rank
    return Environment(rank or 0, world or 1, replica.attempt, inside=True)


def replica_of(variables: Mapping[str, str]) -> ReplicaEnvironment | None:
    """The replica of this process; None outside Muster. Raises BadConfiguration if its variables are invalid."""
    return ReplicaEnvironment.from_environment(variables) if variables.get(NAMES["job_uid"]) else None


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) <= len(str(2**31)) else None
