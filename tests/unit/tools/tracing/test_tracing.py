"""Which variables send traces where, and what the collector gets of many saves."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from local_cluster.ports import free_ports
from muster.api.job import TrainingJob
from muster.api.status import AttemptRecord, CheckpointStatus, Phase, TrainingJobStatus
from muster.lifecycle.observed import Observed
from muster.tools.tracing.otlp import Tracing, TracingError, traces, tracing_from
from tests.support.collector import Collector, collecting
from tests.support.texts import absent

HERE = "OTEL_EXPORTER_OTLP_ENDPOINT"
CREATED = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector that the SDK sends to; it reads the environment of the process itself."""
    with collecting() as collector:
        for name, value in collector.environment.items():
            monkeypatch.setenv(name, value)
        yield collector


def started(**environ: str) -> Tracing:
    tracing = tracing_from({HERE: "http://collector:4318", **environ})
    assert tracing
    return tracing


def job(uid: str = "u") -> TrainingJob:
    metadata = {"name": "digits", "uid": uid, "creationTimestamp": CREATED}
    return TrainingJob.model_validate({"metadata": metadata, "spec": {"strategy": "DDP", "trainer": {"task": "digits"}}})


def never(sentence: str) -> None:
    raise AssertionError(sentence)


DONE = TrainingJobStatus(phase=Phase.SUCCEEDED, completion_time=CREATED + timedelta(seconds=60))


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {HERE: ""},
        {"OTEL_SERVICE_NAME": "x"},
        {HERE: "http://c", "OTEL_SDK_DISABLED": "True"},
        {HERE: "http://c", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_tracing_is_off_without_an_endpoint_or_when_disabled(environ: dict[str, str]) -> None:
    assert tracing_from(environ) is None


@pytest.mark.parametrize(
    ("environ", "variable"),
    [
        ({HERE: "http://c", "OTEL_TRACES_EXPORTER": "console"}, "OTEL_TRACES_EXPORTER"),
        ({HERE: "http://c", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL"),
        ({HERE: "http://c", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"),
        ({HERE: "collector:4318"}, HERE),
    ],
)
def test_unsupported_settings_of_tracing_are_refused_with_the_variable(environ: dict[str, str], variable: str) -> None:
    with pytest.raises(TracingError, match=f"^{variable}: "):
        tracing_from(environ)


def test_jobs_run_without_traces_that_cannot_be_sent() -> None:
    reasons: list[str] = []
    with traces({HERE: "collector:4318"}, refused=reasons.append, lost=never) as tracing:
        assert tracing is None
        assert len(reasons) == 1
        assert HERE in reasons[0]
    assert len(reasons) == 1


@pytest.mark.parametrize(("status", "lost"), [(200, []), (400, [f"traces: 2 of 2 spans did not reach the collector of {HERE}"])])
def test_lost_spans_are_reported_once_at_the_end(
    collector: Collector, caplog: pytest.LogCaptureFixture, status: int, lost: list[str]
) -> None:
    collector.status = status
    sentences: list[str] = []
    with traces(collector.environment, refused=never, lost=sentences.append) as tracing:
        assert tracing is not None
        tracing.record(job(), DONE, Observed())
        assert sentences == []
    assert sentences == lost
    assert [record.getMessage() for record in caplog.records] == [], "the SDK logs no further record for each batch"


def test_values_that_the_sdk_refuses_raise_a_tracing_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "0")
    with pytest.raises(TracingError, match="max_queue_size"):
        started()


def test_without_the_packages_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(TracingError, match="extra `telemetry`"):
        started()


@pytest.mark.parametrize(("environ", "name"), [({}, "muster"), ({"OTEL_SERVICE_NAME": "training"}, "training")])
def test_spans_are_of_the_service_muster_unless_the_variables_name_another(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], name: str
) -> None:
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)
    tracing = started()
    tracing.record(job(), DONE, Observed())
    assert tracing.close() == ""
    assert [(span.name, span.resource["service.name"]) for span in collector.spans] == [("queued", name), ("job", name)]


def test_the_sampler_of_the_variables_decides_for_whole_traces(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    tracing = started()
    uids = [f"uid-{number}" for number in range(40)]
    for uid in uids:
        tracing.record(job(uid), DONE, Observed())
    sampled = {uid for uid in uids if tracing.variables(job(uid))}
    assert tracing.close() == ""
    assert 5 < len(sampled) < 35
    names = [(span.attributes["muster.job.uid"], span.name) for span in collector.spans]
    assert sorted(names) == sorted((uid, name) for uid in sampled for name in ("queued", "job"))


def test_an_unreachable_collector_delays_the_end_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HERE, f"http://127.0.0.1:{free_ports(1)[0]}")
    tracing = started()
    tracing.record(job(), DONE, Observed())
    assert absent(tracing.close(0.1) or "", "2 of 2 spans", str(HERE)) == []


def test_a_long_job_has_spans_for_fewer_of_its_saves(collector: Collector) -> None:
    tracing = started()

    def save(seconds: int) -> Any:
        commit = CheckpointStatus(step=seconds, path="x", committed_at=CREATED + timedelta(seconds=seconds), seconds=0.1)
        record = AttemptRecord(attempt=0, start_time=CREATED)
        return TrainingJobStatus(start_time=CREATED, attempts=(record,), checkpoint=commit)

    status = save(0)
    for seconds in (*range(10, 100, 10), *range(30_000, 31_000, 10)):
        new = save(seconds)
        tracing.record(job().with_status(status), new, Observed())
        status = replace(new)
    assert tracing.close() == ""
    steps = [int(span.attributes["muster.step"]) for span in collector.named("save")]
    assert steps == [*range(10, 100, 10), *range(30_000, 31_000, 110)][: len(steps)]
    assert len(steps) == 9 + 10
