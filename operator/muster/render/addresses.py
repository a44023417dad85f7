"""Where replicas are reached in a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from muster.api.spec import RoleName
from muster.strategies import tf_config, torchrun, tpu

PORTS: Mapping[str, int] = MappingProxyType(
    {tf_config.PORT_NAME: tf_config.PORT, torchrun.PORT_NAME: torchrun.PORT, tpu.PORT_NAME: tpu.PORT}
)


@dataclass(frozen=True)
class ClusterAddresses:
    """DNS names below the job's headless service. The cluster's own domain is left to the resolver's search list."""

    job: str
    namespace: str

    def host(self, role: RoleName, index: int) -> str:
        return f"{role.value}-{index}.{self.job}.{self.namespace}.svc"

    def port(self, role: RoleName, index: int, name: str) -> int:
        return PORTS[name]
