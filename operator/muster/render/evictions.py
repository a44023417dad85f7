"""Evictions (KEP-4563): Muster as a responder of its pods, and its part of the status of an Eviction.

`docs/devices.md`, "Eviction requests", describes the API.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from muster.api.times import format_time, parse_time
from muster.api.unchecked import mappings
from muster_contract.text import printable

GROUP, VERSION, PLURAL = "lifecycle.k8s.io", "v1alpha1", "evictions"
RESPONDER = "muster.dev/operator"
"""The name of the responder. The controller of Kubernetes also sets it as a label of each Eviction that it takes part in."""
PRIORITY = 10_000
"""The priority that the API gives to the controller that manages a pod."""
HEARTBEAT_SECONDS = 20.0
"""The API asks responders for no more heartbeats than this. Without a heartbeat in 20 minutes, the next responder takes over."""
LONGEST_MESSAGE = 1024
_MOST_RESPONDERS = 10
_REQUESTERS_NAMED = 3


@dataclass(frozen=True)
class Eviction:
    """The eviction of a pod, with Muster as its active responder."""

    namespace: str
    name: str
    pod_name: str
    pod_uid: str
    requesters: str
    """The names of its requesters, for users."""


def with_responder(pod: dict[str, Any]) -> dict[str, Any]:
    """The pod with Muster as a responder. The API server refuses responders on pods of its PodGroups."""
    spec = pod["spec"]
    responders = [each for each in spec.get("evictionResponders") or () if each.get("name") != RESPONDER]
    if "schedulingGroup" in spec or len(responders) >= _MOST_RESPONDERS:
        return pod
    return {**pod, "spec": {**spec, "evictionResponders": [*responders, {"name": RESPONDER, "priority": PRIORITY}]}}


def identity(namespace: str, name: str) -> dict[str, Any]:
    """An Eviction, without its contents."""
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": "Eviction", "metadata": {"namespace": namespace, "name": name}}


def active_eviction(obj: Mapping[str, Any]) -> Eviction | None:
    """What this Eviction requests of Muster now. None if Muster is not its active responder, or has completed its part."""
    status, pod = obj.get("status") or {}, ((obj.get("spec") or {}).get("target") or {}).get("pod") or {}
    states = {each.get("name"): each.get("state") for _, each in mappings(status.get("targetResponders"))}
    if states.get(RESPONDER) != "Active" or not pod.get("uid") or _own_status(status).get("completionTime"):
        return None
    names = [str(each.get("name")) for _, each in mappings(status.get("requesters")) if each.get("intent") == "Eviction"]
    more = f" and {len(names) - _REQUESTERS_NAMED} more" if len(names) > _REQUESTERS_NAMED else ""
    return Eviction(
        namespace=obj["metadata"]["namespace"],
        name=obj["metadata"]["name"],
        pod_name=str(pod.get("name", "")),
        pod_uid=str(pod["uid"]),
        requesters=printable(", ".join(names[:_REQUESTERS_NAMED])) + more,
    )


def with_heartbeat(obj: dict[str, Any], now: datetime, message: str, *, save_seconds: int = 0) -> dict[str, Any]:
    """The Eviction with a new heartbeat and message; the same object if the last heartbeat is recent. `save_seconds` is the duration
    of a save, or 0 if that is unknown. Only the first heartbeat has it, because the API server refuses a time in the past."""
    own = _own_status(obj["status"])
    last = own.get("heartbeatTime")
    if last and now < parse_time(last) + timedelta(seconds=HEARTBEAT_SECONDS):
        return obj
    changes = {"heartbeatTime": _stamp(now, own.get("startTime"), last), "message": message[:LONGEST_MESSAGE]}
    if save_seconds and not last:
        changes["expectedCompletionTime"] = _stamp(now + timedelta(seconds=save_seconds), own.get("startTime"))
    return _with_own_status(obj, changes)


def with_completion(obj: dict[str, Any], now: datetime, message: str) -> dict[str, Any]:
    """The Eviction in which Muster has completed its part."""
    started = _own_status(obj["status"]).get("startTime")
    return _with_own_status(obj, {"completionTime": _stamp(now, started), "message": message[:LONGEST_MESSAGE]})


def _own_status(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Muster's entry in `status.responders`. The controller of Kubernetes makes it."""
    return next((each for _, each in mappings(status.get("responders")) if each.get("name") == RESPONDER), {})


def _with_own_status(obj: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    responders = [{**each, **changes} if each.get("name") == RESPONDER else each for _, each in mappings(obj["status"].get("responders"))]
    return {**obj, "status": {**obj["status"], "responders": responders}}


def _stamp(time: datetime, *earlier: str | None) -> str:
    """The time in whole seconds, and not before the earlier times. Another clock may have set them."""
    return format_time(max([time, *(parse_time(each) for each in earlier if each)]))
