"""Evictions of KEP-4563. A test writes what the evictionrequest-controller is documented to write, because Kubernetes 1.37 has none."""

from __future__ import annotations

from typing import Any

from tests.support.api_server.api import Api, Object
from tests.support.api_server.kubelet import now

REQUESTER, IMPERATIVE = "drain.example.com/nodes", "imperative-eviction.k8s.io/evictor"
RESPONDER = "muster.dev/operator"
FOLDER = "/apis/lifecycle.k8s.io/v1alpha1/namespaces/{}/evictions"


class Evictions:
    """The Evictions of one namespace, by the name of their pod."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._folder = FOLDER.format(namespace)

    def start(self, pod: Object, *, uid: str = "") -> None:
        """Creates the Eviction of a pod and makes its first responder active. `uid` is that of another pod if it is given."""
        name, declared = pod["metadata"]["name"], pod["spec"].get("evictionResponders", ())
        target = {"pod": {"name": name, "uid": uid or pod["metadata"]["uid"]}}
        labels = {REQUESTER: "requester", **{each["name"]: "responder" for each in declared}}
        labels = {key: value for key, value in labels.items() if key != IMPERATIVE}
        self._api.create(
            self._folder,
            {
                "apiVersion": "lifecycle.k8s.io/v1alpha1",
                "kind": "Eviction",
                "metadata": {"name": name, "labels": labels},
                "spec": {"target": target},
            },
        )
        responders = [*declared, {"name": IMPERATIVE, "priority": 100}]
        states = ["Active", *["Inactive"] * (len(responders) - 1)]
        self._write(
            name,
            requesters=[{"name": REQUESTER, "intent": "Eviction"}],
            targetResponders=[{**each, "state": state} for each, state in zip(responders, states, strict=True)],
            responders=[
                {"name": each["name"], **({"startTime": now()} if state == "Active" else {})}
                for each, state in zip(responders, states, strict=True)
            ],
        )

    def cancel(self, pod: Object) -> None:
        """Ends the eviction because nobody requests it any more."""
        name = pod["metadata"]["name"]
        self._end(
            name, "Canceled", kind="Failed", reason="CanceledDueToNoRequesters", requesters=[{"name": REQUESTER, "intent": "Withdrawn"}]
        )

    def conclude(self, pod: Object) -> None:
        """Ends the eviction because its pod is gone."""
        self._end(pod["metadata"]["name"], "Completed", kind="TargetEvicted", reason="PodDeleted")

    def responder(self, pod: Object) -> Object:
        """What Muster has written about its part."""
        responders = self._status(pod["metadata"]["name"])["responders"]
        return next(dict(each) for each in responders if each["name"] == RESPONDER)

    def _end(self, name: str, state: str, *, kind: str, reason: str, **changes: Any) -> None:
        targets = self._status(name)["targetResponders"]
        ended = [{**each, "state": state} if each["state"] == "Active" else each for each in targets]
        condition = {"type": kind, "status": "True", "reason": reason, "message": "", "lastTransitionTime": now()}
        self._write(name, targetResponders=ended, conditions=[condition], **changes)

    def _status(self, name: str) -> Object:
        return dict(self._api.get(f"{self._folder}/{name}").get("status") or {})

    def _write(self, name: str, **changes: Any) -> None:
        self._api.replace_status(f"{self._folder}/{name}", lambda status: {**status, **changes})
