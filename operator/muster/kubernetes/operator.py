"""The operator, put together: what it has, how it starts and how it ends."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections import Counter as Tally
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import kopf

from muster.api.constants import JOB_NAME_LABEL
from muster.api.status import AttemptRecord
from muster.control.errors import ClusterError, ConflictError, NotFoundError
from muster.control.herald import Herald
from muster.control.metrics import Counter, Gauge, Histogram, Labels, Metric
from muster.control.queue import WorkQueue
from muster.control.reconciler import Reconciler, Surroundings
from muster.control.reports import Reports
from muster.control.resync import Resync
from muster.control.store import Store
from muster.kubernetes.certificate import Certificate, kept, made
from muster.kubernetes.channel import ClusterChannel, lead_here
from muster.kubernetes.configuration import Configuration, Place
from muster.kubernetes.gateway import Gateway, connected
from muster.kubernetes.handlers import Watched, register
from muster.kubernetes.leader import Election, Lease, Requests, Times
from muster.kubernetes.probes import Probes
from muster.kubernetes.tokens import Readers
from muster.kubernetes.watches import Watch
from muster.lifecycle.policy import Policy
from muster.render.environment import Coordinator

DRAIN_SECONDS = 15.0
LAST_EVENTS_SECONDS = 2.0
STUCK_SECONDS = 300.0  # a pass makes a few hundred replicas at most (`carry_out`), and each request ends within 30 s
DEAF_SECONDS = 180.0  # longer than a dead watch stays unnoticed (75 s)
REPOINT_SECONDS = 60.0
CERTIFICATE_SECONDS = 2.0
SETTLED_SECONDS = 15.0  # by then the watches have told of thousands of jobs
AWAY = (0, 502, 503, 504)
"""Statuses that say that nobody answers, or that only somebody in front of the API server does, for want of it."""

log = logging.getLogger("muster.operator")


class QueueFigures:
    """What the queue does, in figures and in the log."""

    def __init__(self) -> None:
        self.wait = Histogram("workqueue_queue_duration_seconds", "How long jobs were due before they were looked at")
        self.work = Histogram("workqueue_work_duration_seconds", "How long passes over jobs took")
        self.failures = Counter("muster_reconcile_errors_total", "Passes over jobs that could not be finished")

    def waited(self, seconds: float) -> None:
        self.wait.observe(seconds)

    def worked(self, seconds: float) -> None:
        self.work.observe(seconds)

    def failed(self, key: str, error: Exception, delay: float) -> None:
        self.failures.add({"error": type(error).__name__})
        if isinstance(error, ConflictError | NotFoundError):  # somebody else was quicker, or the job is gone
            log.debug("%s: %s", key, error)
        elif isinstance(error, ClusterError):
            log.warning("%s: tried again in %.1f s: %s", key, delay, error)
        else:
            log.error("%s: tried again in %.1f s", key, delay, exc_info=error)


class Operator:
    """One process of the operator. `run` ends when it is told to, or when another one leads."""

    def __init__(self, configuration: Configuration, place: Place, gateway: Gateway) -> None:
        self._configuration = configuration
        self._place = place
        self._gateway = gateway
        self._loop = asyncio.get_running_loop()
        self._election = Election(self._connected, self._candidate)
        self._store = Store(time.monotonic, gone=self._forget)
        self._reports = Reports()
        self._restarts = Counter("muster_job_restarts_total", "Restarts of jobs by class of failure")
        self._recoveries = Counter("muster_recoveries_total", "Attempts that did a first step after a failure")
        self._recovering = Counter("muster_recovery_seconds_total", "From failures to the first step after them, by phase")
        self._lost = Counter("muster_steps_lost_total", "Steps that had to be done again")
        self._requests = Counter("muster_api_requests_total", "Requests to the API server by verb and status; 0: no answer")
        self._refused = Counter(
            "muster_channel_refused_total", "Reports and connections of the coordination channel that were refused, by reason"
        )
        self._figures = QueueFigures()
        self._herald = Herald(gateway.create, calm=lambda seconds: self._queue.calm(seconds))
        coordination = configuration.coordination
        self._host = f"{coordination.service}.{place.namespace}.svc"
        self._coordinator = Coordinator(f"https://{self._host}:{coordination.port}")
        self._reconciler = Reconciler(self._surroundings())
        self._queue = WorkQueue(self._reconciler.reconcile, self._figures, workers=configuration.workers, urgent=self._reconciler.recovers)
        self._queue.paused = True
        self._watched = Watched(self._store, self._queue)
        self._resync = Resync(
            gateway, self._store, queue=self._queue, now=_now, seconds=configuration.resync_seconds, tell=self._herald.tell
        )
        self._channel = (
            ClusterChannel(
                gateway,
                self._store,
                queue=self._queue,
                reports=self._reports,
                admit=self._reconciler.job_of,
                refused=lambda reason: self._refused.add({"reason": reason}),
            )
            if place.address
            else None
        )
        self._probes = Probes(sick=self._sick, unready=self._unready, metrics=self._metrics, may_read=Readers(gateway).check)
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = asyncio.Event()
        self._leading = False
        self._answered = True
        gateway.asked = self._asked

    async def run(self) -> None:
        """From the first probe to the release of the lease. Raises OSError where a port is taken, and what kopf fails of."""
        context = made(f"metrics.{self._place.namespace}.svc", _now()).context()  # nobody verifies it: it keeps tokens of readers secret
        await self._probes.start(self._configuration.health.port, self._configuration.metrics.port, context)
        self._gateway.writable = lambda: self._election.valid
        electing = asyncio.create_task(self._election.run(), name="election")
        electing.add_done_callback(lambda _: self._ending.set())
        try:
            await self._resync.until_listed()
            await self._watch()
        finally:
            electing.cancel()
            with suppress(asyncio.CancelledError):
                await electing
            await self._probes.stop()

    @property
    def superseded(self) -> bool:
        """Whether it ended because another one leads."""
        return self._election.lost

    async def _watch(self) -> None:
        registry = kopf.OperatorRegistry()
        register(registry)
        memo = kopf.Memo(start=self._start, stop=self._stop)
        namespaces = self._configuration.namespaces
        where = {"namespaces": namespaces} if namespaces else {"clusterwide": True}
        await kopf.operator(registry=registry, memo=memo, standalone=True, stop_flag=self._ending, **where)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Requests]:
        """For the thread of the election. What it asks for is counted here."""

        def asked(verb: str, status: int) -> None:
            self._loop.call_soon_threadsafe(self._asked, verb, status)

        async with connected((), policies=False) as gateway:
            gateway.asked = asked
            yield gateway

    def _candidate(self, requests: Requests) -> Lease:
        settings, place = self._configuration.leader_election, self._place
        times = Times(float(settings.lease_seconds))
        return Lease(requests, place.namespace, name=settings.lease_name, identity=place.pod, times=times, ready=self._listed)

    def _listed(self) -> bool:
        return self._resync.last is not None

    async def _start(self) -> None:
        """A standby caches all that a leader does: whoever leads next looks at once at what it knows."""
        self._spawn(self._resync.run())
        for watch in self._watches():
            self._spawn(watch.run())
        self._spawn(self._lead())
        asyncio.get_running_loop().call_later(SETTLED_SECONDS, _settle)

    async def _lead(self) -> None:
        await self._election.won.wait()
        if self._channel is not None:
            certificate = await self._certificate()
            self._coordinator.authority = certificate.certificate
            await self._channel.start(self._configuration.coordination.port, certificate.context())
            self._spawn(self._stay_reachable())
        self._leading = True
        self._queue.paused = False
        for key in self._store.keys:
            self._queue.add(key)
        self._queue.start()
        await self._herald.run()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """For work that goes on as long as the operator does, which cannot do without it."""
        task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._ending.set())
        self._tasks.append(task)

    def _watches(self) -> Iterator[Watch]:
        for path in self._gateway.job_folders:
            yield Watch(self._gateway, path, hear=self._watched.job, lost=self._resync.soon)
        for plural, hear in (("pods", self._watched.pod), ("services", self._watched.service)):
            for path in self._gateway.folders("/api/v1", plural):
                yield Watch(self._gateway, path, hear=hear, lost=self._resync.soon, labels=JOB_NAME_LABEL)

    async def _stop(self) -> None:
        self._ending.set()  # what kopf has waiting for it would hold up its end for five seconds
        await self._queue.drain(DRAIN_SECONDS)
        await self._herald.finish(LAST_EVENTS_SECONDS)
        for task in self._tasks:
            task.cancel()
        if self._channel is not None:
            await self._channel.stop()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                log.error("the operator ends, since it cannot do without what failed", exc_info=outcome)

    async def _certificate(self) -> Certificate:
        """However long it takes: without it no pod that is made could report. Meanwhile the operator is not ready."""
        secret, namespace = self._configuration.coordination.secret, self._place.namespace
        while True:
            try:
                return await kept(self._gateway, namespace, secret=secret, host=self._host, now=_now())
            except ClusterError as error:
                log.warning(
                    "no certificate for the coordination channel: Secret %s/%s, which comes with the chart: %s", namespace, secret, error
                )
                await asyncio.sleep(CERTIFICATE_SECONDS)

    async def _stay_reachable(self) -> None:
        """Keeps the coordinator's Service pointed here, whatever others do to it."""
        coordination = self._configuration.coordination
        while True:
            try:
                await lead_here(
                    self._gateway, self._place.namespace, service=coordination.service, address=self._place.address, port=coordination.port
                )
            except ClusterError as error:
                log.warning("supervisors cannot be led here: %s", error)
            await asyncio.sleep(REPOINT_SECONDS)

    def _surroundings(self) -> Surroundings:
        return Surroundings(
            cluster=self._gateway,
            store=self._store,
            reports=self._reports,
            images=self._configuration.all_images(),
            now=_now,
            defaults=self._configuration.defaults(),
            coordinator=self._coordinator if self._place.address else None,
            job_policy=self._configuration.job_policy,
            policies=self._configuration.network_policy.enabled,
            policy=Policy(controller=self._configuration.controller),
            again=lambda key: self._queue.add(key),
            tell=self._herald.tell,
            restarted=lambda failure_class: self._restarts.add({"class": failure_class}),
            recovered=self._recovered,
        )

    def _forget(self, uid: str) -> None:
        """A pod is gone: nobody reports of it any more, and who counts supervisors counts those that are left."""
        self._reports.forget(uid)
        if self._channel is not None:
            self._channel.forget(uid)

    def _asked(self, verb: str, status: int) -> None:
        """A request was answered; where the API server was away until now, what failed meanwhile is tried again at once."""
        self._requests.add({"verb": verb, "status": str(status)})
        answered = status not in AWAY
        if answered and not self._answered:
            self._queue.retry_now()
        self._answered = answered

    # probes

    def _sick(self) -> str | None:
        """What only a restart cures."""
        stuck = self._queue.longest_work()
        if stuck > STUCK_SECONDS:
            return f"a pass over a job has taken {stuck:.0f} s"
        if self._answered and self._store.silence() > DEAF_SECONDS:
            return f"what was written {self._store.silence():.0f} s ago has not come back on a watch"
        return None

    def _unready(self) -> str | None:
        """A standby is ready once it has cached all jobs and pods; a leader when supervisors can reach it as well."""
        if not self._answered:
            return "the API server does not answer"
        if not self._listed():
            return "jobs and pods are being listed"
        if self._election.valid and self._channel is not None and not self._coordinator.authority:
            return "the coordination channel has no certificate yet"
        return None

    def _metrics(self) -> Sequence[Metric]:
        return (
            Gauge("muster_leader", "Whether this operator leads", lambda: float(self._election.valid)),
            Gauge("muster_jobs", "Jobs by phase", self._phases),
            Gauge("workqueue_depth", "Jobs that are due", lambda: float(self._queue.depth)),
            Gauge("muster_failing_jobs", "Jobs whose last pass could not be finished", lambda: float(self._queue.failing)),
            Gauge("muster_supervisors", "Pods whose supervisors report", lambda: float(len(self._reports))),
            Gauge("muster_unreadable_objects", "Objects that cannot be read, and are ignored until they are corrected", self._unreadable),
            Gauge("muster_resync_timestamp_seconds", "When everything was last listed", self._last_resync),
            self._figures.wait,
            self._figures.work,
            self._figures.failures,
            self._restarts,
            self._recoveries,
            self._recovering,
            self._lost,
            self._requests,
            self._refused,
            Gauge("muster_channel_connections", "Open connections of the coordination channel", self._connections),
            Gauge("muster_job_goodput_ratio", "Productive share of the life of jobs that have not ended", self._goodput),
        )

    def _recovered(self, record: AttemptRecord) -> None:
        self._recoveries.add({})
        self._lost.add({}, record.steps_lost or 0)
        for name, seconds in (record.phases.known if record.phases else {}).items():
            self._recovering.add({"phase": name.removesuffix("_seconds")}, seconds)

    def _goodput(self) -> dict[Labels, float]:
        found: dict[Labels, float] = {}
        for key in self._store.keys if self._leading else ():
            status = (self._store.job(key) or {}).get("status", {})
            namespace, _, name = key.partition("/")
            ratio = (status.get("goodput") or {}).get("ratio")  # absent: the program reports no steps, so it is not known
            if ratio is not None and status.get("phase") not in ("Succeeded", "Failed"):
                found[("job", name), ("namespace", namespace)] = float(ratio)
        return found

    def _unreadable(self) -> dict[Labels, float]:
        found = self._store.unreadable if self._leading else ()
        return {(("kind", each.kind), ("name", each.name), ("namespace", each.namespace)): 1.0 for each in found}

    def _connections(self) -> float:
        return float(self._channel.connections) if self._channel is not None else 0.0

    def _last_resync(self) -> float:
        return self._resync.last.timestamp() if self._resync.last else 0.0

    def _phases(self) -> dict[Labels, float]:
        if not self._leading:  # a standby knows the same jobs, and sums over all operators must count each once
            return {}
        tally = Tally((self._store.job(key) or {}).get("status", {}).get("phase", "Pending") for key in self._store.keys)
        return {(("phase", phase),): float(count) for phase, count in tally.items()}


def _settle() -> None:
    """Thousands of finished jobs are not to be searched for cycles again and again: with 5,000 each search takes 0.15 s."""
    gc.collect()
    gc.freeze()


def _now() -> datetime:
    return datetime.now(UTC)
