"""The parts of the objects of a list that a program keeps, so that a list takes little memory whatever tenants put into its objects."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import orjson

from muster.client import errors
from muster.kubernetes.objects import Object
from muster_contract.environment import NAMES

MOST_KEPT = 16 << 20
"""Bytes of JSON that are kept of one list. Parsed, they take up to ten times as much memory."""
LONGEST_TEXT = 4096
"""Characters of one text. The longest that Kubernetes itself writes, the message of an Event, has 1,024."""
_METADATA = ("managedFields", "annotations", "ownerReferences")
_CONTAINER = ("name", "image", "resources", "restartPolicy")
_VARIABLES = frozenset(NAMES[name] for name in ("first_rank", "processes", "checkpoint_dir"))
_CONTAINER_STATUS = ("name", "state", "lastState", "restartCount", "ready")


class Cuts:
    """Cuts objects. Equal parts of different objects are one object in memory, because the pods of a job differ in little."""

    def __init__(self, cut: Callable[[Object], Object]) -> None:
        self._cut = cut
        self._parts: dict[bytes, Any] = {}
        self._kept = 0

    def of(self, obj: Object) -> Object:
        """The part of the object. Raises TooLargeError if those of the list are too large together."""
        part = {name: self._shared_parts(value) for name, value in self._cut(obj).items()}
        if self._kept > MOST_KEPT:
            raise errors.TooLargeError(f"the list has more than {MOST_KEPT >> 20} MiB, so it is not read")
        return part

    def _shared_parts(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name[:LONGEST_TEXT]: self._shared(each) for name, each in value.items()}
        return self._shared(value)

    def _shared(self, value: Any) -> Any:
        text = orjson.dumps(value)
        key = hashlib.blake2b(text, digest_size=16).digest()
        if key not in self._parts:
            self._parts[key] = value if len(text) <= LONGEST_TEXT else _shortened(value)
            self._kept += len(text)
        return self._parts[key]


def pod(obj: Object) -> Object:
    """What explanations, logs and pages read of a pod."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    containers = {kind: [_container(each) for each in spec[kind]] for kind in ("containers", "initContainers") if spec.get(kind)}
    claims = [each for each in spec.get("volumes") or () if "persistentVolumeClaim" in each]
    statuses = {
        kind: [_some(each, _CONTAINER_STATUS) for each in status[kind]]
        for kind in ("containerStatuses", "initContainerStatuses")
        if status.get(kind)
    }
    return {
        "metadata": _metadata(obj),
        "spec": {**spec, **containers, "volumes": claims},
        "status": {**status, **statuses},
    }


def node(obj: Object) -> Object:
    """A node without the names of its images and volumes."""
    status = {name: value for name, value in (obj.get("status") or {}).items() if name not in ("images", "volumesInUse", "volumesAttached")}
    return {**obj, "metadata": _metadata(obj), "status": status}


def plain(obj: Object) -> Object:
    """The object without what only the API server reads."""
    return {**obj, "metadata": _metadata(obj)}


def _metadata(obj: Object) -> Object:
    return {name: value for name, value in obj["metadata"].items() if name not in _METADATA}


def _container(container: Object) -> Object:
    variables = [each for each in container.get("env") or () if each.get("name") in _VARIABLES]
    return {**_some(container, _CONTAINER), "env": variables}


def _some(obj: Object, names: tuple[str, ...]) -> Object:
    return {name: obj[name] for name in names if name in obj}


def _shortened(value: Any) -> Any:
    """The value, with each text in it cut."""
    if isinstance(value, str):
        return value[:LONGEST_TEXT]
    if isinstance(value, dict):
        return {name[:LONGEST_TEXT]: _shortened(each) for name, each in value.items()}
    return [_shortened(each) for each in value] if isinstance(value, list) else value
