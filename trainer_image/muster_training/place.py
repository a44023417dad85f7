"""The place of a process: its rank in its world, and the attempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

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


TORCHRUN = ("RANK", "WORLD_SIZE")
LAUNCHERS = (("HOROVOD_RANK", "HOROVOD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))
"""The variables of other launchers: Horovod, Open MPI, and the process managers of MPICH and Slurm."""


def environment_of(variables: Mapping[str, str], replica: ReplicaEnvironment | None) -> Environment:
    """The place that the variables describe. The variables of a launcher take precedence over Muster's, because a launcher starts several
    processes for one command. A job may itself run under a launcher, so that of another size than the world does not count."""
    place = _place(variables, *TORCHRUN)
    size = None if replica is None else replica.world_size
    for names in LAUNCHERS:
        found = None if place else _place(variables, *names)
        place = found if found and size in (None, found[1]) else place
    if replica is None:
        return Environment(*place) if place else Environment()
    if replica.first_rank is None:
        return Environment(attempt=replica.attempt, inside=True, in_world=False)
    if place is None:
        rank = _whole(variables.get(RANK))
        place = (replica.first_rank if rank is None else rank), size or 1
    return Environment(*place, replica.attempt, inside=True)


def _place(variables: Mapping[str, str], rank_name: str, world_name: str) -> tuple[int, int] | None:
    """The rank and the size of the world in these variables. None unless both are there, and fit together."""
    rank, world = _whole(variables.get(rank_name)), _whole(variables.get(world_name))
    return (rank, world) if rank is not None and world is not None and rank < world else None


def replica_of(variables: Mapping[str, str]) -> ReplicaEnvironment | None:
    """The replica of this process; None outside Muster. Its ranks meet at the address of torchrun if Muster does not set one, because a
    launcher may choose where rank 0 runs. Raises BadConfiguration if its variables are invalid."""
    if not variables.get(NAMES["job_uid"]):
        return None
    replica = ReplicaEnvironment.from_environment(variables)
    host, port = variables.get("MASTER_ADDR"), variables.get("MASTER_PORT")
    return replace(replica, world_address=f"{host}:{port}") if replica.world_address is None and host and port else replica


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) <= len(str(2**31)) else None
