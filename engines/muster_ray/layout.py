"""What both sides agree on: the variables and ports of a Ray cluster. It imports the standard library only."""

from __future__ import annotations

from collections.abc import Mapping

HEAD = "head"

ADDRESS = "RAY_ADDRESS"
"""The host and port of the head's GCS. `ray.init()` without an address reads it."""
NODES = "MUSTER_RAY_NODES"
"""The number of nodes of the cluster, with the head."""
FLAGS = "MUSTER_RAY_FLAGS"
"""The flags of `ray start` on this node, separated by spaces."""

SETTINGS = "rayStartParams"
"""The setting in `trainer.config` with further flags for each role, as KubeRay has it for each group."""
JOIN_SECONDS_SETTING = "joinSeconds"
"""The setting in `trainer.config` with the longest time in seconds until all nodes have joined."""
JOIN_SECONDS = 900

TOKEN = "raytoken"
"""The Secret with the token of the cluster, and its entry."""
TOKEN_ENTRY = "token"

GCS = "ray-gcs"
HEAD_PORTS: Mapping[str, int] = {GCS: 6379, "ray-client": 10001, "ray-dashboard": 8265}
"""The ports that only the head has. They are Ray's own defaults."""
PORTS: Mapping[str, int] = {
    "ray-node": 6580,
    "ray-objects": 6780,
    "ray-metrics": 8080,
    "ray-envs": 6980,
    "ray-agent-grpc": 7180,
    "ray-agent-http": 7580,
}
"""The ports of each node."""
FLAG_OF: Mapping[str, str] = {
    GCS: "port",
    "ray-client": "ray-client-server-port",
    "ray-dashboard": "dashboard-port",
    "ray-node": "node-manager-port",
    "ray-objects": "object-manager-port",
    "ray-metrics": "metrics-export-port",
    "ray-envs": "runtime-env-agent-port",
    "ray-agent-grpc": "dashboard-agent-grpc-port",
    "ray-agent-http": "dashboard-agent-listen-port",
}
"""The flag of `ray start` for each port."""
WORKER_PORTS = (10002, 19999)
"""The ports of Ray's worker processes in a pod. They are Ray's own default. On one machine, nodes share the ports, so the kernel chooses
them there."""

OWN_FLAGS = frozenset(
    {
        "address",
        "block",
        "head",
        "min-worker-port",
        "max-worker-port",
        "node-ip-address",
        "temp-dir",
        "worker-port-list",
        *FLAG_OF.values(),
    }
)
"""The flags that Muster sets."""
