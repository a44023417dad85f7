"""The traces of jobs that an operator runs, as a collector receives them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.tools.tracing.spans import traceparent
from tests.support.api_server.cluster import Cluster
from tests.support.api_server.jobs import Jobs, job
from tests.support.api_server.kubelet import Kubelet
from tests.support.api_server.operators import operating
from tests.support.api_server.reports import progress, report, tell, token
from tests.support.collector import Collector, check_one_trace, collecting, uid_in
from tests.support.waiting import wait_until


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.mark.usefixtures("nodes")
def test_consecutive_leaders_send_one_trace_without_duplicate_spans(
    cluster: Cluster, jobs: Jobs, kubelet: Kubelet, collector: Collector, tmp_path: Path
) -> None:
    with operating(cluster, tmp_path / "operator", env=collector.environment) as operator:
        jobs.submit(job("digits"))
        jobs.reaches("digits", "Running")
        first, second = jobs.pods("digits")
        save = {"step": 10, "path": "step-10", "time": time.time(), "seconds": 0.25}
        evaluation = {"step": 10, "time": time.time(), "metrics": {"accuracy": 0.5}, "seconds": 0.125}
        content = report(first, progress=progress(10), checkpoint=save, evaluation=evaluation)
        assert tell(operator, token(jobs, first), content)[0] == 200
        wait_until(lambda: collector.named("evaluation") and collector.named("save"), "the spans of the first attempt")
        kubelet.end(second, 137)
        wait_until(lambda: collector.named("attempt"), "the span of the failed attempt")
        operator.kill()
        operator.start().ready()
        jobs.reaches("digits", "Running", attempt=1)
        for pod in jobs.pods("digits"):
            kubelet.end(pod, 0)
        jobs.reaches("digits", "Succeeded")
        wait_until(lambda: collector.named("job"), "the span of the job")
        made = [variable for pod in (first, second) for variable in pod["spec"]["containers"][0]["env"]]
    check_one_trace(collector.spans)
    failed, finished = collector.named("attempt")
    assert (failed.is_error, finished.is_error) == (True, False)
    assert failed.attributes["k8s.namespace.name"] == jobs.namespace
    assert failed.attributes["k8s.node.name"] == "node-0"
    assert [span.parent for span in (*collector.named("save"), *collector.named("evaluation"))] == [failed.id, failed.id]
    assert [variable["value"] for variable in made if variable["name"] == "TRACEPARENT"] == [traceparent(uid_in(collector.spans))] * 2


@pytest.mark.usefixtures("nodes")
def test_a_collector_that_accepts_no_spans_delays_neither_jobs_nor_the_operator(
    cluster: Cluster, jobs: Jobs, kubelet: Kubelet, collector: Collector, tmp_path: Path
) -> None:
    collector.status = 0
    with operating(cluster, tmp_path / "operator", env=collector.environment) as operator:
        jobs.submit(job("digits"))
        jobs.reaches("digits", "Running")
        wait_until(lambda: collector.requests, "the operator sends a span")
        for pod in jobs.pods("digits"):
            kubelet.end(pod, 0)
        jobs.reaches("digits", "Succeeded")
        assert operator.stop() == 0
    about = [line.split(" ", 2)[2] for line in operator.log.read_text().splitlines() if "spans" in line]
    assert about == ["WARNING muster.tracing traces: 3 of 3 spans did not reach the collector of OTEL_EXPORTER_OTLP_ENDPOINT"]
