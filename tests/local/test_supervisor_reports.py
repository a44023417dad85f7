"""A supervisor reports to the operator, and continues to train without it."""

from __future__ import annotations

import http.server
import os
import signal
import socket
import threading
import time
from datetime import UTC, datetime

import pytest

from muster.channel.certificate import new_certificate
from muster_contract.events import Commit, Fingerprint
from muster_contract.wire import decode
from tests.support.supervisors import DEADLINE, SLEEPS, Coordinator, SupervisorRun
from tests.support.waiting import wait_until

REPORTS = """
import json, os, time
rank = int(os.environ["RANK"])
def emit(event, **fields):
    line = json.dumps({"event": event, "time": 5.0, "rank": rank, **fields})
    os.write(int(os.environ["MUSTER_EVENTS_FD"]), line.encode() + b"\\n")
emit("fingerprint", framework="torch", version=f"2.{rank}")
if rank == 0:
    emit("phase", phase="Training")
    emit("step", step=4, totalSteps=9, epoch=1, loss="0.5", samples=8, seconds=0.5)
    emit("commit", step=4, path="step-4", seconds=0.1, blockedSeconds=0.02, bytes=3, reason="Periodic")
    emit("evaluation", step=4, metrics={"accuracy": 0.5})
time.sleep(600)
"""


def test_reports_reach_the_coordinator_and_the_last_one_has_the_termination(run: SupervisorRun, coordinator: Coordinator) -> None:
    token = run.folder / "token"
    token.write_text("secret\n")
    run.start(REPORTS, processes=2, MUSTER_COORDINATOR=coordinator.url, MUSTER_TOKEN_FILE=str(token))
    path, authorization, first = coordinator.reports.get(timeout=DEADLINE)
    assert (path, authorization) == ("/v1/report", "Bearer secret")
    assert (first["job"], first["jobUid"], first["pod"], first["podUid"]) == (
        "default/test",
        "job-uid",
        "test-worker-0",
        "pod-uid",
    )
    assert (first["role"], first["index"], first["attempt"], first["sequence"]) == ("worker", 0, 3, 1)
    report = coordinator.wait_for_report(lambda report: report["evaluation"] and len(report["fingerprints"]) == 2)
    assert report["phase"] == "Training"
    assert report["progress"]["step"] == 4
    assert report["progress"]["samplesPerSecond"] == 16.0
    commit = Commit(time=5.0, step=4, path="step-4", seconds=0.1, blocked_seconds=0.02, bytes=3, reason="Periodic")
    assert decode(Commit, report["checkpoint"]) == commit
    fingerprint = decode(Fingerprint, report["fingerprints"][1])
    assert (fingerprint.rank, fingerprint.framework, fingerprint.version) == (1, "torch", "2.1")
    assert not report["notices"]
    assert report["termination"] is None
    os.kill(report["processes"][1]["pid"], signal.SIGKILL)
    last = coordinator.wait_for_report(lambda report: report["termination"])
    assert last["termination"]["code"] == 137
    assert last["processes"][1] == {**report["processes"][1], "state": "Exited", "signal": "SIGKILL"}
    assert run.wait() == 137
    assert last["termination"] == run.termination_message()


def test_reports_come_at_the_interval_although_nothing_changes(run: SupervisorRun, coordinator: Coordinator) -> None:
    run.start(SLEEPS, MUSTER_COORDINATOR=coordinator.url)
    numbers = [coordinator.reports.get(timeout=DEADLINE)[2]["sequence"] for _ in range(4)]
    assert numbers == [1, 2, 3, 4]


def test_a_stopped_process_is_reported(run: SupervisorRun, coordinator: Coordinator) -> None:
    run.start(SLEEPS, MUSTER_COORDINATOR=coordinator.url)
    report = coordinator.wait_for_report(lambda report: report["processes"])
    os.kill(report["processes"][0]["pid"], signal.SIGSTOP)
    assert coordinator.wait_for_report(lambda report: report["processes"][0]["state"] == "Stopped")["idleSeconds"] > 3
    os.kill(report["processes"][0]["pid"], signal.SIGCONT)
    coordinator.wait_for_report(lambda report: report["processes"][0]["state"] == "Running")


@pytest.mark.parametrize("hangs_up", [False, True])
def test_reports_take_one_connection_for_as_long_as_it_is_kept(hangs_up: bool, run: SupervisorRun, coordinator: Coordinator) -> None:
    coordinator.hangs_up = hangs_up
    run.start(SLEEPS, MUSTER_COORDINATOR=coordinator.url)
    numbers = [coordinator.reports.get(timeout=DEADLINE)[2]["sequence"] for _ in range(4)]
    assert numbers == [1, 2, 3, 4]

    def as_many_as_expected() -> bool:  # meanwhile more reports come
        return len(coordinator.connections) == (len(numbers) + coordinator.reports.qsize() if hangs_up else 1)

    wait_until(as_many_as_expected, "a connection for each report" if hangs_up else "one connection", DEADLINE)
    assert "reports to" not in run.err.read_text()


def test_many_changes_go_into_few_reports(run: SupervisorRun, coordinator: Coordinator) -> None:
    source = """
import json, os, time
for step in range(1, 301):
    line = json.dumps({"event": "step", "step": step, "loss": "1", "samples": 1, "seconds": 0.1})
    os.write(int(os.environ["MUSTER_EVENTS_FD"]), line.encode() + b"\\n")
    time.sleep(0.005)
"""
    begun = time.monotonic()
    assert run.start(source, MUSTER_COORDINATOR=coordinator.url).wait() == 0
    most = 10 + (time.monotonic() - begun) / coordinator.reply["intervalSeconds"]
    assert run.termination_message()["step"] == 300
    last = coordinator.wait_for_report(lambda report: report["termination"])
    assert last["progress"]["step"] == 300
    assert last["sequence"] < most


def test_the_pace_of_a_rank_goes_into_the_next_report_and_causes_none(run: SupervisorRun, coordinator: Coordinator) -> None:
    coordinator.reply["intervalSeconds"] = 600
    source = """
import json, os, time
for step in range(1, 61):
    line = json.dumps({"event": "pace", "step": step, "seconds": 0.02, "ownSeconds": 0.01})
    os.write(int(os.environ["MUSTER_EVENTS_FD"]), line.encode() + b"\\n")
    time.sleep(0.02)
"""
    assert run.start(source, MUSTER_COORDINATOR=coordinator.url).wait() == 0
    last = coordinator.wait_for_report(lambda report: report["termination"])
    assert [(each["rank"] or 0, each["step"], each["ownSeconds"]) for each in last["ranks"]] == [(0, 60, 0.01)]
    assert last["sequence"] < 20, "reports are due for the start and the end, and not for 60 events"


def test_a_token_is_sent_only_to_a_coordinator_that_the_authority_certifies(run: SupervisorRun, coordinator: Coordinator) -> None:
    certificate, stranger = (new_certificate("localhost", datetime.now(UTC)) for _ in range(2))
    coordinator.socket = certificate.context().wrap_socket(coordinator.socket, server_side=True)
    url = coordinator.url.replace("http://127.0.0.1", "https://localhost")
    assert run.start("print('done')", MUSTER_COORDINATOR=url, MUSTER_COORDINATOR_AUTHORITY=stranger.certificate).wait() == 0
    assert "certificate verify failed" in run.err.read_text()
    assert coordinator.reports.empty()
    assert run.start("print('done')", MUSTER_COORDINATOR=url, MUSTER_COORDINATOR_AUTHORITY=certificate.certificate).wait() == 0
    assert coordinator.wait_for_report(lambda report: report["termination"])["termination"]["code"] == 0


def test_bad_configuration_is_reported_too(run: SupervisorRun, coordinator: Coordinator) -> None:
    assert run.start("def f(:\n", MUSTER_COORDINATOR=coordinator.url).wait() == 11
    assert coordinator.wait_for_report(lambda report: report["termination"])["termination"]["code"] == 11


def test_a_coordinator_that_is_away_stops_nothing(run: SupervisorRun) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as closed:
        port = closed.server_address[1]
    assert run.start("print('done')", MUSTER_COORDINATOR=f"http://127.0.0.1:{port}").wait() == 0
    assert run.out.read_text() == "done\n"
    assert run.err.read_text().count("the training goes on") == 1


def test_a_coordinator_that_never_comes_to_an_end_does_not_hold_up_ours(run: SupervisorRun) -> None:
    over = threading.Event()

    def drip(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n")
            try:
                while not over.wait(0.2):
                    connection.sendall(b" ")
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,))
        thread.start()
        run.start("print('done')", MUSTER_COORDINATOR=f"http://127.0.0.1:{server.getsockname()[1]}")
        try:
            assert run.wait() == 0
        finally:
            over.set()
            socket.create_connection(server.getsockname()).close()  # in case none ever came
            thread.join()
