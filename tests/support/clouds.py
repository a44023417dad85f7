"""How clouds and autoscalers announce that they take a node away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from local_cluster import Cluster


@dataclass(frozen=True)
class Cloud:
    """How a cloud or an autoscaler takes a node away.

    `taint` and `condition` (type and reason) announce it; `cordons` and `drains` follow at once; `seconds` is the time until the node is
    gone.
    """

    taint: str = ""
    condition: tuple[str, str] | None = None
    cordons: bool = False
    drains: bool = False
    seconds: float = 30.0

    def announce(self, cluster: Cluster, node: str) -> None:
        if self.taint:
            cluster.kubectl("taint", "node", node, f"{self.taint}=:NoSchedule")
        if self.condition:
            self._set_condition(cluster, node, "True")
        if self.cordons:
            cluster.kubectl("cordon", node)

    def withdraw(self, cluster: Cluster, node: str) -> None:
        if self.taint:
            cluster.try_kubectl("taint", "node", node, f"{self.taint}-")
        if self.condition:
            self._set_condition(cluster, node, "False")
        cluster.try_kubectl("uncordon", node)

    def _set_condition(self, cluster: Cluster, node: str, status: str) -> None:
        assert self.condition
        kind, reason = self.condition
        condition = {"type": kind, "status": status, "reason": reason, "message": "a test of Muster"}
        cluster.kubectl("patch", "node", node, "--subresource=status", "--patch", json.dumps({"status": {"conditions": [condition]}}))


KARPENTER = Cloud(taint="karpenter.sh/disrupted", drains=True, seconds=120)
AWS = Cloud(taint="aws-node-termination-handler/spot-itn", cordons=True, drains=True, seconds=120)
GKE = Cloud(taint="cloud.google.com/impending-node-termination", seconds=30)
AKS = Cloud(condition=("VMEventScheduled", "PreemptScheduled"), seconds=30)
AUTOSCALER = Cloud(taint="ToBeDeletedByClusterAutoscaler", drains=True, seconds=60)


@contextmanager
def announcing(cloud: Cloud, cluster: Cluster, node: str) -> Iterator[None]:
    """The announcement is withdrawn at the end."""
    try:
        yield
    finally:
        cloud.withdraw(cluster, node)
