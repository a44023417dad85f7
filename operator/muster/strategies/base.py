"""The seam that every strategy fills: its roles, the world it makes of a spec, and the environment of each replica.

A strategy is one object in one registry (`strategies/registry.py`); adding one touches no other layer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Protocol

from muster.api.problems import Problem
from muster.api.spec import Communication, RoleName, StrategyName, TrainingJobSpec


class Framework(StrEnum):
    TENSORFLOW = "TensorFlow"
    PYTORCH = "PyTorch"


@dataclass(frozen=True)
class RoleRule:
    """How many replicas of a role a strategy takes. `default` 0: the role is optional and absent unless asked for."""

    default: int
    minimum: int = 1
    maximum: int | None = None


@dataclass(frozen=True)
class ReplicaPlan:
    """One replica of a world: `processes` training processes, the first of them with global rank `first_rank` (None: it has no rank)."""

    role: RoleName
    index: int
    processes: int
    first_rank: int | None
    ports: Mapping[str, int] = field(default_factory=dict)
    """Port name -> number inside the pod. A laptop puts distinct free ports in their place."""


@dataclass(frozen=True)
class WorldPlan:
    """The world that a spec asks for: replicas in rank order, and how many processes they have together."""

    replicas: tuple[ReplicaPlan, ...]
    size: int

    @cached_property
    def positions(self) -> Mapping[tuple[RoleName, int], int]:
        """Where each replica, by role and index, stands among all."""
        return {(replica.role, replica.index): position for position, replica in enumerate(self.replicas)}

    def of(self, role: RoleName) -> tuple[ReplicaPlan, ...]:
        return tuple(replica for replica in self.replicas if replica.role is role)

    def part(self, places: Collection[tuple[str, int]]) -> WorldPlan:
        """The world of only these replicas (role and index), ranked anew; the first of them listens where the first of all did."""
        members: list[ReplicaPlan] = []
        size = 0
        for replica in self.replicas:
            if (replica.role.value, replica.index) in places:
                rank = None if replica.first_rank is None else size
                members.append(replace(replica, first_rank=rank, ports=replica.ports if members else self.replicas[0].ports))
                size += 0 if rank is None else replica.processes
        return WorldPlan(tuple(members), size=size)


@dataclass(frozen=True)
class Placement:
    """What a strategy itself needs of a node: labels to select it by, and resource limits of the trainer container."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)


def host_in_cluster(role: RoleName, index: int, *, job: str, namespace: str) -> str:
    """The DNS name of a replica below its job's headless service. The cluster's own domain is left to the resolver's search list."""
    return f"{role.value}-{index}.{job}.{namespace}.svc"


class Addresses(Protocol):
    """Where replicas are reached: DNS names in a cluster, loopback and distinct ports on a laptop."""

    def host(self, role: RoleName, index: int) -> str: ...

    def port(self, role: RoleName, index: int, name: str) -> int: ...


class Strategy(Protocol):
    """How one strategy distributes training."""

    @property
    def name(self) -> StrategyName: ...

    @property
    def framework(self) -> Framework: ...

    @property
    def summary(self) -> str:
        """One sentence for the documentation: what it spreads over what, and how the parts agree."""
        ...

    @property
    def roles(self) -> Mapping[RoleName, RoleRule]: ...

    @property
    def options(self) -> frozenset[str]:
        """The fields of `spec.options` that mean something to it."""
        ...

    @property
    def communications(self) -> frozenset[Communication]:
        """What `spec.communication` may be besides Auto."""
        ...

    def is_synchronous(self, spec: TrainingJobSpec) -> bool:
        """Whether all workers see every update at the same step."""
        ...

    @property
    def elastic(self) -> bool:
        """Whether the number of workers may change from attempt to attempt."""
        ...

    @property
    def decisive(self) -> RoleName:
        """The role whose replicas' success is the job's: all of them for workers, the chief where there is one."""
        ...

    def restarts_with(self, role: RoleName) -> frozenset[RoleName] | None:
        """The roles that restart with a broken replica of `role`; None: the whole world. An empty set: that replica alone."""
        ...

    @property
    def moves(self) -> bool:
        """Whether each attempt's world is new as a whole, and so may have ports of its own."""
        ...

    def data_parallel(self, spec: TrainingJobSpec) -> int:
        """Over how many devices a step's batch is shared out; devices that hold parts of one copy of the model count once."""
        ...

    def placement(self, spec: TrainingJobSpec, role: RoleName) -> Placement: ...

    def plan(self, spec: TrainingJobSpec) -> WorldPlan: ...

    def environment(self, spec: TrainingJobSpec, plan: WorldPlan, replica: ReplicaPlan, addresses: Addresses) -> Mapping[str, str]:
        """The framework's environment variables of a replica's trainer container."""
        ...

    def problems(self, spec: TrainingJobSpec) -> Sequence[Problem]:
        """What this strategy cannot do of what the spec asks."""
        ...
