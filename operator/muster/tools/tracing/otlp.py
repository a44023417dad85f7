"""Sends the spans of jobs to a collector by OTLP, with the OpenTelemetry SDK. The standard variables OTEL_* set it up.

The SDK sends in a thread of its own and drops spans if too many wait. So a collector that is down delays nothing. The packages of
OpenTelemetry are an extra. Muster imports them only when the variables request traces.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from threading import Thread
from typing import TYPE_CHECKING

from cachetools import LRUCache

from muster.api.job import TrainingJob
from muster.api.status import TrainingJobStatus
from muster.lifecycle.observed import Observed
from muster.tools.tracing.spans import EVALUATION, JOB, SAVE, JobSpan, job_attributes, span_id, spans_between, trace_id, traceparent

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"
TRACEPARENT = "TRACEPARENT"
FLUSH_SECONDS = 2.0
"""How long the end of a process waits at most for the spans that are not sent yet."""
SHARE_OF_AGE = 1 / 300
"""Saves that follow each other within this share of the job's age get only one span. The same applies to evaluations. Otherwise the trace
of a job that saves at every step for weeks would be too large for any viewer."""
MOST_JOBS = 10_000


class TracingError(ValueError):
    """The variables ask for traces that cannot be sent. The message names the variable and what to write instead."""


def tracing_from(environ: Mapping[str, str]) -> Tracing | None:
    """Starts the tracing that the variables request. None if they request no traces. Raises TracingError."""
    source = next((name for name in ENDPOINTS if environ.get(name)), None)
    chosen = [each.strip().lower() for each in environ.get("OTEL_TRACES_EXPORTER", "otlp").split(",") if each.strip()] or ["otlp"]
    if source is None or environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or chosen == ["none"]:
        return None
    _check(environ, source, chosen)
    try:
        return Tracing(source)
    except ImportError as error:
        raise TracingError(
            f"{source} is set, but no traces are sent, because a package is missing ({error}): "
            "install Muster with the extra `telemetry`, or unset the variable"
        ) from error
    except (ValueError, RuntimeError) as error:
        raise TracingError(f"no traces are sent, because a variable OTEL_* has a value that OpenTelemetry refuses: {error}") from error


@contextmanager
def traces(environ: Mapping[str, str], *, refused: Callable[[str], None], lost: Callable[[str], None]) -> Iterator[Tracing | None]:
    """The tracing that the variables request, until the end of the block. If traces cannot be sent, `refused` gets the reason, and jobs run
    without them. If spans did not reach the collector, `lost` gets one sentence about that at the end."""
    tracing = None
    try:
        tracing = tracing_from(environ)
    except TracingError as error:
        refused(str(error))
    try:
        yield tracing
    finally:
        if tracing is not None and (sentence := tracing.close()):
            lost(sentence)


def _check(environ: Mapping[str, str], source: str, chosen: Sequence[str]) -> None:
    if chosen != ["otlp"]:
        raise TracingError("OTEL_TRACES_EXPORTER: no traces are sent, because Muster has only the exporter otlp: write otlp or none")
    if not environ[source].startswith(("http://", "https://")):
        raise TracingError(f"{source}: no traces are sent, because this is no URL: write one such as http://collector:4318")
    protocol = next((name for name in PROTOCOLS if environ.get(name)), None)
    if protocol is not None and environ[protocol] != PROTOCOL:
        raise TracingError(
            f"{protocol}: no traces are sent, because Muster has only {PROTOCOL}: write it, with the collector's port for HTTP"
        )


class Tracing:
    """Turns changes of jobs into spans and sends them. `source` is the variable with the endpoint. Not thread-safe."""

    def __init__(self, source: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        self._source = source
        self._ids, self._provider, self._delivered = _pipeline(OTLPSpanExporter())
        self._tracer = self._provider.get_tracer("muster", version("muster-training"))
        self._sent = 0
        self._thinned: LRUCache[str, dict[str, datetime]] = LRUCache(MOST_JOBS)

    def record(self, job: TrainingJob, new: TrainingJobStatus, observed: Observed) -> None:
        """Sends the spans that the change from the job's status to the new one has finished. Never waits."""
        if not self._is_sampled(job.metadata.uid):
            return
        now = datetime.now(UTC)
        for span in spans_between(job, new, observed, now):
            if not self._is_dropped(job, span):
                self._send(job, span)
        if new.phase.final:
            self._thinned.pop(job.metadata.uid, None)

    def variables(self, job: TrainingJob) -> dict[str, str]:
        """The variables with which spans of the job's own processes become parts of its trace."""
        uid = job.metadata.uid
        return {TRACEPARENT: traceparent(uid)} if uid and self._is_sampled(uid) else {}

    def close(self, seconds: float = FLUSH_SECONDS) -> str:
        """Sends the waiting spans, for at most so many seconds. Returns a sentence if spans of this process did not reach the collector,
        and otherwise an empty text. No spans can be sent after this call."""
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # the sentence says it once for all spans
        flush = Thread(target=self._provider.shutdown, name="last-spans", daemon=True)
        flush.start()
        flush.join(seconds)
        lost = self._sent - self._delivered()
        return f"traces: {lost} of {self._sent} spans did not reach the collector of {self._source}" if lost > 0 else ""

    def _is_sampled(self, uid: str) -> bool:
        """The decision of the sampler in OTEL_TRACES_SAMPLER for the whole trace. It depends only on the id of the trace."""
        from opentelemetry.context import Context
        from opentelemetry.sdk.trace.sampling import Decision

        return self._provider.sampler.should_sample(Context(), trace_id(uid), JOB).decision is Decision.RECORD_AND_SAMPLE

    def _is_dropped(self, job: TrainingJob, span: JobSpan) -> bool:
        created = job.metadata.creation_timestamp
        if span.name not in (SAVE, EVALUATION) or created is None:
            return False
        newest = self._thinned.setdefault(job.metadata.uid, {})
        last = newest.get(span.name)
        if last is not None and span.end - last < (span.end - created) * SHARE_OF_AGE:
            return True
        newest[span.name] = span.end
        return False

    def _send(self, job: TrainingJob, span: JobSpan) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags, set_span_in_context

        uid, context = job.metadata.uid, Context()
        trace = trace_id(uid)
        if span.parent is not None:
            sampled = TraceFlags(TraceFlags.SAMPLED)
            parent = SpanContext(trace, span_id(uid, span.parent), is_remote=False, trace_flags=sampled)
            context = set_span_in_context(NonRecordingSpan(parent), context)
        self._ids(trace, span_id(uid, span.key))
        attributes = {**job_attributes(job), **span.attributes}
        sent = self._tracer.start_span(span.name, context=context, start_time=_nanoseconds(span.begin), attributes=attributes)
        if span.error is not None:
            sent.set_status(Status(StatusCode.ERROR, span.error))
        sent.end(end_time=_nanoseconds(span.end))
        self._sent += 1


def _pipeline(exporter: SpanExporter) -> tuple[Callable[[int, int], None], TracerProvider, Callable[[], int]]:
    """A function that sets the ids of the next span, the provider, and a function that counts the spans that the collector took."""
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.id_generator import IdGenerator

    class Ids(IdGenerator):
        trace = span = 1

        def generate_trace_id(self) -> int:
            return self.trace

        def generate_span_id(self) -> int:
            return self.span

    class Counting(SpanExporter):
        delivered = 0

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            result = exporter.export(spans)
            if result is SpanExportResult.SUCCESS:
                self.delivered += len(spans)
            return result

        def shutdown(self) -> None:
            exporter.shutdown()

    ids, counting = Ids(), Counting()

    def set_ids(trace: int, span: int) -> None:
        ids.trace, ids.span = trace, span

    logging.getLogger("opentelemetry").setLevel(logging.ERROR)  # each retry would be a warning
    resource = Resource.create({SERVICE_VERSION: version("muster-training")})
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "muster"}))
    provider = TracerProvider(resource=resource, id_generator=ids, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(counting))
    return set_ids, provider, lambda: counting.delivered


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000) * 1000
