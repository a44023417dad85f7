"""The counters and durations of the operator, on `prometheus_client`. `families` defines their names."""

from __future__ import annotations

from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics, generate_latest
from prometheus_client.registry import Collector

from muster.api.status import Phase, TrainingJobStatus
from muster.lifecycle.changes import AttemptChange, attempt_changes
from muster.operator.metrics import families
from muster.operator.metrics.families import Family
from muster_contract.codes import FailureClass

disable_created_metrics()  # type: ignore[no-untyped-call] # they double the series of counters, and dashboards do not use them

QUEUE_NAME = "trainingjobs"
"""The label `name` of the work queue. Other controllers have queues with the same metrics."""


class Metrics:
    """Counters and durations that the operator adds to. It is the `Observer` of the work queue."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._queue_wait = self._histogram(families.QUEUE_WAIT).labels(QUEUE_NAME)
        self._queue_work = self._histogram(families.QUEUE_WORK).labels(QUEUE_NAME)
        self._job_queue = self._histogram(families.JOB_QUEUE)
        self._pass_errors = self._counter(families.PASS_ERRORS)
        self._failures = self._counter(families.FAILURES)
        self._restarts = self._counter(families.RESTARTS)
        self._recoveries = self._counter(families.RECOVERIES)
        self._recovery_seconds = self._counter(families.RECOVERY_SECONDS)
        self._steps_lost = self._counter(families.STEPS_LOST)
        self._ended = self._counter(families.ENDED)
        self._device_seconds = self._counter(families.DEVICE_SECONDS)
        self._cost = self._counter(families.COST)
        self._requests = self._counter(families.REQUESTS)
        self._refusals = self._counter(families.REFUSALS)
        build = Gauge(families.BUILD_INFO.name, families.BUILD_INFO.meaning, families.BUILD_INFO.labels, registry=self._registry)
        build.labels(version("muster-training")).set(1)
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        """Creates the series that `increase()` must see before their first event."""
        for failure_class in FailureClass:
            for counter in (self._restarts, self._recoveries, self._steps_lost):
                counter.labels(failure_class.value)
        for phase in (Phase.SUCCEEDED, Phase.FAILED):
            self._ended.labels(phase.value)

    def register(self, collector: Collector) -> None:
        """Adds metrics that are read when Prometheus scrapes."""
        self._registry.register(collector)

    def page(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def waited(self, seconds: float) -> None:
        self._queue_wait.observe(seconds)

    def worked(self, seconds: float) -> None:
        self._queue_work.observe(seconds)

    def failed(self, key: str, error: Exception, delay: float) -> None:
        self._pass_errors.labels(type(error).__name__).inc()

    def count_request(self, verb: str, status: int) -> None:
        """Counts an answer of the API server with this status. 0 means no answer."""
        self._requests.labels(verb, str(status)).inc()

    def count_refusal(self, reason: str) -> None:
        """Counts a refused report or connection of the channel."""
        self._refusals.labels(reason).inc()

    def count_change(self, old: TrainingJobStatus, new: TrainingJobStatus) -> None:
        """Counts what a written status adds: failures, restarts, recoveries, the first start and the end."""
        for change in attempt_changes(old, new):
            self._count_attempt(change)
        self._count_usage(old, new)
        if new.start_time and not old.start_time:
            self._job_queue.observe(new.goodput.queued_seconds if new.goodput else 0.0)
        if new.phase.final and not old.phase.final:
            self._ended.labels(new.phase.value).inc()

    def _count_usage(self, old: TrainingJobStatus, new: TrainingJobStatus) -> None:
        if new.usage is None or new.usage == old.usage:
            return
        before = {(each.capacity_class, each.device): each.seconds for each in (old.usage.devices if old.usage else ())}
        for each in new.usage.devices:
            kind = each.capacity_class, each.device
            self._device_seconds.labels(*kind).inc(max(0.0, each.seconds - before.get(kind, 0.0)))
        self._cost.inc(max(0.0, (new.usage.cost or 0.0) - ((old.usage.cost if old.usage else None) or 0.0)))

    def _count_attempt(self, change: AttemptChange) -> None:
        record, previous = change.record, change.previous
        if record.failure_class and record.end_time and not (change.old and change.old.end_time):
            self._failures.labels(record.failure_class.value, record.reason.value if record.reason else "").inc()
        if previous is None or previous.failure_class is None:
            return
        failure_class = previous.failure_class.value
        if change.old is None:
            self._restarts.labels(failure_class).inc()
        if change.has_recovered and record.phases:
            self._recoveries.labels(failure_class).inc()
            self._steps_lost.labels(failure_class).inc(record.steps_lost or 0)
            for phase, seconds in record.phases.measured.items():
                self._recovery_seconds.labels(failure_class, phase.removesuffix("_seconds")).inc(seconds)

    def _counter(self, family: Family) -> Counter:
        return Counter(family.name, family.meaning, family.labels, registry=self._registry)

    def _histogram(self, family: Family) -> Histogram:
        return Histogram(family.name, family.meaning, family.labels, buckets=family.buckets, registry=self._registry)
