"""The trace of a job under `muster run`, as a collector receives it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from muster.tools.tracing.spans import JOB
from tests.support.collector import Collector, check_one_trace, collecting
from tests.support.local_jobs import TRAIN, LocalJob, finish, job
from tests.support.waiting import wait_until

PROMPT_SECONDS = 20.0
"""The SDK alone would wait 30 s for a collector that does not take spans."""
PRINTS = ["sh", "-c", "echo parent=$TRACEPARENT"]
OWN_SPAN = """
import os
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import extract
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
parent = extract({"traceparent": os.environ["TRACEPARENT"]})
with trace.get_tracer("train").start_as_current_span("preprocess", context=parent):
    pass
"""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture
def local_job(tmp_path: Path) -> LocalJob:
    (tmp_path / "train.py").write_text(TRAIN)
    return LocalJob(tmp_path)


def test_a_run_with_a_killed_worker_is_one_trace(local_job: LocalJob, collector: Collector) -> None:
    local_job.write(job(trainer={"script": "train.py 1000 0.01"}))
    with local_job.running("job.yaml", env=collector.environment) as run:
        local_job.wait_for_commit()
        local_job.kill("worker-1")
        code, output = finish(run)
    assert code == 0, output
    assert "traces" not in output
    check_one_trace(collector.spans)
    first, second = local_job.attempts
    failed, finished = collector.named("attempt")
    assert (failed.is_error, failed.attributes["error.type"]) == (True, "ProcessKilled")
    assert first["signal"] == "SIGKILL"
    assert (failed.attributes["muster.failure.class"], failed.attributes["muster.failure.replica"]) == ("Infrastructure", "worker-1")
    assert (finished.is_error, finished.attributes["muster.step.resumed"]) == (False, second["stepResumed"])
    [recovery] = collector.named("recovery")
    assert recovery.begin == pytest.approx(datetime.fromisoformat(first["failedTime"]).timestamp(), abs=0.001)
    assert recovery.end - recovery.begin == pytest.approx(sum(second["phases"].values()), abs=0.001)
    parts = [span for span in collector.spans if span.parent == recovery.id]
    assert sum(part.end - part.begin for part in parts) == pytest.approx(recovery.end - recovery.begin, abs=0.001)
    assert second["phases"].keys() == {"detectSeconds", "scheduleSeconds", "startSeconds", "loadSeconds", "firstStepSeconds"}
    assert {part.name for part in parts} == {name.removesuffix("Seconds") for name, seconds in second["phases"].items() if seconds}
    committed = {(event["attempt"], event["step"]) for event in local_job.events("commit")}
    saves = {(span.attributes["muster.attempt"], span.attributes["muster.step"]) for span in collector.named("save")}
    assert saves <= committed
    assert {attempt for attempt, _ in saves} == {0, 1}
    [whole], [queued] = collector.named(JOB), collector.named("queued")
    assert (whole.attributes["muster.job.phase"], whole.attributes["muster.restarts"], whole.is_error) == ("Succeeded", 1, False)
    assert whole.begin == queued.begin
    assert all(span.end <= whole.end for span in collector.spans)
    assert {span.resource["service.name"] for span in collector.spans} == {"muster"}


def test_a_run_that_was_killed_continues_its_trace_and_sends_no_span_twice(local_job: LocalJob, collector: Collector) -> None:
    local_job.write(job(trainer={"script": "train.py 1000 0.01"}))
    with local_job.running("job.yaml", env=collector.environment) as run:
        wait_until(lambda: len(collector.named("save")) >= 2, "spans of saves")
        run.kill()
        run.wait()
        local_job.assert_nothing_left()
        code, output = finish(local_job.start("job.yaml", "--resume", env=collector.environment))
    assert code == 0, output
    check_one_trace(collector.spans)
    assert len(collector.named("attempt")) == len(local_job.attempts) == 2
    killed, finished = collector.named("attempt")
    [suspended] = collector.named("suspended")
    assert (suspended.begin, suspended.end) == (killed.end, finished.begin)


def test_spans_of_programs_join_the_trace_of_their_job_unless_they_have_another_parent(local_job: LocalJob, collector: Collector) -> None:
    local_job.write(OWN_SPAN, "own.py")
    local_job.write(job(trainer={"script": "own.py"}, replicas=1))
    with local_job.running("job.yaml", env=collector.environment) as run:
        code, output = finish(run)
    assert code == 0, output
    [own_span], [whole] = collector.named("preprocess"), collector.named(JOB)
    assert (own_span.trace, own_span.parent) == (whole.trace, whole.id)
    collector.spans.remove(own_span)
    check_one_trace(collector.spans)

    local_job.write(job(trainer={"command": PRINTS}, replicas=1))
    own = f"00-{'1' * 32}-{'2' * 16}-01"
    with local_job.running("job.yaml", "--fresh", env={**collector.environment, "TRACEPARENT": own}) as run:
        code, output = finish(run)
    assert code == 0, output
    assert f"parent={own}\n" in local_job.logs()


@pytest.mark.parametrize("fault", ["answers 503", "answers nothing"])
def test_a_collector_that_takes_no_spans_neither_fails_a_run_nor_delays_its_end(
    local_job: LocalJob, collector: Collector, fault: str
) -> None:
    collector.status = 503 if fault == "answers 503" else 0
    local_job.write(job(trainer={"script": "train.py 20 0.01"}, replicas=1))
    with local_job.running("job.yaml", env=collector.environment) as run:
        wait_until(lambda: local_job.status.get("phase") == "Succeeded", "the end of the job")
        code, output = finish(run, PROMPT_SECONDS)
    assert code == 0, output
    assert collector.requests
    lines = [line for line in output.splitlines() if "traces:" in line or "export" in line.lower()]
    count = lines[0].split()[1]
    assert lines == [f"traces: {count} of {count} spans did not reach the collector of OTEL_EXPORTER_OTLP_ENDPOINT"]


def test_a_run_says_once_why_it_sends_no_traces(local_job: LocalJob, collector: Collector) -> None:
    local_job.write(job(trainer={"command": PRINTS}, replicas=1))
    with local_job.running("job.yaml", env={**collector.environment, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}) as run:
        code, output = finish(run)
    assert code == 0, output
    assert output.count("traces") == output.count("OTEL_EXPORTER_OTLP_PROTOCOL: no traces are sent") == 1
    assert "parent=\n" in local_job.logs()
    assert collector.requests == 0
