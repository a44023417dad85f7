"""The coordination server: who may report, what it answers, and that nothing a client sends makes it fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given
from hypothesis import strategies as st

from muster.api.reports import Reply, Report
from muster.control.coordination import (
    CONNECTIONS_KEPT,
    LARGEST_REPORT,
    REPORTS_PER_SECOND,
    SHORTEST_INTERVAL,
    SHORTEST_WAIT,
    WAITS_PER_SECOND,
    Channel,
    coordination_app,
    interval_seconds,
)
from muster.control.reports import Reports

# What an old or a new trainer image sends: unknown fields included, and nulls as the supervisor writes them.
REPORT: dict[str, Any] = {
    "job": "default/digits",
    "jobUid": "j",
    "pod": "digits-worker-0",
    "podUid": "pod",
    "role": "worker",
    "index": 0,
    "attempt": 0,
    "sequence": 17,
    "processes": [{"rank": 0, "pid": 4711, "state": "Exited", "exitCode": None, "signal": "SIGKILL"}],
    "phase": "Training",
    "progress": {"step": 120, "totalSteps": 345, "epoch": 5, "loss": "nan", "samplesPerSecond": 5120.0, "updatedAt": 1795260507.1},
    "checkpoint": {"step": 100, "path": "step-00000100", "committedAt": 1795260506.0},
    "resumed": {"found": None, "step": 0, "path": None, "skipped": []},
    "evaluation": None,
    "fingerprints": [{"rank": 0, "framework": "torch", "version": "2.15.0"}],
    "notices": ["a notice"],
    "lastWords": {"code": 137, "reason": "ProcessKilled", "message": "killed", "exitCode": None, "signal": "SIGKILL", "commit": None},
    "fieldOfTheFuture": {"any": "thing"},
}


class Server:
    """The app with one token, `good`, of pod `pod`; what it woke is in `woken`."""

    def __init__(self, *, attempt: int | None = 3) -> None:
        self.reports = Reports()
        self.woken: list[str] = []

        async def identify(token: str) -> str | None:
            return "pod" if token == "good" else None

        self.channel = Channel(
            reports=self.reports,
            identify=identify,
            orders_of=lambda uid, report: None if attempt is None else Reply(attempt=attempt),
            wake=self.woken.append,
            now=lambda: datetime(2026, 11, 21, tzinfo=UTC),
            random=lambda: 0.5,
        )

    def post(self, body: bytes, token: str | None = "good") -> tuple[int, dict[str, Any]]:
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        return self.with_client(lambda client: client.post("/v1/report", data=body, headers=headers))

    def with_client(self, send: Callable[[TestClient[Any, Any]], Any]) -> tuple[int, dict[str, Any]]:
        async def exchange() -> tuple[int, dict[str, Any]]:
            async with TestClient(TestServer(coordination_app(self.channel), host="127.0.0.1")) as client:
                response: ClientResponse = await send(client)
                return response.status, json.loads(await response.text())

        return asyncio.run(exchange())


def test_a_report_is_kept_its_owner_woken_and_the_attempt_answered() -> None:
    server = Server()
    status, reply = server.post(json.dumps(REPORT).encode())
    assert (status, reply) == (
        200,
        {"attempt": 3, "intervalSeconds": 0.2, "graceSeconds": 0.0, "dump": False, "end": False, "succeeded": False},
    )
    received = server.reports.of("pod")
    assert received is not None
    assert received.report.progress is not None
    assert received.report.progress.step == 120
    assert server.woken == ["pod"]


def test_an_older_report_is_answered_and_changes_nothing() -> None:
    server = Server()
    server.post(json.dumps(REPORT).encode())
    status, _ = server.post(json.dumps(REPORT | {"sequence": 3, "phase": "Starting"}).encode())
    received = server.reports.of("pod")
    assert status == 200
    assert received is not None
    assert received.report.phase == "Training"
    assert server.woken == ["pod"]


@pytest.mark.parametrize("token", [None, "", "bad", "Bearer good"])
def test_without_a_known_token_nothing_is_taken(token: str | None) -> None:
    server = Server()
    status, reply = server.post(json.dumps(REPORT).encode(), token)
    assert status == 401
    assert "token" in reply["message"] or "Bearer" in reply["message"]
    assert server.reports.of("pod") is None


def test_a_token_speaks_for_its_own_pod_only() -> None:
    status, reply = Server().post(json.dumps(REPORT | {"podUid": "other"}).encode())
    assert status == 403
    assert "other" in reply["message"]


def test_a_pod_of_an_unknown_job_gets_404() -> None:
    assert Server(attempt=None).post(json.dumps(REPORT).encode())[0] == 404


def test_a_body_that_is_too_large_is_refused() -> None:
    assert Server().post(b" " * (LARGEST_REPORT + 1))[0] == 413


def test_a_wrong_field_is_named() -> None:
    status, reply = Server().post(json.dumps(REPORT | {"index": "first"}).encode())
    assert status == 400
    assert "index" in reply["message"]


def test_garbage_gets_400_and_never_500() -> None:
    server = Server()
    for body in (b"", b"null", b"[]", b"{", b"\xff\xfe", b'{"job": {}}', b"[" * 100_000, b'{"index": 1e999}', b'{"pod": "\\ud800"}'):
        status, reply = server.post(body)
        assert status == 400, body[:20]
        assert reply["message"].startswith("this is no report")


@given(st.integers(0, 100_000), st.floats(0, 1, exclude_max=True), st.booleans())
def test_intervals_keep_the_server_within_its_rate_and_never_go_below_the_shortest(supervisors: int, random: float, waiting: bool) -> None:
    interval = interval_seconds(supervisors, random, waiting=waiting)
    assert interval >= round(0.8 * (SHORTEST_WAIT if waiting else SHORTEST_INTERVAL), 3)
    assert supervisors / (interval + 0.0005) <= (WAITS_PER_SECOND if waiting else REPORTS_PER_SECOND) / 0.8 + 1  # it is rounded


@pytest.mark.parametrize(("others", "header"), [(CONNECTIONS_KEPT - 1, None), (CONNECTIONS_KEPT, "close")])
def test_connections_are_kept_while_there_are_few(others: int, header: str | None) -> None:
    server = Server()
    for pod in range(others):
        server.reports.record(f"other-{pod}", Report.model_validate(REPORT), datetime(2026, 11, 21, tzinfo=UTC))
    told: list[str | None] = []

    async def send(client: TestClient[Any, Any]) -> ClientResponse:
        response = await client.post("/v1/report", data=json.dumps(REPORT).encode(), headers={"Authorization": "Bearer good"})
        told.append(response.headers.get("Connection"))
        return response

    assert server.with_client(send)[0] == 200
    assert told == [header]


def test_who_waits_for_a_world_comes_back_sooner_than_who_trains_whatever_the_number_of_these() -> None:
    server = Server()
    for pod in range(500):
        server.reports.record(f"other-{pod}", Report.model_validate(REPORT), datetime(2026, 11, 21, tzinfo=UTC))
    _, trains = server.post(json.dumps(REPORT).encode())
    _, waits = server.post(json.dumps(REPORT | {"waiting": True, "sequence": 10**6}).encode())
    assert waits["intervalSeconds"] < 0.07 < 8 < trains["intervalSeconds"]
    server.post(json.dumps(REPORT | {"sequence": 10**6 + 1}).encode())
    assert server.reports.waiting == 0


def test_intervals_differ_so_that_supervisors_do_not_post_together() -> None:
    assert interval_seconds(1, 0.0) < interval_seconds(1, 0.5) < interval_seconds(1, 0.99)
