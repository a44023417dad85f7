"""The chart, and values as different installations have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "muster"
VARIANTS: dict[str, Manifest] = {
    "defaults": {},
    "a team": {"watchNamespaces": ["team-a", "team-b"], "rbac": {"aggregate": False}, "jobDefaults": {"networkPolicy": {"enabled": False}}},
    "highly available": {
        "operator": {"replicas": 2, "priorityClassName": "system-cluster-critical", "env": {"HTTPS_PROXY": "http://proxy:3128", "N": 1}},
        "metrics": {
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "rules": {"enabled": True, "labels": {"release": "prometheus"}},
            "dashboards": {"enabled": True, "annotations": {"grafana_folder": "Training"}},
        },
        "networkPolicy": {
            "apiServerCIDRs": ["10.0.0.1/32"],
            "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
        },
    },
    "own registry": {
        "image": {"registry": "registry.example.com/ml/", "pullPolicy": "Always", "pullSecrets": [{"name": "registry"}]},
        "operator": {"image": {"tag": "1.2.3", "digest": "sha256:" + "a" * 64}},
        "jobDefaults": {
            "images": {"PyTorch": {"tag": "nightly"}, "Ray": {"repository": "ray-trainer", "tag": "1"}},
            "imagePullSecrets": [{"name": "registry"}],
        },
        "commonLabels": {"team": "ml"},
        "jobPolicy": {"serviceAccounts": ["train"], "volumes": [], "templates": "Restricted", "maxReplicasPerJob": 64},
    },
    "GPU nodes": {
        "jobDefaults": {
            "env": {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_DEBUG": "INFO", "QUOTED": 'a "b": {{ c }} # d'},
            "nodeSelector": {"pool": "gpu"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "checkpoints"}}},
        },
        "gangScheduling": {"apiGroups": ["scheduling.volcano.sh", "scheduling.k8s.io"]},
        "queueing": {"kueue": {"enabled": True}},
        "operator": {"nodeSelector": {"pool": "system"}, "tolerations": [{"operator": "Exists"}], "podLabels": {"app": "x"}},
    },
    "web page": {
        "ui": {
            "enabled": True,
            "tlsSecret": "page-tls",
            "historyClaim": "checkpoints",
            "from": [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}],
            "nodeSelector": {"pool": "system"},
        },
    },
    "least": {
        "gangScheduling": {"apiGroups": []},
        "crds": {"enabled": False},
        "rbac": {"create": False},
        "serviceAccount": {"create": False, "name": "given"},
        "networkPolicy": {"enabled": False},
        "flowSchema": {"enabled": False},
        "metrics": {"service": {"enabled": False}},
        "admissionPolicies": {"requester": False, "operator": False, "changes": False},
    },
}
