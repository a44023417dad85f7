"""The addresses of replicas in a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from muster.api.job import TrainingJob
from muster.api.spec import RoleName
from muster.api.status import World
from muster.strategies.base import host_in_cluster
from muster.strategies.registry import STRATEGIES, strategy_of

PORTS: Mapping[str, int] = MappingProxyType({name: port for strategy in STRATEGIES.values() for name, port in strategy.ports.items()})

ATTEMPT_PORTS = 100
"""The number of attempts after which ports repeat. The ports of one strategy are further apart."""


@dataclass(frozen=True)
class ClusterAddresses:
    """DNS names below the job's headless service."""

    job: str
    namespace: str
    shift: int = 0
    """The number that is added to every port."""
    suffixes: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """The suffixes of the names of replicas that have one, by role and index."""

    def host(self, role: RoleName, index: int) -> str:
        suffix = self.suffixes.get((role, index))
        return host_in_cluster(role, index, job=self.job, namespace=self.namespace, suffix=suffix)

    def port(self, role: RoleName, index: int, name: str) -> int:
        return PORTS[name] + self.shift


def addresses_of(job: TrainingJob, attempt: int) -> ClusterAddresses:
    """The addresses of the replicas of an attempt.

    If processes are replaced within their pods, each attempt has its own ports. So a socket of an older attempt cannot reach the new world.
    The ports stay the same if a pod runs only one attempt, or if replicas that a restart leaves alone must find the pod again.
    """
    shift = attempt % ATTEMPT_PORTS if job.spec.trainer.supervised and strategy_of(job.spec.strategy).moves else 0
    return ClusterAddresses(job.metadata.name, job.metadata.namespace, shift, suffixes_of(job))


def suffixes_of(job: TrainingJob) -> Mapping[tuple[str, int], int]:
    """The suffixes in the job's current world, by role and index. Recent ones are cached, because each replica of a world needs them."""
    return _suffixes(_WorldKey(job.status.world)) if job.status.world else {}


@dataclass(frozen=True, eq=False)
class _WorldKey:
    """Keys are equal if they have the same world object, because to compare two worlds would cost as much as the suffixes."""

    world: World

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _WorldKey) and self.world is other.world

    def __hash__(self) -> int:
        return id(self.world)


@lru_cache(maxsize=16)
def _suffixes(key: _WorldKey) -> Mapping[tuple[str, int], int]:
    return MappingProxyType({member.replica: member.suffix for member in key.world.members if member.suffix is not None})
