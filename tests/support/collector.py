"""A collector of traces: an OTLP server on loopback that stores the spans that it receives."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from muster.tools.tracing.spans import JOB, trace_id

ERROR = 2
"""The code of a status that is an error."""
Value = str | int | float


@dataclass(frozen=True)
class ReceivedSpan:
    name: str
    trace: str
    id: str
    parent: str
    begin: float
    end: float
    attributes: dict[str, Value]
    resource: dict[str, Value]
    is_error: bool
    error: str


class Collector(http.server.ThreadingHTTPServer):
    """Answers every request with `status`, and not at all if that is 0. Spans count only if it is 200."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.spans: list[ReceivedSpan] = []
        self.requests = 0
        self.closing = threading.Event()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make an operator send traces here soon."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.server_port}", "OTEL_BSP_SCHEDULE_DELAY": "100"}

    def named(self, name: str) -> list[ReceivedSpan]:
        """The spans with this name, in the order of their start."""
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.begin)

    def receive(self, path: str, body: bytes) -> None:
        self.requests += 1
        if self.status != 200 or path != "/v1/traces":
            return
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = _attributes(group.resource.attributes)
            for scope in group.scope_spans:
                for span in scope.spans:
                    received = ReceivedSpan(
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        span.start_time_unix_nano / 1e9,
                        span.end_time_unix_nano / 1e9,
                        _attributes(span.attributes),
                        resource,
                        span.status.code == ERROR,
                        span.status.message,
                    )
                    self.spans.append(received)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        self.server.receive(self.path, self.rfile.read(int(self.headers["Content-Length"])))
        if not self.server.status:
            self.server.closing.wait(60)
            return
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


def _attributes(pairs: object) -> dict[str, Value]:
    return {pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in pairs}  # type: ignore[attr-defined]


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that runs in this process."""
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()


def uid_in(spans: list[ReceivedSpan]) -> str:
    [uid] = {str(span.attributes["muster.job.uid"]) for span in spans}
    return uid


def check_one_trace(spans: list[ReceivedSpan]) -> None:
    """Checks that all spans are of the trace of the job, that none came twice, and that each except the job's own has its parent."""
    uid, ids = uid_in(spans), [span.id for span in spans]
    assert {span.trace for span in spans} == {f"{trace_id(uid):032x}"}
    assert len(ids) == len(set(ids))
    assert [span.name for span in spans if span.parent not in ids] == [JOB]
    assert all(span.begin <= span.end for span in spans)
