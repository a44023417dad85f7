"""A preset for nodes with eight GPUs, as a platform team writes it, and smaller ones."""

from __future__ import annotations

import copy
from typing import Any

H100_8: dict[str, Any] = {
    "images": {"PyTorch": "registry.example.com/torch:cu128"},
    "template": {
        "spec": {
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "containers": [{"name": "trainer", "env": [{"name": "NCCL_SOCKET_IFNAME", "value": "eth0"}]}],
        }
    },
    "roles": {
        "worker": {
            "resources": {"limits": {"nvidia.com/gpu": 8, "memory": "1Ti"}, "requests": {"cpu": "64"}},
            "template": {
                "spec": {
                    "nodeSelector": {"node": "h100-8"},
                    "containers": [
                        {
                            "name": "trainer",
                            "env": [{"name": "NCCL_IB_HCA", "value": "mlx5"}],
                            "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
                        }
                    ],
                    "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
                }
            },
        }
    },
    "checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "checkpoints"}}},
}


def preset(name: str = "h100-8", **spec: Any) -> dict[str, Any]:
    """A TrainingPreset. Without fields, it is the one of the nodes with eight GPUs."""
    metadata = {"name": name}
    return {"apiVersion": "muster.dev/v1beta1", "kind": "TrainingPreset", "metadata": metadata, "spec": spec or copy.deepcopy(H100_8)}
