"""The parts of the operator together, without an API server."""

from __future__ import annotations

import logging
import sys
import time
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import kopf
import pytest
from prometheus_client.parser import text_string_to_metric_families

from muster.channel.reports import Reports
from muster.control.job_store import Store
from muster.kubernetes.event_recorder import EventRecorder
from muster.kubernetes.objects import Object
from muster.kubernetes.queue import WorkQueue
from muster.operator.__main__ import OneLine
from muster.operator.cache_updates import CacheUpdates
from muster.operator.health import Availability, Health
from muster.operator.kopf_runtime import configure
from muster.operator.leading import Parts
from muster.operator.metrics.counters import Metrics
from muster.operator.metrics.gauges import Gauges
from muster_contract.reports import Report


def pod(index: int) -> dict[str, Any]:
    labels = {"job-name": "digits", "role": "worker", "index": str(index), "attempt": "0"}
    metadata = {"name": f"digits-worker-{index}", "namespace": "default", "uid": f"uid-{index}", "resourceVersion": "7"}
    made = {"creationTimestamp": "2026-11-21T12:00:00Z", "labels": {f"muster.dev/{name}": value for name, value in labels.items()}}
    return {"metadata": {**metadata, **made}}


class Unmeasured:
    def waited(self, seconds: float) -> None: ...

    def worked(self, seconds: float) -> None: ...

    def failed(self, key: str, error: Exception, delay: float) -> None: ...


class Standby:
    """The parts that a standby has, without an API server."""

    def __init__(self, *, listed_at: datetime | None = None) -> None:
        self.queue = WorkQueue(Unmeasured(), workers=1)
        self.store, self.reports, self.metrics = Store(time.monotonic), Reports(), Metrics()
        self.store.on_pod_deleted(self.reports.forget)
        self.updates = CacheUpdates(self.store, self.queue)
        recorder = EventRecorder(self._create, calm=self.queue.calm)
        parts = Parts(self.store, self.reports, queue=self.queue, recorder=recorder, metrics=self.metrics, now=lambda: datetime.now(UTC))
        self.metrics.register(Gauges(parts, leader=lambda: None, holds_lease=lambda: False, listed_at=lambda: listed_at))

    @staticmethod
    async def _create(event: Object) -> Object:
        return event

    def samples(self) -> dict[str, float]:
        """The metrics as Prometheus would parse them, by name and labels."""
        families = text_string_to_metric_families(self.metrics.page().decode())
        return {f"{each.name}{each.labels or ''}": each.value for family in families for each in family.samples}


def test_supervisors_are_counted_while_their_pods_exist() -> None:
    standby = Standby()
    for index in range(3):
        standby.updates.pod("ADDED", pod(index))
        report = Report(job="default/digits", pod=f"digits-worker-{index}", role="worker", index=index, attempt=0)
        standby.reports.record(f"uid-{index}", report, datetime.now(UTC))
    standby.updates.pod("DELETED", pod(1))
    assert standby.samples()["muster_supervisors"] == 2


def test_pods_with_only_the_label_of_a_job_leave_nothing_in_the_store() -> None:
    standby = Standby()
    replica = pod(0)
    standby.updates.pod("ADDED", replica)
    remembered = len(standby.store.echoes)
    for index in range(100):
        stranger = pod(index)
        stranger["metadata"] |= {"uid": f"stranger-{index}", "labels": {"muster.dev/job-name": "digits"}}
        standby.updates.pod("ADDED", stranger)
        standby.updates.pod("DELETED", stranger)
    standby.updates.pod("DELETED", replica)
    assert (remembered, len(standby.store.echoes)) == (1, 0)


def test_a_standby_caches_jobs_and_pods_and_queues_none() -> None:
    standby = Standby()
    standby.updates.job("ADDED", {"metadata": {"name": "digits", "namespace": "default", "uid": "job", "resourceVersion": "1"}})
    standby.updates.pod("ADDED", pod(0))
    assert (standby.queue.depth, len(standby.store.keys)) == (0, 1)
    assert not [name for name in standby.samples() if name.startswith("muster_jobs")], "sums over all operators count each job once"


NO_ANSWER = {200: False, 404: False, 409: False, 429: False, 500: False, 0: True, 502: True, 503: True, 504: True}


@pytest.mark.parametrize(("status", "away"), NO_ANSWER.items())
def test_the_operator_is_not_ready_while_only_a_load_balancer_answers(status: int, *, away: bool) -> None:
    standby = Standby()
    retries: list[bool] = []
    availability = Availability(standby.metrics, lambda: retries.append(True))
    health = Health(
        queue=standby.queue, store=standby.store, availability=availability, is_listed=lambda: True, lacks_channel=lambda: False
    )
    availability.record("GET", status)
    unready = health.unready()
    availability.record("GET", 200)
    assert ("API server" in (unready or ""), unready is None, bool(retries)) == (away, not away, away)
    assert standby.samples()[f"muster_api_requests_total{{'status': '{status}', 'verb': 'GET'}}"] >= 1


def test_the_operator_is_ready_once_all_is_listed_and_the_channel_listens() -> None:
    standby = Standby()
    state = {"listed": False, "lacks": True}
    health = Health(
        queue=standby.queue,
        store=standby.store,
        availability=Availability(standby.metrics, lambda: None),
        is_listed=lambda: state["listed"],
        lacks_channel=lambda: state["lacks"],
    )
    assert "listed" in (health.unready() or "")
    state["listed"] = True
    assert "channel" in (health.unready() or "")
    state["lacks"] = False
    assert health.unready() is None


def test_kopf_retries_requests_for_ever_at_least_every_five_seconds() -> None:
    settings = kopf.OperatorSettings()
    configure(settings)
    backoffs = settings.networking.error_backoffs
    assert not isinstance(backoffs, float)
    pauses = list(islice(backoffs, 1000))
    assert len(pauses) == 1000
    assert max(pauses) <= 5
    assert min(pauses) >= 1
    assert list(islice(backoffs, 3)) == pauses[:3]  # from the beginning for each request


def test_metrics_have_every_digit() -> None:
    standby = Standby(listed_at=datetime.fromtimestamp(1795370123.25, UTC))
    metrics = standby.metrics
    for _ in range(3):
        metrics.count_request("GET", 200)
    metrics.waited(1_234_567.125)
    page = metrics.page().decode()
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in page.splitlines() if not line.startswith("#")}
    assert values["muster_resync_timestamp_seconds"] == 1795370123.25
    assert values['muster_api_requests_total{status="200",verb="GET"}'] == 3
    assert values['workqueue_queue_duration_seconds_sum{name="trainingjobs"}'] == 1_234_567.125


def test_one_record_is_one_line_of_the_log() -> None:
    form = OneLine("%(levelname)s %(message)s")
    forged = "boom \x1b]0;owned\x07\nINFO good/honest: Succeeded"
    try:
        raise ValueError(forged)
    except ValueError:
        record = logging.LogRecord("muster", logging.ERROR, __file__, 1, "%s: %s", ("team/job", forged), sys.exc_info())
    line = form.format(record)
    assert line.isprintable()
    assert line.startswith("ERROR team/job: boom \\x1b]0;owned\\x07\\nINFO good")
    assert "ValueError" in line
