"""The coordination channel in a cluster: who a token stands for, where the leader is found, and which news a pass should look at soon.

HTTPS, with the certificate of `muster.kubernetes.certificate`. A token has the audience `muster`, opens nothing but this channel for
this one pod, and ends with the pod (`muster.kubernetes.tokens`).
"""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from muster.api.job import TrainingJob
from muster.api.reports import Reply, Report
from muster.control.cluster import Object
from muster.control.coordination import Channel, CoordinationServer, RefusedReportError
from muster.control.errors import NotFoundError
from muster.control.orders import orders
from muster.control.queue import WorkQueue
from muster.control.reconciler import CALM_SECONDS
from muster.control.reports import Reports
from muster.control.store import Store
from muster.kubernetes.leader import Requests
from muster.kubernetes.tokens import Tokens
from muster.render.addresses import addresses_of

GATHER_SECONDS = 0.05  # how long the words of supervisors that wait are gathered: a recovery hangs on them
PROGRESS_SECONDS = 5.0  # news that are only further steps may wait so long


class ClusterChannel:
    """Serves reports from `start` to `stop`."""

    def __init__(
        self,
        requests: Requests,
        store: Store,
        *,
        queue: WorkQueue,
        reports: Reports,
        admit: Callable[[Object], TrainingJob],
        refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._admit = admit
        self._queue = queue
        self._reports = reports
        self._told: dict[str, tuple[Any, ...]] = {}
        self._tokens = Tokens(requests, lambda uid: self._job_of(uid) is not None)
        channel = Channel(
            reports=reports,
            identify=self._tokens.identify,
            orders_of=self._orders_of,
            wake=self._wake,
            now=lambda: datetime.now(UTC),
            random=random.random,
            refused=refused,
        )
        self._pace = channel.pace
        self._door = CoordinationServer(channel).door

    async def start(self, port: int, context: ssl.SSLContext) -> int:
        """The port that it listens at."""
        return await self._door.start(None, port, context)

    async def stop(self) -> None:
        await self._door.stop()

    @property
    def connections(self) -> int:
        return self._door.connections

    def _job_of(self, uid: str) -> Object | None:
        """The job that controls the pod. The labels of a pod prove nothing: whoever may create pods may write them."""
        child = self._store.child(uid)
        job = self._store.job(child.key) if child is not None else None
        return job if child is not None and job is not None and child.owner == job["metadata"]["uid"] else None

    def _orders_of(self, uid: str, report: Report) -> Reply:
        obj = self._job_of(uid)
        if obj is None:
            raise RefusedReportError(404, "pod", f"pod {uid} is no replica of a job that this operator runs")
        status = obj.get("status") or {}
        attempt = int(status.get("attempt", 0))
        if report.attempt > attempt + 1 and status.get("attempts"):  # a status that was wiped has none: then the pods know better
            raise RefusedReportError(400, "attempt", f"attempt: {report.attempt} has not begun, the job is at attempt {attempt}")
        if report.attempt == attempt and not report.waiting and not _is_over(status):  # as nearly always: no orders, so no job to read
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
        """The pod is gone."""
        self._told.pop(uid, None)
        self._tokens.forget(uid)
        self._pace.forget(uid)


def _is_over(status: Object) -> bool:
    """Whether the job or its newest attempt has ended, so that supervisors whose processes still run are to end, too."""
    newest = (status.get("attempts") or [{}])[-1]
    return status.get("phase") in ("Succeeded", "Failed") or "endTime" in newest


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
