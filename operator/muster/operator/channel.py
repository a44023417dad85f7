"""The coordination channel in a cluster: identifies the pod of a token, points the Service at the leader, and queues jobs with new reports.

The channel uses HTTPS, with the certificate of `muster.channel.certificate`. A token has the audience `muster`. It is valid for this
channel and one pod only, and expires with the pod (`muster.channel.tokens`).
"""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from muster.api.job import TrainingJob
from muster.api.status import FINAL_PHASES
from muster.api.unchecked import mapping
from muster.channel.coordination import Channel, CoordinationServer, RefusedReportError
from muster.channel.pacing import gather_seconds
from muster.channel.replies import notice_in, reply_basis, reply_to
from muster.channel.reports import Reports
from muster.channel.tokens import Tokens
from muster.control.admission import readable_status
from muster.control.job_store import Store
from muster.control.reconciler import CALM_SECONDS
from muster.kubernetes.api_paths import collection, member
from muster.kubernetes.api_server import Requests
from muster.kubernetes.errors import NotFoundError
from muster.kubernetes.objects import Object
from muster.kubernetes.queue import WorkQueue
from muster.lifecycle.policy import DEFAULT_POLICY
from muster.render.addresses import addresses_of
from muster_contract.reports import NodeNotice, ProcessState, Reply, Report, SnapshotServer

GATHER_SECONDS = 0.05  # how long reports of processes that have ended or that are stopped are gathered; a recovery depends on them
PROGRESS_SECONDS = 5.0  # how long reports with progress only are gathered
STANDSTILLS = (DEFAULT_POLICY.shortest_standstill_seconds, DEFAULT_POLICY.standstill_seconds)
"""Seconds without progress after which a replica may have lost a peer. The first value applies if reports come regularly."""


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
        on_refusal: Callable[[str], None] = lambda _: None,
    ) -> None:
        store.on_pod_deleted(self._forget)
        store.on_job_changed(self._job_changed)
        self._store = store
        self._admit = admit
        self._queue = queue
        self._reports = reports
        self._milestones: dict[str, tuple[Any, ...]] = {}
        self._bases: dict[str, object] = {}
        """`reply_basis` of each job."""
        self._tokens = Tokens(requests, lambda uid: self._job_of(uid) is not None)
        channel = Channel(
            reports=reports,
            identify=self._tokens.identify,
            reply_to=self.reply_to,
            wake=self.wake,
            now=lambda: datetime.now(UTC),
            random=random.random,
            left=self._look_at_once,
            refused=on_refusal,
            job_of=lambda uid: store.key_of_pod(uid) or "",
        )
        self._limits = channel.limits
        self._server = CoordinationServer(channel)
        self._listener = self._server.listener

    async def start(self, port: int, context: ssl.SSLContext) -> int:
        """Starts to listen. Returns the port."""
        return await self._listener.start(None, port, context)

    async def stop(self) -> None:
        await self._listener.stop()

    @property
    def connections(self) -> int:
        return self._listener.connections

    def _job_of(self, uid: str) -> Object | None:
        """The job that controls the pod. Its labels prove nothing, because every user who may create pods may set them."""
        child = self._store.child(uid)
        job = self._store.job(child.key) if child is not None else None
        return job if child is not None and job is not None and child.owner == job["metadata"]["uid"] else None

    def reply_to(self, uid: str, report: Report) -> Reply:
        """The reply to a report of the pod with this uid. Raises RefusedReportError if it is no replica of a job."""
        obj = self._job_of(uid)
        if obj is None:
            raise RefusedReportError(404, "pod", f"pod {uid} is not a replica of a job of this operator")
        status = obj.get("status") or {}
        attempt = int(status.get("attempt", 0))
        if report.attempt > attempt + 1 and status.get("attempts"):  # a status without attempts was cleared
            raise RefusedReportError(400, "attempt", f"attempt: {report.attempt} has not begun, the job is at attempt {attempt}")
        if report.attempt == attempt and not report.waiting and not report.inputs and not _is_over(status):
            return Reply(attempt=attempt, grace_seconds=0.0, notice=_notice_of(status))  # the common case: the job need not be parsed
        job = self._admit(obj)
        return reply_to(job, uid, report, addresses_of(job, attempt), server_of=partial(self._snapshot_server, obj))

    def _snapshot_server(self, job: Object, uid: str) -> SnapshotServer | None:
        """Where a pod of this job gives its snapshots. A status may name the pod of another job, because users may write it."""
        return self._reports.snapshot_server_of(uid) if self._job_of(uid) is job else None

    def wake(self, uid: str) -> None:
        """Queues the job of a pod that has reported, sooner if the report has news."""
        key, received = self._store.key_of_pod(uid), self._reports.of(uid)
        if key is None or received is None:
            return
        report = received.report
        milestones = _milestones(report)
        is_new = self._milestones.get(uid) != milestones
        self._milestones[uid] = milestones
        has_stopped = _has_stopped(report)
        if report.waiting or report.termination is not None or (is_new and has_stopped):
            self._look_at_once(uid)
        else:
            self._queue.add_after(key, CALM_SECONDS if is_new or has_stopped else PROGRESS_SECONDS)

    def _look_at_once(self, uid: str) -> None:
        """Queues the job of the pod, with no more delay than needed to gather the changes of a large job."""
        if (key := self._store.key_of_pod(uid)) is not None:
            self._queue.add_after(key, gather_seconds(GATHER_SECONDS, self._store.count(key)))

    def _job_changed(self, key: str) -> None:
        job = self._store.job(key)
        basis = reply_basis(mapping(job.get("status"))) if job is not None else None
        if basis is None or self._bases.get(key) != basis:
            self._server.job_changed(key)
        if basis is None:
            self._bases.pop(key, None)
        else:
            self._bases[key] = basis

    def _forget(self, uid: str) -> None:
        self._milestones.pop(uid, None)
        self._tokens.forget(uid)
        self._limits.forget(uid)


def _notice_of(status: Object) -> NodeNotice | None:
    """The notice that concerns the job, if any, from the small parts of the status that say so."""
    if not status.get("nodeNotices"):
        return None
    return notice_in(readable_status({name: status[name] for name in ("nodeNotices", "conditions") if name in status}))


def _is_over(status: Object) -> bool:
    """Whether the job or its newest attempt has ended, so that supervisors with running processes must end, too."""
    newest = (status.get("attempts") or [{}])[-1]
    return status.get("phase") in FINAL_PHASES or "endTime" in newest


def _has_stopped(report: Report) -> bool:
    return any(process.state is ProcessState.STOPPED for process in report.processes)


def _milestones(report: Report) -> tuple[Any, ...]:
    """The parts of a report that are more than progress."""
    started = report.progress is not None and report.progress.step > 0
    return (
        report.attempt,
        report.waiting,
        started,
        report.phase,
        report.checkpoint,
        report.resumed,
        report.termination,
        report.notices,
        _has_stopped(report),
        tuple(report.idle_seconds is not None and report.idle_seconds >= seconds for seconds in STANDSTILLS),
        tuple(replace(each, bytes=0) for each in report.inputs),
    )


async def lead_here(requests: Requests, namespace: str, *, service: str, address: str, port: int) -> None:
    """Points the selector-less Service at this process. Raises ClusterError."""
    path = collection("discovery.k8s.io/v1", "endpointslices", namespace=namespace)
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
        current = await requests.request("GET", member(path, service))
    except NotFoundError:
        await requests.request("POST", path, body=slice_)
        return
    slice_["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"]
    await requests.request("PUT", member(path, service), body=slice_)
