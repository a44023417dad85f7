"""What is fixed about a strategy, and the replicas that follow from it and a spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from muster.api.spec import Communication, Role, RoleName, StrategyName, TrainingJobSpec
from muster.strategies.base import Framework, Placement, ReplicaPlan, RoleRule

ALONE: frozenset[RoleName] = frozenset()
"""A restart scope: the broken replica and no other."""

ONE_WORKER = MappingProxyType({RoleName.WORKER: RoleRule(default=1, maximum=1)})
WORKERS = MappingProxyType({RoleName.WORKER: RoleRule(default=1)})
EVALUATOR = RoleRule(default=0, maximum=1)


@dataclass(frozen=True, kw_only=True)
class Traits:
    """The base of every strategy."""

    name: StrategyName
    framework: Framework
    summary: str
    roles: Mapping[RoleName, RoleRule]
    """In the order in which their replicas are ranked."""
    options: frozenset[str] = frozenset()
    """The fields of `spec.options` that mean something to it."""
    communications: frozenset[Communication] = frozenset()
    """What `spec.communication` may be besides Auto."""
    synchronous: bool = True
    elastic: bool = False
    decisive: RoleName = RoleName.WORKER

    def restarts_with(self, role: RoleName) -> frozenset[RoleName] | None:
        return ALONE if role is RoleName.EVALUATOR else None

    def is_synchronous(self, spec: TrainingJobSpec) -> bool:
        asked = spec.options.synchronous
        return self.synchronous if asked is None else asked

    @property
    def moves(self) -> bool:
        return self.restarts_with(self.decisive) is None

    def placement(self, spec: TrainingJobSpec, role: RoleName) -> Placement:
        return Placement()

    def role(self, spec: TrainingJobSpec, name: RoleName) -> Role | None:
        """The role as the user wrote it, else with the default count; None where the job has none."""
        given = spec.roles.named().get(name)
        if given is not None:
            return given
        return Role(replicas=self.roles[name].default) if self.roles[name].default else None

    def worker(self, spec: TrainingJobSpec) -> Role:
        role = self.role(spec, RoleName.WORKER)
        assert role is not None, "every strategy has workers"
        return role


def replicas_of(name: RoleName, count: int, *, processes: int, first_rank: int | None) -> list[ReplicaPlan]:
    """`count` replicas, ranked one after the other from `first_rank` on."""
    return [
        ReplicaPlan(role=name, index=index, processes=processes, first_rank=None if first_rank is None else first_rank + index * processes)
        for index in range(count)
    ]
