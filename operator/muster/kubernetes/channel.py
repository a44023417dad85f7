"""The coordination channel in a cluster: who a token stands for, where the leader is found, and which news a pass should look at soon.

Plain HTTP: a token is of audience `muster`, opens nothing but this channel for this one pod, and dies with the pod.
"""

from __future__ import annotations

import hashlib
import logging
import random
import time
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from muster.api.reports import Report
from muster.control.cluster import Object
from muster.control.coordination import Channel, coordination_app
from muster.control.errors import ClusterError, NotFoundError
from muster.control.queue import WorkQueue
from muster.control.reconciler import CALM_SECONDS
from muster.control.reports import Reports
from muster.control.store import Store
from muster.kubernetes.leader import Requests

AUDIENCE = "muster"
PROGRESS_SECONDS = 5.0  # news that are only further steps may wait so long
_KNOWN_SECONDS = 60.0
_UNKNOWN_SECONDS = 5.0
_TOKENS_KEPT = 20_000
_POD_UID = "authentication.kubernetes.io/pod-uid"

log = logging.getLogger("muster.channel")


class Tokens:
    """Whose token is it? Asks the API server (TokenReview), and remembers the answer for a while."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._known: OrderedDict[bytes, tuple[str | None, float]] = OrderedDict()

    async def identify(self, token: str) -> str | None:
        """uid of the pod that the token was made for; None where it is not good, or the API server does not say."""
        digest = hashlib.sha256(token.encode()).digest()
        uid, until = self._known.get(digest, (None, 0.0))
        if time.monotonic() < until:
            return uid
        try:
            uid = await self._review(token)
        except ClusterError as error:
            log.warning("a token cannot be reviewed: %s", error)
            return None
        self._known[digest] = (uid, time.monotonic() + (_KNOWN_SECONDS if uid else _UNKNOWN_SECONDS))
        self._known.move_to_end(digest)
        while len(self._known) > _TOKENS_KEPT:
            self._known.popitem(last=False)
        return uid

    async def _review(self, token: str) -> str | None:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [AUDIENCE]},
        }
        answer = await self._requests.request("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body=body)
        status: Object = answer.get("status") or {}
        if not status.get("authenticated") or AUDIENCE not in status.get("audiences", ()):
            return None
        uids = (status.get("user", {}).get("extra") or {}).get(_POD_UID) or [None]
        return str(uids[0]) if uids[0] else None


class ClusterChannel:
    """Serves reports from `start` to `stop`."""

    def __init__(self, requests: Requests, store: Store, *, queue: WorkQueue, reports: Reports) -> None:
        self._store = store
        self._queue = queue
        self._reports = reports
        self._told: dict[str, tuple[Any, ...]] = {}
        channel = Channel(
            reports=reports,
            identify=Tokens(requests).identify,
            attempt_of=self._attempt_of,
            wake=self._wake,
            now=lambda: datetime.now(UTC),
            random=random.random,
        )
        self._server = web.AppRunner(coordination_app(channel), access_log=None, shutdown_timeout=1.0)

    async def start(self, port: int) -> None:
        await self._server.setup()
        await web.TCPSite(self._server, None, port).start()

    async def stop(self) -> None:
        await self._server.cleanup()

    def _attempt_of(self, uid: str) -> int | None:
        key = self._store.key_of_pod(uid)
        job = self._store.job(key) if key else None
        return int((job.get("status") or {}).get("attempt", 0)) if job else None

    def _wake(self, uid: str) -> None:
        key, received = self._store.key_of_pod(uid), self._reports.of(uid)
        if key is None or received is None:
            return
        told = _milestones(received.report)
        fresh = self._told.get(uid) != told
        self._told[uid] = told
        self._queue.add_after(key, CALM_SECONDS if fresh else PROGRESS_SECONDS)

    def forget(self) -> None:
        """Forgets pods that are no more."""
        self._told = {uid: told for uid, told in self._told.items() if self._store.key_of_pod(uid)}


def _milestones(report: Report) -> tuple[Any, ...]:
    """What of a report changes more than figures."""
    started = report.progress is not None and report.progress.step > 0
    return report.attempt, started, report.phase, report.checkpoint, report.resumed, report.last_words, tuple(report.notices)


async def lead_here(requests: Requests, namespace: str, *, service: str, address: str, port: int) -> None:
    """Points the selector-less Service at this process. Raises ClusterError."""
    path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    slice_: Object = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": service,
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": service, "endpointslice.kubernetes.io/managed-by": "muster"},
        },
        "addressType": "IPv6" if ":" in address else "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [{"name": "coordination", "port": port, "protocol": "TCP"}],
    }
    try:
        known = await requests.request("GET", f"{path}/{service}")
    except NotFoundError:
        await requests.request("POST", path, body=slice_)
        return
    slice_["metadata"]["resourceVersion"] = known["metadata"]["resourceVersion"]
    await requests.request("PUT", f"{path}/{service}", body=slice_)
