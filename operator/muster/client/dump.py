"""Everything about a job that helps to find a fault, in one document without secrets."""

from __future__ import annotations

import re
from typing import Any

from muster.client import errors
from muster.client.connection import Connection
from muster.client.log_lines import Selection
from muster.client.logs import logs_of, shown
from muster.client.snapshot import snapshot_of
from muster.explain.explain import as_document, explain
from muster.kubernetes.objects import Object

LOG_LINES = 200
LOG_BYTES = 16 << 20
"""Of the logs of all replicas together."""
HIDDEN = "REDACTED"
_LONGEST_NAME = 256
_SECRET_PART = re.compile(
    r"(?i)passw|passphrase|pwd|secret|credential|token(?!iz|s$)|authorization|cookie|signature|webhook|private"
    r"|(?:api|access|account|encryption|signing|ssh|tls|master|license)key"
)
"""Parts of a name that show a secret wherever they are."""
_SECRET_WORDS = frozenset({"auth", "bearer", "cred", "creds", "dsn", "jwt", "otp", "pass", "pat", "sas", "sig"})
"""Whole words of a name that show a secret. So does the last word `key`, as in KAGGLE_KEY, but not alone: many fields have this name."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

_VALUE = r"[^\s\"',;]+"
_PAIR = re.compile(r"(?<![\w.-])(?P<name>[\w.-]{1,128})(?P<separator>[\"']?\s{0,4}[=:]\s{0,4}[\"']?|(?<=[\w])\s{1,4})(?=[^\s\"',;])")
"""A name and what separates it from its value. Whether the value is hidden depends on the name."""
_HIDDEN_VALUE = re.compile(rf"(?P<scheme>(?:bearer|basic|token|negotiate)\s{{1,4}})?{_VALUE}", re.IGNORECASE)
_SECRET_FORMS = re.compile(
    r"(?i:(\bbearer\s{1,4})[\w.~+/=-]{8,})"
    r"|(://[^\s/:@]{0,64}:)[^\s/]{1,256}(?=@)|\b(AKIA|ASIA)[0-9A-Z]{16}\b|\b(AIza)[\w-]{30,}|(?<![\w-])(eyJ)[\w-]{10,}\.[\w-]+\.[\w-]+"
    r"|\b(gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[abprs]-)[\w-]{16,}"
    r"|(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)[^-]*"
    r"|(https?://(?:hooks\.[^\s/\"']{1,100}/|[^\s\"']{1,200}?/(?:webhooks?|hooks)/))[^\s\"',;]+"
)
"""Credentials that show by their form."""
PATTERNS = (_SECRET_PART, _WORD, _PAIR, _HIDDEN_VALUE, _SECRET_FORMS)
"""All of them meet text of tenants, so each must take linear time."""
_METADATA = ("managedFields",)
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
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
        hidden = [isinstance(each, str) and each.startswith("-") and _is_secret(each) for each in before[:-1]]
        return [HIDDEN if hide and isinstance(each, str) else redact(each, name=name) for each, hide in zip(value, hidden, strict=True)]
    if isinstance(value, str):
        return HIDDEN if value and _is_secret(name) and not _is_reference(name) else _without_secrets(value)
    return value


def _redacted_object(value: dict[str, Any]) -> dict[str, Any]:
    redacted = {}
    for key, each in value.items():
        if key in _METADATA or key == _LAST_APPLIED:
            continue
        is_variable = key == "value" and isinstance(value.get("name"), str)
        redacted[key] = redact(each, name=value["name"] if is_variable else key)
    return redacted


def _is_secret(name: str) -> bool:
    """Whether a variable, field or option of this name holds a secret, by the words of the name."""
    name = name[:_LONGEST_NAME]
    words = [word.lower() for word in _WORD.findall(name)]
    has_key = len(words) > 1 and words[-1] in ("key", "keys") and "public" not in words
    return has_key or not _SECRET_WORDS.isdisjoint(words) or _SECRET_PART.search("".join(words)) is not None


def _is_reference(name: str) -> bool:
    """Whether a field names a Secret and does not hold one, such as secretName, or names a label."""
    return name.endswith(("Name", "Ref", "Path", "Seconds", "automountServiceAccountToken", "topologyKey", "LabelKeys"))


def _without_secrets(text: str) -> str:
    """The text without the values of secret names, as in `password=...` and `--token ...`, and without credentials of known forms."""
    pieces, begin, position = [], 0, 0
    while (pair := _PAIR.search(text, position)) is not None:
        position = pair.end()
        if _hides(pair):
            value = _HIDDEN_VALUE.match(text, position)
            assert value is not None
            pieces += [text[begin:position], value["scheme"] or "", HIDDEN]
            begin = position = value.end()
    return _SECRET_FORMS.sub(_hidden, "".join([*pieces, text[begin:]]))


def _hides(pair: re.Match[str]) -> bool:
    name, separator = pair["name"], pair["separator"]
    if separator.isspace():
        return name.startswith("-") and _is_secret(name)
    return _is_secret(name) or (name.lower() == "key" and "=" in separator)


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
