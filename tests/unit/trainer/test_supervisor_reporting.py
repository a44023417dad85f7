"""The reports of a supervisor and their times. The operator accepts every report that a training process can cause."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from muster_contract.environment import ReplicaEnvironment
from muster_contract.events import Fingerprint
from muster_contract.notices import Notice
from muster_contract.reports import MAX_REPORT, Progress, Report, TerminationMessage
from muster_contract.run_state import RunState, apply, with_state
from muster_contract.wire import decode, parse
from muster_trainer.supervisor import reporting
from muster_trainer.supervisor.event_reader import EventReader
from muster_trainer.supervisor.reporting import Reporter

SOON = 20.0
REPORT = Report(job="j", job_uid="u", pod="p", pod_uid="v", role="worker", index=0, attempt=0, in_place=True)
STARTING, TRAINING = replace(REPORT, phase="Starting"), replace(REPORT, phase="Training")
KINDS = ("phase", "step", "commit", "resumed", "evaluation", "fingerprint", "pace", "notice", "error")
FIELDS = (
    *(
        "phase",
        "step",
        "totalSteps",
        "epoch",
        "loss",
        "samples",
        "seconds",
        "blockedSeconds",
        "ownSeconds",
        "path",
        "reason",
        "committedStep",
    ),
    *("skipped", "metrics", "python", "framework", "version", "libraries", "devices", "threads", "message", "time", "rank"),
)
numbers = st.sampled_from([0, 1, 7, -1, 10**30, 2**53, 2**53 + 1, 1e300, -1e300, 1e-300, 1e11, 1e12, 0.5])
texts = st.sampled_from(["", "x", "\x1b]0;owned\x07\n", "y" * 5000, "a name that is not UTF-8: \udcff"])
deep: Any = json.loads("[" * 250 + "]" * 250)
scalars = st.none() | st.booleans() | numbers | texts
values = scalars | st.lists(scalars, max_size=3) | st.dictionaries(texts, scalars, max_size=3)
skipped = st.just([{"path": "p" * 1500, "reason": "r"}] * 120)
many = st.just({f"name-{number}": 1.0 for number in range(300)})
events = st.fixed_dictionaries({"event": st.sampled_from(KINDS)}, optional=dict.fromkeys(FIELDS, values | skipped | many | st.just(deep)))


@settings(max_examples=150, deadline=None)
@given(st.lists(events, max_size=8))
@example([{"event": "fingerprint", "libraries": {"": None}, "python": None}])
def test_the_operator_accepts_every_report_that_a_process_can_cause(written: list[dict[str, Any]]) -> None:
    reading, writing = os.pipe()
    reader = EventReader(reading, 0)
    state = RunState(first_rank=0)
    try:
        for event in written:
            line = json.dumps(event).encode() + b"\n"
            for start in range(0, len(line), 4096):
                os.write(writing, line[start : start + 4096])
                for each in reader.read():
                    state = apply(state, each.event)
    finally:
        os.close(writing)
        os.close(reading)
    body = reporting.encoded(with_state(REPORT, state))
    assert len(body) <= MAX_REPORT
    parse(Report, body)


def test_a_too_large_report_is_sent_without_fingerprints_or_notices() -> None:
    large = (Fingerprint(libraries={f"{number}": "v" * 128 for number in range(64)}),) * 64
    report = replace(REPORT, progress=Progress(step=7), notices=(Notice(message="n" * 1000),) * 50)
    assert parse(Report, reporting.encoded(report)) == report
    assert parse(Report, reporting.encoded(replace(report, fingerprints=large))) == replace(report, notices=())


@dataclass
class Coordinator:
    """Records each report with its time. `answers` has the status and headers of the next answers; later answers are 200.

    While `holds` is set, it holds the replies to those who prefer to wait, until `released` is set."""

    interval: float = 0.2
    holds: bool = False
    released: threading.Event = field(default_factory=threading.Event)
    received: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    url: str = ""

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + SOON
        while not condition():
            assert time.monotonic() < deadline, self.received
            time.sleep(0.005)


@contextmanager
def coordinating(coordinator: Coordinator) -> Iterator[Coordinator]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            coordinator.received.append((time.monotonic(), json.loads(body)))
            if coordinator.holds and self.headers.get("Prefer") == f"wait={reporting.LONGEST_DELAY}":
                coordinator.released.wait(SOON)
            status, headers = coordinator.answers.pop(0) if coordinator.answers else (200, {})
            answer = json.dumps({"attempt": 0, "graceSeconds": 0, "intervalSeconds": coordinator.interval}).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(answer))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    coordinator.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield coordinator
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def reporter(coordinator: Coordinator, messages: list[str]) -> Reporter:
    place = {"job": "j", "job_uid": "u", "pod_name": "p", "pod_uid": "v", "role": "worker", "index": 0, "attempt": 0, "token_file": None}
    replica = SimpleNamespace(**place, coordinator=coordinator.url, coordinator_authority=None)
    return Reporter(cast(ReplicaEnvironment, replica), messages.append, lambda: None)


@pytest.mark.parametrize(("header", "seconds"), [({"Retry-After": "2"}, 2.0), ({}, 1.0), ({"Retry-After": "soon"}, 1.0)])
def test_a_supervisor_waits_as_long_as_the_answer_requests(header: dict[str, str], seconds: float) -> None:
    messages: list[str] = []
    with coordinating(Coordinator(answers=[(429, header)])) as coordinator:
        supervisor = reporter(coordinator, messages)
        supervisor.update(STARTING)
        coordinator.until(lambda: coordinator.received)
        supervisor.update(TRAINING)
        coordinator.until(lambda: len(coordinator.received) > 1)
        first, second = (moment for moment, _ in coordinator.received[:2])
        supervisor.finish(replace(REPORT, phase="Stopping"), seconds=SOON)
    assert second - first >= seconds - 0.1
    assert coordinator.received[1][1]["phase"] == "Training"
    assert messages == [], "it is no failure"


@pytest.mark.parametrize("status", [400, 413])
def test_a_refused_report_is_sent_again_with_only_its_essential_fields(status: int) -> None:
    messages: list[str] = []
    words = TerminationMessage(code=10, message="why", attempt=0, exit_code=1)
    training = replace(TRAINING, progress=Progress(step=7))
    with coordinating(Coordinator(answers=[(status, {}), (200, {}), (status, {})])) as coordinator:
        supervisor = reporter(coordinator, messages)
        supervisor.update(training)
        coordinator.until(lambda: len(coordinator.received) >= 2)
        supervisor.finish(replace(training, waiting=True, termination=words), seconds=SOON)
    reports = [decode(Report, body) for _, body in coordinator.received]
    assert reports[0] == replace(training, sequence=1)
    assert reports[1] == replace(REPORT, sequence=1)
    assert reports[-1] == replace(REPORT, sequence=2, waiting=True, termination=replace(words, message=""))
    assert len(messages) == 1
    assert f"a report is refused ({status}" in messages[0]


WAITING = replace(REPORT, waiting=True)


@contextmanager
def held(coordinator: Coordinator) -> Iterator[Reporter]:
    """A reporter whose second report is held. The first one is not, because it must show whether there is an operator."""
    with coordinating(coordinator):
        supervisor = reporter(coordinator, [])
        supervisor.update(WAITING)
        coordinator.until(lambda: len(coordinator.received) == 2)
        yield supervisor
        coordinator.released.set()


def test_a_reply_that_the_operator_holds_may_take_longer_than_other_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "TIMEOUT", 1.0)
    coordinator = Coordinator(holds=True)
    with held(coordinator) as supervisor:
        replied = supervisor.replied
        time.sleep(1.5)
        assert len(coordinator.received) == 2
        coordinator.holds = False
        coordinator.released.set()
        coordinator.until(lambda: supervisor.replied != replied)
        supervisor.finish(WAITING, seconds=SOON)


@pytest.mark.parametrize("final", [False, True])
def test_a_new_report_does_not_wait_for_a_held_reply(final: bool) -> None:
    coordinator, begun = Coordinator(holds=True), time.monotonic()
    with held(coordinator) as supervisor:
        report = replace(WAITING, attempt=1)
        if final:
            supervisor.finish(report, seconds=SOON)
        else:
            supervisor.update(report)
        coordinator.until(lambda: coordinator.received[-1][1]["attempt"] == 1)
        assert time.monotonic() - begun < reporting.LONGEST_DELAY, "it has not waited"
        coordinator.released.set()
        if not final:
            supervisor.finish(report, seconds=SOON)


def test_the_last_report_does_not_wait() -> None:
    with coordinating(Coordinator(answers=[(429, {"Retry-After": "300"})])) as coordinator:
        supervisor = reporter(coordinator, [])
        supervisor.update(STARTING)
        coordinator.until(lambda: coordinator.received)
        supervisor.finish(replace(REPORT, phase="Stopping"), seconds=SOON)
        assert coordinator.received[-1][1]["phase"] == "Stopping"


def test_changes_are_gathered_while_processes_run_and_their_end_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "LONGEST_GATHERED", 60.0)  # longer than this test waits
    with coordinating(Coordinator(interval=600)) as coordinator:
        supervisor = reporter(coordinator, [])
        supervisor.update(STARTING)
        coordinator.until(lambda: supervisor.interval == 600)
        supervisor.update(TRAINING)
        supervisor.update(replace(REPORT, phase="Saving"))
        supervisor.update(replace(REPORT, waiting=True, termination=TerminationMessage(20)))
        coordinator.until(lambda: len(coordinator.received) == 2)
        assert coordinator.received[1][1]["waiting"]
        supervisor.finish(REPORT, seconds=SOON)


def test_steps_alone_wait_for_the_interval_and_the_first_step_does_not() -> None:
    with coordinating(Coordinator(interval=300)) as coordinator:
        supervisor = reporter(coordinator, [])
        supervisor.update(TRAINING)
        coordinator.until(lambda: coordinator.received)
        coordinator.until(lambda: supervisor.interval == 300)
        supervisor.update(replace(TRAINING, progress=Progress(step=1)))
        coordinator.until(lambda: len(coordinator.received) == 2)
        for step in range(2, 50):
            supervisor.update(replace(TRAINING, progress=Progress(step=step)))
        supervisor.update(replace(REPORT, phase="Saving", progress=Progress(step=50)))
        coordinator.until(lambda: len(coordinator.received) == 3)
        supervisor.finish(replace(REPORT, phase="Saving", progress=Progress(step=50)), seconds=SOON)
    steps = [(report.get("progress") or {}).get("step") for _, report in coordinator.received]
    assert steps == [None, 1, 50, 50]
