"""The coordination channel in a cluster: who a token stands for, where the leader is found, and which news a pass should look at soon.

HTTPS, with the certificate of `muster.kubernetes.certificate`. A token is of audience `muster`, opens nothing but this channel for this one
pod, and dies with the pod.
"""

from __future__ import annotations

import hashlib
import logging
import random
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from muster.api.job import TrainingJob
from muster.api.reports import Reply, Report
from muster.control.cluster import Object
from muster.control.coordination import Channel, coordination_app
from muster.control.errors import ClusterError, NotFoundError
from muster.control.orders import orders
from muster.control.queue import WorkQueue
from muster.control.reconciler import CALM_SECONDS
from muster.control.reports import Reports
from muster.control.store import Store
from muster.kubernetes.leader import Requests
from muster.render.addresses import addresses_of

AUDIENCE = "muster"
GATHER_SECONDS = 0.05  # how long the words of supervisors that wait are gathered: a recovery hangs on them
PROGRESS_SECONDS = 5.0  # news that are only further steps may wait so long
_KNOWN_SECONDS = 600.0  # a pod that is gone is known to the store no more, and its token opens nothing
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

    def __init__(
        self, requests: Requests, store: Store, *, queue: WorkQueue, reports: Reports, admit: Callable[[Object], TrainingJob]
    ) -> None:
        self._store = store
        self._admit = admit
        self._queue = queue
        self._reports = reports
        self._told: dict[str, tuple[Any, ...]] = {}
        channel = Channel(
            reports=reports,
            identify=Tokens(requests).identify,
            orders_of=self._orders_of,
            wake=self._wake,
            now=lambda: datetime.now(UTC),
            random=random.random,
        )
        self._server = web.AppRunner(coordination_app(channel), access_log=None, shutdown_timeout=1.0)

    async def start(self, port: int, context: ssl.SSLContext) -> None:
        await self._server.setup()
        await web.TCPSite(self._server, None, port, ssl_context=context).start()

    async def stop(self) -> None:
        await self._server.cleanup()

    def _orders_of(self, uid: str, report: Report) -> Reply | None:
        key = self._store.key_of_pod(uid)
        obj = self._store.job(key) if key else None
        if obj is None:
            return None
        attempt = int((obj.get("status") or {}).get("attempt", 0))
        if report.attempt == attempt and not report.waiting:  # as nearly always: nothing to be told, and no job to be read for it
            return Reply(attempt=attempt)
        job = self._admit(obj)
        return orders(job, uid, report, addresses_of(job, attempt))

    def _wake(self, uid: str) -> None:
        key, received = self._store.key_of_pod(uid), self._reports.of(uid)
        if key is None or received is None:
            return
        report = received.report
        told = _milestones(report)
        fresh = self._told.get(uid) != told
        self._told[uid] = told
        if report.waiting:
            self._queue.add_after(key, GATHER_SECONDS)
        else:
            self._queue.add_after(key, CALM_SECONDS if fresh else PROGRESS_SECONDS)

    def forget(self, uid: str) -> None:
        """The pod is no more."""
        self._told.pop(uid, None)


def _milestones(report: Report) -> tuple[Any, ...]:
    """What of a report changes more than figures."""
    started = report.progress is not None and report.progress.step > 0
    return (
        report.attempt,
        report.waiting,
        started,
        report.phase,
        report.checkpoint,
        report.resumed,
        report.last_words,
        tuple(report.notices),
    )


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
