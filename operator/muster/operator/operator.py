"""The operator: its parts, built in the order of their dependencies, and its life from start to end.

Every operator lists and watches jobs and pods, and takes part in the election. `leading.Leader` has the parts that only the leader runs.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from muster.api.constants import JOB_NAME_LABEL
from muster.channel.certificate import new_certificate
from muster.channel.reports import Reports
from muster.channel.tokens import Readers
from muster.control.job_store import Store
from muster.control.listing import correct_caches
from muster.kubernetes.api_server import Requests
from muster.kubernetes.election import Election, Lease, Times
from muster.kubernetes.event_recorder import EventRecorder
from muster.kubernetes.queue import WorkQueue
from muster.kubernetes.resync import Resync
from muster.kubernetes.watches import Watch
from muster.lifecycle.tracing import Tracing
from muster.operator import kopf_runtime
from muster.operator.cache_updates import CacheUpdates
from muster.operator.configuration import Configuration, OperatorPod
from muster.operator.gateway import Gateway, connected
from muster.operator.health import Availability, Health, Probes
from muster.operator.leading import Leader, Parts, channel_certificate
from muster.operator.metrics.counters import Metrics
from muster.operator.metrics.gauges import Gauges
from muster.operator.webhook import Webhook

DRAIN_SECONDS = 15.0
LAST_EVENTS_SECONDS = 2.0
FREEZE_AFTER_SECONDS = 15.0  # by then the watches have delivered thousands of jobs

log = logging.getLogger("muster.operator")


class Operator:
    """One process of the operator. `run` ends when it is stopped, or when another operator leads."""

    def __init__(
        self,
        configuration: Configuration,
        pod: OperatorPod,
        gateway: Gateway,
        *,
        parts: Parts,
        election: Election,
        availability: Availability,
    ) -> None:
        self._configuration = configuration
        self._pod = pod
        self._gateway = gateway
        self._parts = parts
        self._election = election
        self._availability = availability
        self._updates = CacheUpdates(parts.store, parts.queue)
        self._resync = Resync(self._correct_caches, now=parts.now, seconds=configuration.resync_seconds)
        self._health = Health(
            queue=parts.queue, store=parts.store, availability=availability, is_listed=self._is_listed, lacks_channel=self._lacks_channel
        )
        self._probes = Probes(sick=self._health.sick, unready=self._health.unready, metrics=parts.metrics, may_read=Readers(gateway).check)
        self._leader: Leader | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = asyncio.Event()
        parts.metrics.register(
            Gauges(parts, leader=lambda: self._leader, holds_lease=lambda: election.valid, listed_at=lambda: self._resync.last)
        )

    async def run(self) -> None:
        """Runs from the first probe to the release of the lease. Raises OSError if a port is taken, and the errors of kopf."""
        # No client verifies this certificate. It keeps the tokens of the readers secret.
        context = new_certificate(f"metrics.{self._pod.namespace}.svc", self._parts.now()).context()
        await self._probes.start(self._configuration.health.port, self._configuration.metrics.port, context)
        electing = asyncio.create_task(self._election.run(self._connect_election(), self._candidate), name="election")
        electing.add_done_callback(lambda _: self._ending.set())
        try:
            await self._resync.until_listed()
            await kopf_runtime.run(start=self._start, stop=self._stop, stop_flag=self._ending, namespaces=self._configuration.namespaces)
        finally:
            electing.cancel()
            with suppress(asyncio.CancelledError):
                await electing
            await self._probes.stop()

    @property
    def superseded(self) -> bool:
        """Whether this operator ended because another operator leads."""
        return self._election.lost

    async def _correct_caches(self) -> None:
        parts = self._parts
        await correct_caches(self._gateway, parts.store, queue=parts.queue, now=parts.now, publish=parts.recorder.publish)

    def _is_listed(self) -> bool:
        return self._resync.last is not None

    def _lacks_channel(self) -> bool:
        return self._election.valid and self._leader is None

    def _connect_election(self) -> Callable[[], AbstractAsyncContextManager[Requests]]:
        """The connection of the election. It runs in its own thread, so its requests are recorded through this event loop."""
        loop = asyncio.get_running_loop()

        def record(verb: str, status: int) -> None:
            loop.call_soon_threadsafe(self._availability.record, verb, status)

        return lambda: connected(on_request=record)

    def _candidate(self, requests: Requests) -> Lease:
        settings, pod = self._configuration.leader_election, self._pod
        times = Times(float(settings.lease_seconds))
        return Lease(requests, pod.namespace, name=settings.lease_name, identity=pod.name, times=times, ready=self._is_listed)

    async def _start(self) -> None:
        self._spawn(self._resync.run())
        for watch in self._watches():
            self._spawn(watch.run())
        self._spawn(self._lead())
        asyncio.get_running_loop().call_later(FREEZE_AFTER_SECONDS, _freeze)

    async def _lead(self) -> None:
        await self._election.won.wait()
        certificate = await channel_certificate(self._gateway, self._configuration, self._pod, self._parts.now)
        self._leader = Leader(self._configuration, self._pod, self._gateway, parts=self._parts, certificate=certificate)
        await self._leader.run()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` for as long as the operator runs. The operator ends when it ends."""
        task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._ending.set())
        self._tasks.append(task)

    def _watches(self) -> Iterator[Watch]:
        for path in self._gateway.job_folders:
            yield Watch(self._gateway, path, on_change=self._updates.job, on_gap=self._resync.soon)
        for plural, update in (("pods", self._updates.pod), ("services", self._updates.service)):
            for path in self._gateway.folders("v1", plural):
                yield Watch(self._gateway, path, on_change=update, on_gap=self._resync.soon, labels=JOB_NAME_LABEL)

    async def _stop(self) -> None:
        self._ending.set()  # kopf would otherwise wait five seconds for the task that waits for this flag
        await self._parts.queue.drain(DRAIN_SECONDS)
        recorders = [each for each in (self._parts.recorder, self._parts.webhook) if each is not None]
        await asyncio.gather(*(each.finish(LAST_EVENTS_SECONDS) for each in recorders))
        for task in self._tasks:
            task.cancel()
        if self._leader is not None:
            await self._leader.stop()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                log.error("the operator ends because one of its parts failed", exc_info=outcome)


@asynccontextmanager
async def assembled(
    configuration: Configuration, pod: OperatorPod, *, tracing: Tracing | None = None, webhook: Webhook | None = None
) -> AsyncIterator[Operator]:
    """An operator that is ready to run, connected to the API server."""
    metrics = Metrics()
    queue = WorkQueue(metrics, workers=configuration.workers)
    availability = Availability(metrics, queue.retry_now)
    election = Election()
    async with connected(
        tuple(configuration.namespaces),
        policies=configuration.network_policy.enabled,
        on_request=availability.record,
        may_write=lambda: election.valid,
    ) as gateway:
        parts = Parts(
            Store(time.monotonic, _now),
            Reports(),
            queue=queue,
            recorder=EventRecorder(gateway.create, calm=queue.calm),
            webhook=EventRecorder(webhook.post, calm=queue.calm) if webhook else None,
            metrics=metrics,
            now=_now,
            tracing=tracing,
        )
        parts.store.on_pod_deleted(parts.reports.forget)
        yield Operator(configuration, pod, gateway, parts=parts, election=election, availability=availability)


def _freeze() -> None:
    """Excludes the cached jobs from garbage collection: with 5,000 of them each collection takes 0.15 s."""
    gc.collect()
    gc.freeze()


def _now() -> datetime:
    return datetime.now(UTC)
