"""The NetworkPolicy of a job: which pods may reach its pods. Pure.

Training traffic is neither encrypted nor authenticated, and libraries open undeclared ports. So only pods of the same job may connect.
Ports that a user's template declares for other purposes, such as a dashboard or metrics, stay open to all.
Source: Kubernetes documentation, "Network Policies".
"""

from __future__ import annotations

from typing import Any

from muster.api.constants import JOB_NAME_LABEL, JOB_UID_LABEL
from muster.api.job import TrainingJob
from muster.kubernetes.objects import Object
from muster.render.addresses import ClusterAddresses
from muster.render.manifests import render_service


def network_policy(job: TrainingJob) -> Object:
    """The NetworkPolicy of a job. It selects the pods that the job's service selects."""
    service = render_service(job, ClusterAddresses(job.metadata.name, job.metadata.namespace))
    pods = {"matchLabels": {key: service["metadata"]["labels"][key] for key in (JOB_NAME_LABEL, JOB_UID_LABEL)}}
    training = {port["port"] for port in service["spec"].get("ports", ())}
    rules: list[Object] = [{"from": [{"podSelector": pods}]}]
    declared = [port for port in _declared(job) if port["port"] not in training]
    if declared:
        rules.append({"ports": declared})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": service["metadata"],
        "spec": {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": rules},
    }


def _declared(job: TrainingJob) -> list[dict[str, Any]]:
    """The ports of the templates' containers, without duplicates."""
    containers = [container for role in job.spec.roles.values() for container in (role.template.get("spec") or {}).get("containers") or ()]
    ports = [port for container in containers for port in container.get("ports") or ()]
    numbers = {(port["containerPort"], port.get("protocol", "TCP")): None for port in ports if isinstance(port.get("containerPort"), int)}
    return [{"port": number, "protocol": protocol} for number, protocol in numbers]
