"""Everything about a job that helps to find a fault, in one document without secrets."""

from __future__ import annotations

from muster.client import errors
from muster.client.connection import Connection
from muster.client.log_lines import Selection
from muster.client.logs import logs_of, shown
from muster.client.redaction import redact
from muster.client.snapshot import snapshot_of
from muster.explain.explain import as_document, explain
from muster.kubernetes.objects import Object

LOG_LINES = 200
LOG_BYTES = 16 << 20
"""Of the logs of all replicas together."""
_NODE = ("capacity", "allocatable", "conditions", "nodeInfo")


async def debug_dump(connection: Connection, name: str, *, version: str) -> Object:
    """The document: the explanation, the job, its pods, events and last log lines, and the nodes of its pods. Raises NoJobError."""
    snapshot = await snapshot_of(connection, name)
    try:
        lines = await logs_of(connection, snapshot.job, Selection(), tail=LOG_LINES, most_bytes=LOG_BYTES)
        logs = [shown(line) for line in lines]
    except errors.ClientError as error:
        logs = [f"the logs cannot be read: {error}"]
    used = {pod["spec"].get("nodeName") for pod in snapshot.pods}
    document = {
        "muster": version,
        "time": snapshot.now.isoformat(timespec="seconds"),
        "explanation": as_document(explain(snapshot)),
        "job": snapshot.job,
        "pods": list(snapshot.pods),
        "events": list(snapshot.events),
        "workload": snapshot.workload,
        "nodes": [_node(node) for node in snapshot.nodes or () if node["metadata"]["name"] in used],
        "claims": list(snapshot.claims or ()),
        "quotas": list(snapshot.quotas or ()),
        "networkPolicies": list(snapshot.policies or ()),
        "logs": logs,
    }
    redacted: Object = redact(document)
    return redacted


def _node(node: Object) -> Object:
    """The parts of a node that help to find a fault. The names of its images and volumes do not."""
    metadata = {"name": node["metadata"]["name"], "labels": node["metadata"].get("labels") or {}}
    status = node.get("status") or {}
    return {
        "metadata": metadata,
        "spec": {"taints": node["spec"].get("taints") or []},
        "status": {field: status[field] for field in _NODE if field in status},
    }
