"""Where replicas are reached in a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from muster.api.job import TrainingJob
from muster.api.spec import RoleName
from muster.strategies import tf_config, torchrun, tpu
from muster.strategies.base import host_in_cluster
from muster.strategies.registry import strategy_of

PORTS: Mapping[str, int] = MappingProxyType(
    {tf_config.PORT_NAME: tf_config.PORT, torchrun.PORT_NAME: torchrun.PORT, tpu.PORT_NAME: tpu.PORT}
)

ATTEMPT_PORTS = 100
"""From how many ports on they are used again: those of the strategies lie further apart."""


@dataclass(frozen=True)
class ClusterAddresses:
    """DNS names below the job's headless service."""

    job: str
    namespace: str
    shift: int = 0
    """Added to every port."""

    def host(self, role: RoleName, index: int) -> str:
        return host_in_cluster(role, index, job=self.job, namespace=self.namespace)

    def port(self, role: RoleName, index: int, name: str) -> int:
        return PORTS[name] + self.shift


def addresses_of(job: TrainingJob, attempt: int) -> ClusterAddresses:
    """Where the replicas of an attempt are reached.

    Where processes are replaced within their pods, each attempt has ports of its own, lest a socket of an older one meet the new world. A
    pod without a supervisor runs one attempt only, and keeps the ports that everybody knows; and so does one that others, which a restart
    leaves alone, must find again.
    """
    shift = attempt % ATTEMPT_PORTS if job.spec.trainer.supervised and strategy_of(job.spec.strategy).moves else 0
    return ClusterAddresses(job.metadata.name, job.metadata.namespace, shift)
