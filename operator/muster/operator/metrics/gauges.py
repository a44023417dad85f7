"""The gauges of the operator, read when Prometheus scrapes. Only the leader counts jobs, so that a sum over all operators counts each job
once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from muster.operator.leading import Leader, Parts
from muster.operator.metrics import families
from muster.operator.metrics.counters import QUEUE_NAME
from muster.operator.metrics.families import FAMILIES, Family
from muster.operator.metrics.job_series import Sample, samples


class Gauges(Collector):
    """`leader` returns None on a standby operator, and `listed_at` the time of the last complete listing."""

    def __init__(
        self,
        parts: Parts,
        *,
        leader: Callable[[], Leader | None],
        holds_lease: Callable[[], bool],
        listed_at: Callable[[], datetime | None],
    ) -> None:
        self._parts = parts
        self._leader = leader
        self._holds_lease = holds_lease
        self._listed_at = listed_at

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return ()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        metrics: dict[Family, GaugeMetricFamily] = {}
        for family, labels, value in self._samples():
            if family not in metrics:
                metrics[family] = GaugeMetricFamily(family.name, family.meaning, labels=family.labels)
            metrics[family].add_metric(labels, value)
        return [metrics[family] for family in FAMILIES if family in metrics]

    def _samples(self) -> Iterable[Sample]:
        parts, leader, listed_at = self._parts, self._leader(), self._listed_at()
        yield families.LEADER, (), float(self._holds_lease())
        yield families.QUEUE_DEPTH, (QUEUE_NAME,), float(parts.queue.depth)
        yield families.FAILING, (), float(parts.queue.failing)
        yield families.SUPERVISORS, (), float(len(parts.reports))
        yield families.RESYNC_TIME, (), listed_at.timestamp() if listed_at else 0.0
        yield families.CONNECTIONS, (), float(leader.connections if leader else 0)
        if leader:
            yield from samples(parts.store)
