"""Everything about a job that helps to find a fault, in one document without secrets."""

from __future__ import annotations

import re
from typing import Any

from muster.client import errors
from muster.client.connection import Connection
from muster.client.log_lines import Selection
from muster.client.logs import logs_of, shown
from muster.client.snapshot import snapshot_of
from muster.control.cluster import Object
from muster.explain.explain import as_document, explain

LOG_LINES = 200
HIDDEN = "REDACTED"
_SECRET_NAME = re.compile(
    r"(?i)pass(?:word|wd|phrase)?|pwd|secret|token|credential|(?:^|[^a-z])(?:auth|dsn|sas)(?:$|[^a-z])|private|authorization|cookie|signature"
    r"|(?:api|access|account|encryption|signing|ssh|tls|master|license)[_-]?key"
)
_WORDS = r"pass(?:word|wd|phrase)|pwd|secret(?:[_-]?key)?|token|(?:api|access|account)[_-]?key(?:_id)?|signature"
_SECRET_TEXT = re.compile(
    r"(?i)(authorization[\"']?\s*[=:]\s*[\"']?(?:(?:bearer|basic|token|negotiate)\s+)?)[^\s\"',;]+"
    r"|(\bbearer\s+)[\w.~+/=-]{8,}"
    rf"|((?:{_WORDS})[\"']?\s*[=:]\s*[\"']?)[^\s\"',;]+"
    rf"|(--?(?:[\w-]{{1,40}}-)?(?:{_WORDS})\s+)[^\s\"',;]+"
    r"|(://[^\s/:@]{0,64}:)[^\s/]{1,256}(?=@)|\b(AKIA|ASIA)[0-9A-Z]{16}\b|\b(eyJ)[\w-]{10,}\.[\w-]+\.[\w-]+"
    r"|\b(gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[abprs]-)[\w-]{16,}"
    r"|(-----BEGIN [A-Z ]*PRIVATE KEY-----)[^-]*"
)
_SECRET_OPTION = re.compile(rf"(?i)--?(?:[\w-]{{1,40}}[_-])?(?:{_WORDS})")
_METADATA = ("managedFields",)
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_NODE = ("capacity", "allocatable", "conditions", "nodeInfo")


async def debug_dump(connection: Connection, name: str, *, version: str) -> Object:
    """The document: the explanation, the job, its pods, events and last log lines, and the nodes of its pods. Raises NoJobError."""
    snapshot = await snapshot_of(connection, name)
    try:
        lines = await logs_of(connection, snapshot.job, Selection(), tail=LOG_LINES)
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
        "nodes": [_node(node) for node in snapshot.nodes or () if node["metadata"]["name"] in used],
        "claims": list(snapshot.claims or ()),
        "quotas": list(snapshot.quotas or ()),
        "networkPolicies": list(snapshot.policies or ()),
        "logs": logs,
    }
    redacted: Object = redact(document)
    return redacted


def redact(value: Any, *, name: str = "") -> Any:
    """The value without possible secrets: values of variables and fields with such names, and credentials in text."""
    if isinstance(value, dict):
        return _redacted_object(value)
    if isinstance(value, list):
        before = [None, *value]  # the value of an option follows the option
        hidden = [isinstance(each, str) and _SECRET_OPTION.fullmatch(each) is not None for each in before[:-1]]
        return [HIDDEN if hide and isinstance(each, str) else redact(each, name=name) for each, hide in zip(value, hidden, strict=True)]
    if isinstance(value, str):
        return HIDDEN if value and _SECRET_NAME.search(name) and not _is_reference(name) else _SECRET_TEXT.sub(_hidden, value)
    return value


def _redacted_object(value: dict[str, Any]) -> dict[str, Any]:
    redacted = {}
    for key, each in value.items():
        if key in _METADATA or key == _LAST_APPLIED:
            continue
        is_variable = key == "value" and isinstance(value.get("name"), str)
        redacted[key] = redact(each, name=value["name"] if is_variable else key)
    return redacted


def _is_reference(name: str) -> bool:
    """Whether a field names a Secret and does not hold one, such as secretName."""
    return name.endswith(("Name", "Ref", "Path", "Seconds", "automountServiceAccountToken"))


def _hidden(match: re.Match[str]) -> str:
    return f"{next(group for group in match.groups() if group)}{HIDDEN}"


def _node(node: Object) -> Object:
    """The parts of a node that help to find a fault. The names of its images and volumes do not."""
    metadata = {"name": node["metadata"]["name"], "labels": node["metadata"].get("labels") or {}}
    status = node.get("status") or {}
    return {
        "metadata": metadata,
        "spec": {"taints": node["spec"].get("taints") or []},
        "status": {field: status[field] for field in _NODE if field in status},
    }
