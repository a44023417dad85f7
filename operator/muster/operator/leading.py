"""The parts that only the leader runs: passes over jobs, the channel of the supervisors, and Events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from muster.acceptance.presets import Presets
from muster.api.constants import JOB_NAME_LABEL
from muster.channel.certificate import Certificate, load_or_create
from muster.channel.reports import Reports
from muster.control.capacity import NodeClasses
from muster.control.dependencies import Dependencies
from muster.control.gangs import Gangs
from muster.control.job_store import Store
from muster.control.node_notices import NodeNotices
from muster.control.positions import Positions
from muster.control.queues import Kueue
from muster.control.reconciler import Reconciler
from muster.kubernetes.api_paths import collection
from muster.kubernetes.errors import ClusterError, RefusedError
from muster.kubernetes.event_recorder import EventRecorder
from muster.kubernetes.objects import Object
from muster.kubernetes.queue import WorkQueue
from muster.kubernetes.watches import Watch
from muster.lifecycle.policy import Policy
from muster.lifecycle.tracing import Tracing
from muster.operator.channel import ClusterChannel, lead_here
from muster.operator.configuration import Configuration, OperatorPod
from muster.operator.discovery import (
    NODE_CLAIMS,
    kueue_version,
    positions_version,
    served_gang_schedulers,
    served_versions,
    serves_node_claims,
)
from muster.operator.gateway import Gateway
from muster.operator.metrics.counters import Metrics
from muster.operator.stored_versions import migrate
from muster.operator.webhook import is_sent
from muster.render.environment import Coordinator
from muster.render.kueue_versions import PLURAL, api_version

REPOINT_SECONDS = 60.0
CERTIFICATE_RETRY_SECONDS = 2.0
DISCOVERY_RETRY_SECONDS = 1.0
LONGEST_WAIT_FOR_NODES = timedelta(seconds=30)
PRESETS_SECONDS = 10.0
"""How often the presets are listed. A change has an effect at the next start of a world, so a watch would not make it faster."""

log = logging.getLogger("muster.operator")


@dataclass(frozen=True)
class Parts:
    """The parts that a standby operator and the leader share. A standby operator fills the store, so that it can act as soon as it
    leads."""

    store: Store
    reports: Reports
    queue: WorkQueue
    recorder: EventRecorder
    metrics: Metrics
    now: Callable[[], datetime]
    tracing: Tracing | None = None
    webhook: EventRecorder | None = None
    """Sends messages to the webhook."""

    def publish(self, event: Object) -> None:
        """Sends an Event to the API server, and to the webhook if it gets such Events."""
        self.recorder.publish(event)
        if self.webhook is not None and is_sent(event):
            self.webhook.publish(event)


class Leader:
    """`certificate` is that of the channel. It is None if this operator has no address, so that supervisors cannot reach it."""

    def __init__(
        self, configuration: Configuration, pod: OperatorPod, gateway: Gateway, *, parts: Parts, certificate: Certificate | None
    ) -> None:
        self._configuration = configuration
        self._pod = pod
        self._gateway = gateway
        self._parts = parts
        self._certificate = certificate
        self._gangs = Gangs()
        self._kueue = Kueue(enabled=configuration.queueing.kueue.enabled)
        self._kueue_changed = asyncio.Event()
        self._positions = Positions(self._read_pending, enqueue=parts.queue.add) if self._kueue.enabled else None
        self._presets = Presets()
        self._notices = NodeNotices(configuration.node_notices.all_signals(), now=parts.now, changed=self._look_at_jobs_on)
        self._since = parts.now()
        self._classes = NodeClasses(configuration.capacity.known, changed=self._look_at_jobs_on)
        url = f"https://{channel_host(configuration, pod)}:{configuration.coordination.port}"
        self._reconciler = Reconciler(
            Dependencies(
                cluster=gateway,
                store=parts.store,
                reports=parts.reports,
                images=configuration.all_images(),
                now=parts.now,
                defaults=configuration.defaults(),
                presets=self._presets,
                coordinator=Coordinator(url, certificate.certificate) if certificate else None,
                job_policy=configuration.job_policy,
                policies=configuration.network_policy.enabled,
                policy=Policy(controller=configuration.controller),
                gangs=self._gangs,
                kueue=self._kueue,
                positions=self._positions,
                notices=lambda: self._notices.newest,
                capacity_classes=lambda: self._classes.newest,
                classes=configuration.capacity.known,
                knows_nodes=self._knows_nodes,
                enqueue=parts.queue.add,
                publish=parts.publish,
                changed=parts.metrics.count_change,
                tracing=parts.tracing,
            )
        )
        self._channel = ClusterChannel(
            gateway,
            parts.store,
            queue=parts.queue,
            reports=parts.reports,
            admit=self._reconciler.job_of,
            on_refusal=parts.metrics.count_refusal,
        )

    @property
    def connections(self) -> int:
        """Open connections of the channel."""
        return self._channel.connections

    async def run(self) -> None:
        """Runs until it is cancelled. Raises OSError if the port of the channel is taken."""
        queue = self._parts.queue
        queue.open(urgent=self._reconciler.recovers)
        if self._certificate is not None:
            await self._channel.start(self._configuration.coordination.port, self._certificate.context())
        await self._discover()  # without this, jobs would start without a gang
        await self._list_presets()  # without this, jobs with a preset would not be valid
        self._look_at_all_jobs()
        queue.start(self._reconciler.reconcile)
        async with asyncio.TaskGroup() as tasks:
            if self._certificate is not None:
                tasks.create_task(self._stay_reachable())
            tasks.create_task(self._parts.recorder.run())
            if self._parts.webhook is not None:
                tasks.create_task(self._parts.webhook.run())
            tasks.create_task(self._keep_discovering())
            if self._positions is not None:
                tasks.create_task(self._positions.run(lambda: bool(self._kueue.positions_version)))
            tasks.create_task(self._watch_workloads())
            tasks.create_task(self._keep_listing_presets())
            if not self._configuration.namespaces:  # else it has no rights on all objects
                tasks.create_task(migrate(self._gateway))
            if self._configuration.reads_nodes:
                nodes = Watch(self._gateway, collection("v1", "nodes"), on_change=self._node_changed, on_gap=lambda: None)
                tasks.create_task(nodes.run())
            if self._configuration.node_notices.enabled and self._configuration.node_notices.node_claims:
                tasks.create_task(self._watch_node_claims())

    async def _watch_node_claims(self) -> None:
        """Watches the NodeClaims of Karpenter from when the cluster serves them."""
        served = False
        while not served:
            try:
                served = await serves_node_claims(self._gateway)
            except ClusterError as error:
                log.warning("whether the cluster has NodeClaims cannot be read: %s", error)
            if not served:
                await asyncio.sleep(self._configuration.resync_seconds)
        group, version, plural = NODE_CLAIMS
        claims = collection(f"{group}/{version}", plural)
        await Watch(self._gateway, claims, on_change=self._notices.claim, on_gap=lambda: None).run()

    async def _watch_workloads(self) -> None:
        """Watches the Workloads of jobs in the version that Muster uses, and in another one once the cluster serves it."""
        while True:
            self._kueue_changed.clear()
            async with asyncio.TaskGroup() as tasks:
                watches = [tasks.create_task(watch.run()) for watch in self._workloads()]
                await self._kueue_changed.wait()
                for each in watches:
                    each.cancel()

    def _workloads(self) -> list[Watch]:
        """The watches of the Workloads of jobs. A change causes a pass, which reads the Workload."""

        def changed(kind: str, obj: Object) -> None:
            self._parts.queue.add(f"{obj['metadata']['namespace']}/{obj['metadata']['labels'][JOB_NAME_LABEL]}")

        paths = self._gateway.folders(api_version(self._kueue.version), PLURAL) if self._kueue.served else []
        return [Watch(self._gateway, path, on_change=changed, on_gap=self._look_at_all_jobs, labels=JOB_NAME_LABEL) for path in paths]

    async def _read_pending(self, namespace: str, queue: str) -> list[Object]:
        return await self._gateway.read_pending_workloads(namespace, queue, version=self._kueue.positions_version)

    def _look_at_all_jobs(self) -> None:
        for key in self._parts.store.keys_by_need:
            self._parts.queue.add(key)

    def _look_at_jobs_on(self, node: str) -> None:
        for key in self._parts.store.keys_on(node):
            self._parts.queue.add(key)

    def _knows_nodes(self) -> bool:
        """Whether the watch has delivered nodes. If it does not for long, it may have no right to."""
        waits = self._configuration.reads_nodes and not self._classes.are_known
        return not waits or self._parts.now() - self._since > LONGEST_WAIT_FOR_NODES

    def _node_changed(self, kind: str, node: Object) -> None:
        self._classes.node(kind, node)
        if self._configuration.node_notices.enabled:
            self._notices.node(kind, node)

    async def stop(self) -> None:
        await self._channel.stop()

    async def _discover(self) -> None:
        """Finds out which optional APIs the cluster serves. Waits until the API server answers. Jobs get a pass if that changes."""
        groups = self._configuration.gang_scheduling.api_groups
        while True:
            try:
                versions = await served_versions(self._gateway) if groups else {}
                served = await served_gang_schedulers(self._gateway, groups, versions)
                kueue = await kueue_version(self._gateway) if self._kueue.enabled else ""
                self._kueue.positions_version = await positions_version(self._gateway) if kueue else ""
                break
            except RefusedError as error:
                log.warning("jobs are scheduled without a gang, because the operator may not read the API groups: %s", error)
                served, kueue = (), ""
                self._kueue.positions_version = ""
                break
            except ClusterError as error:
                log.warning("the API groups of the cluster cannot be read: %s", error)
                await asyncio.sleep(DISCOVERY_RETRY_SECONDS)
        changed = kueue != self._kueue.version
        self._kueue.version = kueue
        if changed:
            self._kueue_changed.set()
        if self._gangs.replace(served) or changed:
            log.info("gang schedulers of this cluster: %s; Kueue: %s", ", ".join(served) or "none", kueue or "not used")
            self._look_at_all_jobs()

    async def _keep_discovering(self) -> None:
        configuration = self._configuration
        while configuration.gang_scheduling.api_groups or self._kueue.enabled:
            await asyncio.sleep(self._configuration.resync_seconds)
            await self._discover()

    async def _list_presets(self) -> None:
        """Lists the presets of the cluster. Waits until the API server answers. Jobs get a pass if something has changed."""
        while True:
            try:
                changed = self._presets.update(await self._gateway.list_presets())
                break
            except RefusedError as error:
                log.warning("jobs cannot name presets, because the operator may not list them: %s", error)
                changed = False
                break
            except ClusterError as error:
                log.warning("the presets of the cluster cannot be read: %s", error)
                await asyncio.sleep(DISCOVERY_RETRY_SECONDS)
        if changed:
            self._look_at_all_jobs()

    async def _keep_listing_presets(self) -> None:
        while True:
            await asyncio.sleep(PRESETS_SECONDS)
            await self._list_presets()

    async def _stay_reachable(self) -> None:
        """Points the Service of the channel at this pod again and again, in case another client changes it."""
        coordination = self._configuration.coordination
        while True:
            try:
                await lead_here(
                    self._gateway, self._pod.namespace, service=coordination.service, address=self._pod.address, port=coordination.port
                )
            except ClusterError as error:
                log.warning("the Service %s cannot be pointed at this pod: %s", coordination.service, error)
            await asyncio.sleep(REPOINT_SECONDS)


def channel_host(configuration: Configuration, pod: OperatorPod) -> str:
    """The DNS name under which supervisors reach the leader."""
    return f"{configuration.coordination.service}.{pod.namespace}.svc"


async def channel_certificate(
    gateway: Gateway, configuration: Configuration, pod: OperatorPod, now: Callable[[], datetime]
) -> Certificate | None:
    """Waits for the certificate of the channel, because pods that are created without it could not report. None if this pod has no
    address."""
    secret = configuration.coordination.secret
    while pod.address:
        try:
            return await load_or_create(gateway, pod.namespace, secret=secret, host=channel_host(configuration, pod), now=now())
        except ClusterError as error:
            log.warning(
                "no certificate for the coordination channel: Secret %s/%s, which comes with the chart: %s", pod.namespace, secret, error
            )
            await asyncio.sleep(CERTIFICATE_RETRY_SECONDS)
    return None
