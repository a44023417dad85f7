"""The coordination server: which reports it accepts, what it replies, and that no request makes it fail."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import pytest
from aiohttp import ClientResponse, ClientSession
from hypothesis import given
from hypothesis import strategies as st

from muster.channel import pacing
from muster.channel.coordination import MOST_OPEN, Channel, CoordinationServer, RefusedReportError
from muster.channel.pacing import (
    LONGEST_INTERVAL,
    LONGEST_LONG_POLL,
    LONGEST_WAIT,
    REPORTS_PER_SECOND,
    SHORTEST_INTERVAL,
    SHORTEST_WAIT,
    SUSTAINED_PER_SECOND,
    WAITS_PER_SECOND,
    delay_seconds,
    interval_seconds,
    long_poll_seconds,
)
from muster.channel.rate_limits import BURST_FOR_EACH, BURST_PER_POD, RateLimits
from muster.channel.rate_limits import REPORTS_PER_SECOND as RATE_LIMIT
from muster.channel.reports import Reports
from muster_contract.events import MAX_ENTRIES, Fingerprint
from muster_contract.reports import MAX_REPORT, Reply, Report
from muster_contract.wire import WireError, decode, encode, parse

# A report of an old or a new trainer image: with unknown fields, and with the nulls that the supervisor writes.
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
    "checkpoint": {"step": 100, "path": "step-00000100", "time": 1795260506.0},
    "resumed": {"committedStep": None, "step": 0, "path": None, "skipped": []},
    "evaluation": None,
    "fingerprints": [{"rank": 0, "framework": "torch", "version": "2.15.0"}],
    "notices": [{"reason": "InputStalled", "message": "a notice"}],
    "termination": {"code": 137, "reason": "ProcessKilled", "message": "killed", "exitCode": None, "signal": "SIGKILL", "commit": None},
    "fieldOfTheFuture": {"any": "thing"},
}


class ChannelServer:
    """The server on loopback. Token `good` is of pod `pod`. `woken` has the pods with new reports, `left` those without a connection, and
    `refused` the reasons of refusals."""

    def __init__(self, *, attempt: int | None = 3) -> None:
        self.reports = Reports()
        self.woken: list[str] = []
        self.left: list[str] = []
        self.has_left = asyncio.Event()
        self.refused: Counter[str] = Counter()
        self.identified = 0
        self.clock = 0.0

        async def identify(token: str, address: str) -> str:
            self.identified += 1
            if token != "good":
                raise RefusedReportError(401, "token", "the token is not good")
            return "pod"

        def reply_to(uid: str, report: Report) -> Reply:
            if attempt is None:
                raise RefusedReportError(404, "pod", "no such replica")
            return Reply(attempt=attempt)

        self.channel = Channel(
            reports=self.reports,
            identify=identify,
            reply_to=reply_to,
            wake=self.woken.append,
            now=lambda: datetime(2026, 11, 21, tzinfo=UTC),
            random=lambda: 0.5,
            left=self.leave,
            refused=lambda reason: self.refused.update([reason]),
            limits=RateLimits(lambda: self.clock),
        )

    def leave(self, pod_uid: str) -> None:
        self.left.append(pod_uid)
        self.has_left.set()

    def post(self, body: bytes, token: str | None = "good", **headers: str) -> tuple[int, dict[str, Any]]:
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        return self.with_client(lambda client, url: client.post(url, data=body, headers=headers))

    def with_client(self, send: Callable[[ClientSession, str], Awaitable[ClientResponse]]) -> tuple[int, dict[str, Any]]:
        async def exchange() -> tuple[int, dict[str, Any]]:
            listener = CoordinationServer(self.channel).listener
            port = await listener.start("127.0.0.1", 0)
            try:
                async with ClientSession() as client:
                    response = await send(client, f"http://127.0.0.1:{port}/v1/report")
                    return response.status, json.loads(await response.text())
            finally:
                await listener.stop()

        return asyncio.run(exchange())


def test_a_report_is_stored_its_job_is_queued_and_the_reply_has_the_attempt() -> None:
    server = ChannelServer()
    status, reply = server.post(json.dumps(REPORT).encode())
    assert (status, decode(Reply, reply)) == (200, Reply(attempt=3, interval_seconds=0.2))
    received = server.reports.of("pod")
    assert received is not None
    assert received.report.progress is not None
    assert received.report.progress.step == 120
    assert server.woken == ["pod"]


def test_a_supervisor_whose_connection_has_closed_is_known_until_it_is_back() -> None:
    server = ChannelServer()

    async def check() -> None:
        listener = CoordinationServer(server.channel).listener
        url = f"http://127.0.0.1:{await listener.start('127.0.0.1', 0)}/v1/report"

        async def report(client: ClientSession, number: int) -> None:
            headers = {"Authorization": "Bearer good"}
            async with client.post(url, data=json.dumps(REPORT | {"sequence": number}), headers=headers) as response:
                assert response.status == 200

        try:
            async with ClientSession() as client:
                await report(client, 17)
                assert server.reports.disconnected_since("pod") is None
            await asyncio.wait_for(server.has_left.wait(), 20)
            assert server.left == ["pod"]
            assert server.reports.disconnected_since("pod") == server.channel.now()
            async with ClientSession() as client:
                await report(client, 3)  # an older report shows the connection as well
                assert server.reports.disconnected_since("pod") is None
        finally:
            await listener.stop()

    asyncio.run(check())


def test_an_older_report_gets_a_reply_and_changes_nothing() -> None:
    server = ChannelServer()
    server.post(json.dumps(REPORT).encode())
    status, _ = server.post(json.dumps(REPORT | {"sequence": 3, "phase": "Starting"}).encode())
    received = server.reports.of("pod")
    assert status == 200
    assert received is not None
    assert received.report.phase == "Training"
    assert server.woken == ["pod"]


@pytest.mark.parametrize("token", [None, "", "bad", "Bearer good"])
def test_a_report_without_a_valid_token_is_refused(token: str | None) -> None:
    server = ChannelServer()
    status, _ = server.post(json.dumps(REPORT).encode(), token)
    assert status == 401
    assert server.reports.of("pod") is None


def test_a_token_is_valid_only_for_its_own_pod() -> None:
    status, _ = ChannelServer().post(json.dumps(REPORT | {"podUid": "other"}).encode())
    assert status == 403


def test_a_pod_of_an_unknown_job_gets_404() -> None:
    assert ChannelServer(attempt=None).post(json.dumps(REPORT).encode())[0] == 404


def test_a_body_that_is_too_large_is_refused() -> None:
    assert ChannelServer().post(b" " * (MAX_REPORT + 1))[0] == 413


def test_the_message_names_the_wrong_field() -> None:
    status, reply = ChannelServer().post(json.dumps(REPORT | {"index": "first"}).encode())
    assert status == 400
    assert "index" in reply["message"]


def test_garbage_gets_400() -> None:
    server = ChannelServer()
    for body in (b"", b"null", b"[]", b"{", b"\xff\xfe", b'{"job": {}}', b"[" * 100_000, b'{"index": 1e999}', b'{"pod": "\\ud800"}'):
        status, reply = server.post(body)
        assert status == 400, body[:20]
        assert reply["message"].startswith("invalid report")
    assert server.refused == {"invalid": 9}


@given(st.integers(0, 100_000), st.floats(0, 1, exclude_max=True), st.booleans())
def test_intervals_stay_in_bounds_and_limit_the_rate_of_the_server(supervisors: int, random: float, waiting: bool) -> None:
    shortest, longest = (SHORTEST_WAIT, LONGEST_WAIT) if waiting else (SHORTEST_INTERVAL, LONGEST_INTERVAL)
    interval = interval_seconds(supervisors, random, waiting=waiting)
    sustained = supervisors / SUSTAINED_PER_SECOND
    assert round(0.8 * shortest, 3) <= interval <= round(1.2 * max(longest, sustained), 3)
    rate = (WAITS_PER_SECOND if waiting else REPORTS_PER_SECOND) if interval < 0.8 * longest else SUSTAINED_PER_SECOND
    if interval < 0.8 * longest or supervisors > longest * SUSTAINED_PER_SECOND:
        assert supervisors / (interval + 0.0005) <= rate / 0.8 + 1  # it is rounded
    assert interval <= (1.2 * LONGEST_INTERVAL) + delay_seconds(supervisors)
    assert SUSTAINED_PER_SECOND / 0.8 < RATE_LIMIT, "so no supervisor that keeps to its interval is refused"


WAITING = REPORT | {"waiting": True, "attempt": 3}


@pytest.mark.parametrize(
    ("preferred", "waiting", "seconds"), [(10, 0, 2.0), (1, 0, 1.0), (10, 1500, 5.0), (10, 16_384, 10.0), (9999, 16_384, 10.0)]
)
def test_reports_are_held_longer_if_more_supervisors_wait(preferred: float, waiting: int, seconds: float) -> None:
    assert long_poll_seconds(preferred, waiting) == seconds


class Waiter:
    """A supervisor of pod `pod` that waits. Its reports are held until its job changes. Then its reply names attempt `attempt`."""

    def __init__(self) -> None:
        self.server = ChannelServer()
        self.attempt = 3
        self.world: dict[str, str] | None = None
        channel = replace(self.server.channel, reply_to=lambda *_: Reply(attempt=self.attempt, world=self.world), job_of=lambda _: "job")
        self.coordination = CoordinationServer(channel)

    async def post(self, client: ClientSession, wait: str = "wait=10", **changes: Any) -> tuple[int, float]:
        """The attempt in the reply, and how many seconds it took."""
        begun = monotonic()
        headers = {"Authorization": "Bearer good", "Prefer": wait}
        response = await client.post(self.url, data=json.dumps(WAITING | changes).encode(), headers=headers)
        return json.loads(await response.text())["attempt"], monotonic() - begun

    def run(self, scenario: Callable[[ClientSession], Awaitable[None]]) -> None:
        async def whole() -> None:
            port = await self.coordination.listener.start("127.0.0.1", 0)
            self.url = f"http://127.0.0.1:{port}/v1/report"
            try:
                async with ClientSession() as client:
                    await scenario(client)
            finally:
                await self.coordination.listener.stop()

        asyncio.run(whole())

    async def until_held(self) -> None:
        for _ in range(4000):
            if self.coordination.held:
                return
            await asyncio.sleep(0.005)
        raise AssertionError("no report is held")


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports are held so long that no machine is too slow to answer earlier."""
    monkeypatch.setattr(pacing, "SHORTEST_LONG_POLL", LONGEST_LONG_POLL)


@pytest.mark.usefixtures("_patient")
def test_a_held_report_is_answered_when_its_job_has_news() -> None:
    waiter = Waiter()

    async def scenario(client: ClientSession) -> None:
        post = asyncio.create_task(waiter.post(client))
        await waiter.until_held()
        waiter.coordination.job_changed("another")
        waiter.coordination.job_changed("job")  # a change without news for this supervisor
        await asyncio.sleep(0.05)
        assert not post.done()
        waiter.attempt = 4
        waiter.coordination.job_changed("job")
        attempt, seconds = await post
        assert (attempt, seconds < LONGEST_LONG_POLL) == (4, True)
        assert not waiter.coordination.held

    waiter.run(scenario)


def test_a_held_report_is_answered_at_the_end_of_its_time() -> None:
    waiter = Waiter()

    async def scenario(client: ClientSession) -> None:
        attempt, seconds = await waiter.post(client, "wait=1")
        assert attempt == 3
        assert seconds >= 0.99
        assert not waiter.coordination.held

    waiter.run(scenario)


@pytest.mark.usefixtures("_patient")
@pytest.mark.parametrize(
    ("wait", "changes"), [("", {}), ("wait=x", {}), ("wait=-1", {}), ("wait=99999", {}), ("wait=10", {"waiting": False})]
)
def test_other_reports_are_answered_at_once(wait: str, changes: dict[str, Any]) -> None:
    waiter = Waiter()

    async def scenario(client: ClientSession) -> None:
        _, seconds = await waiter.post(client, wait, **changes)
        assert seconds < LONGEST_LONG_POLL

    waiter.run(scenario)


@pytest.mark.usefixtures("_patient")
def test_a_newer_report_of_the_pod_ends_the_wait_of_the_older_one() -> None:
    waiter = Waiter()

    async def scenario(client: ClientSession) -> None:
        first = asyncio.create_task(waiter.post(client))
        await waiter.until_held()
        second = asyncio.create_task(waiter.post(client, sequence=100))
        attempt, seconds = await first
        assert (attempt, seconds < LONGEST_LONG_POLL) == (3, True)
        assert waiter.coordination.held == 1
        waiter.attempt = 4
        waiter.coordination.job_changed("job")
        assert (await second)[0] == 4

    waiter.run(scenario)


@pytest.mark.usefixtures("_patient")
def test_a_report_with_termination_is_held_until_the_next_world() -> None:
    waiter, ended = Waiter(), {"termination": {"code": 20, "attempt": 3}}

    async def scenario(client: ClientSession) -> None:
        post = asyncio.create_task(waiter.post(client, **ended))
        await waiter.until_held()
        waiter.attempt = 4
        waiter.coordination.job_changed("job")  # the supervisor is ready for attempt 4 already
        await asyncio.sleep(0.05)
        assert not post.done()
        assert waiter.server.reports.waiting == 1
        waiter.world = {"MUSTER_ATTEMPT": "4"}
        waiter.coordination.job_changed("job")
        attempt, seconds = await post
        assert (attempt, seconds < LONGEST_LONG_POLL) == (4, True)
        received = waiter.server.reports.of("pod")
        assert received is not None
        state = (received.report.attempt, received.report.waiting, received.report.termination, received.report.progress)
        assert state == (4, False, None, None), "its processes may run from now on"
        assert (waiter.server.reports.waiting, received.report.index) == (0, 0)
        waiter.attempt = 5
        assert (await waiter.post(client, sequence=18, **ended))[0] == 5, "attempt 4 may run, so attempt 5 is news"

    waiter.run(scenario)


@pytest.mark.usefixtures("_patient")
def test_a_server_that_stops_answers_held_reports() -> None:
    waiter = Waiter()

    async def scenario(client: ClientSession) -> None:
        post = asyncio.create_task(waiter.post(client))
        await waiter.until_held()
        await waiter.coordination.listener.stop()  # after a second it cuts off those that are not answered
        assert (await post)[0] == 3

    waiter.run(scenario)


@pytest.mark.parametrize(("others", "header"), [(MOST_OPEN - 1, None), (MOST_OPEN, "close")])
def test_connections_stay_open_while_there_are_few(others: int, header: str | None) -> None:
    server = ChannelServer()
    for pod in range(others):
        server.reports.record(f"other-{pod}", decode(Report, REPORT), datetime(2026, 11, 21, tzinfo=UTC))
    headers_received: list[str | None] = []

    async def send(client: ClientSession, url: str) -> ClientResponse:
        response = await client.post(url, data=json.dumps(REPORT).encode(), headers={"Authorization": "Bearer good"})
        headers_received.append(response.headers.get("Connection"))
        return response

    assert server.with_client(send)[0] == 200
    assert headers_received == [header]


def test_waiting_supervisors_report_more_often_than_training_ones() -> None:
    server = ChannelServer()
    for pod in range(500):
        server.reports.record(f"other-{pod}", decode(Report, REPORT), datetime(2026, 11, 21, tzinfo=UTC))
    _, trains = server.post(json.dumps(REPORT).encode())
    _, waits = server.post(json.dumps(REPORT | {"waiting": True, "sequence": 10**6}).encode())
    assert waits["intervalSeconds"] < 0.07 < LONGEST_INTERVAL <= trains["intervalSeconds"]
    server.post(json.dumps(REPORT | {"sequence": 10**6 + 1}).encode())
    assert server.reports.waiting == 0


def test_intervals_differ_so_that_supervisors_do_not_post_together() -> None:
    assert interval_seconds(1, 0.0) < interval_seconds(1, 0.5) < interval_seconds(1, 0.99)


@pytest.mark.parametrize("encoding", ["deflate", "gzip", "br", "identity"])
def test_a_body_with_an_encoding_is_refused(encoding: str) -> None:
    server = ChannelServer()

    async def send(client: ClientSession, url: str) -> ClientResponse:
        headers = {"Authorization": "Bearer good", "Content-Encoding": encoding}
        return await client.post(url, data=json.dumps(REPORT).encode(), headers=headers)

    assert server.with_client(send)[0] == 415
    assert server.refused == {"encoding": 1}
    assert server.reports.of("pod") is None


OUT_OF_BOUNDS: dict[str, dict[str, Any]] = {
    "attempt": {"attempt": 10**12},
    "index": {"index": 10**30},
    "sequence": {"sequence": 10**30},
    "progress.step": {"progress": {"step": 10**30}},
    "progress.epoch": {"progress": {"step": 1, "epoch": 10**30}},
    "progress.totalSteps": {"progress": {"step": 1, "totalSteps": 10**30}},
    "checkpoint.step": {"checkpoint": {"step": 10**30, "path": "c"}},
    "checkpoint.seconds": {"checkpoint": {"step": 1, "path": "c", "seconds": 1e300}},
    "resumed.step": {"resumed": {"step": 10**30}},
    "resumed.skipped": {"resumed": {"step": 0, "skipped": [{"path": "c", "reason": "r"}] * 101}},
    "evaluation.step": {"evaluation": {"step": 10**30}},
    "evaluation.metrics": {"evaluation": {"step": 1, "metrics": {str(number): 0.0 for number in range(65)}}},
    "evaluation.metrics.loss": {"evaluation": {"step": 1, "metrics": {"loss": float("inf")}}},
    "termination.step": {"termination": {"code": 10, "step": 10**30}},
    "termination.attempt": {"termination": {"code": 10, "attempt": 10**12}},
    "savedSeconds": {"savedSeconds": float("inf")},
    "idleSeconds": {"idleSeconds": float("nan")},
    "marks.stepped": {"marks": {"stepped": 1e300}},
    "processes": {"processes": [{}] * 65},
    "ranks": {"ranks": [{}] * 65},
    "stacks": {"stacks": [{"attempt": 0}] * 65},
    "fingerprints": {"fingerprints": [{}] * 65},
    "fingerprints[0].libraries": {"fingerprints": [{"libraries": {str(number): "1" for number in range(65)}}]},
    "notices": {"notices": [{"message": "n"}] * 51},
    "job": {"job": "j" * 254},
}


@pytest.mark.parametrize(("where", "fields"), OUT_OF_BOUNDS.items(), ids=OUT_OF_BOUNDS)
def test_a_value_out_of_bounds_is_refused_by_name_and_the_next_report_accepted(where: str, fields: dict[str, Any]) -> None:
    server = ChannelServer()
    status, reply = server.post(json.dumps(REPORT | fields).encode())
    assert (status, reply["message"].split(": ")[1]) == (400, where)
    assert server.refused == {"invalid": 1}
    assert server.post(json.dumps(REPORT).encode())[0] == 200


@pytest.mark.parametrize(
    "wrap",
    [lambda entries: {"evaluation": {"step": 1, "metrics": entries}}, lambda entries: {"fingerprints": [{"libraries": entries}]}],
    ids=["metrics", "libraries"],
)
def test_a_large_mapping_is_refused_before_its_entries_are_validated(wrap: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    entries: dict[str, Any] = {f"\x1b{number}": {} for number in range(10_000)}
    with pytest.raises(WireError, match="at most 64 entries are allowed, found 10000"):
        parse(Report, json.dumps(REPORT | wrap(entries)))


def test_a_list_of_devices_is_bounded() -> None:
    with pytest.raises(WireError, match=f"devices: at most {MAX_ENTRIES} entries"):
        decode(Fingerprint, {"devices": ["cpu"] * 1000})


@pytest.mark.parametrize(
    "framing", ["Content-Length: 1000\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n64\r\n{"], ids=["length", "chunked"]
)
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_report_that_is_cut_off_is_counted_and_logs_nothing(framing: str, reset: bool, caplog: pytest.LogCaptureFixture) -> None:
    server = ChannelServer()

    async def check() -> None:
        listener = CoordinationServer(server.channel).listener
        port = await listener.start("127.0.0.1", 0)
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"POST /v1/report HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer good\r\n{framing}".encode())
            await writer.drain()
            deadline = time.monotonic() + 20
            while not listener.connections or not server.identified:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
            if reset:
                writer.transport.abort()
            else:
                writer.close()
            while listener.connections or not server.refused:
                assert time.monotonic() < deadline, (listener.connections, server.refused, caplog.text)
                await asyncio.sleep(0.01)
        finally:
            await listener.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(check())
    assert server.refused == {"cut": 1}
    assert caplog.text == ""


def test_long_text_is_cut_and_its_control_characters_are_escaped() -> None:
    server, dirty = ChannelServer(), "a\x1b]0;owned\x07\nb\u202e" + "x" * 5000
    last = {"code": 10, "message": dirty, "reason": dirty, "commit": {"step": 1, "path": dirty}, "loss": dirty}
    fields = {
        "notices": [{"reason": dirty, "message": dirty}],
        "phase": dirty,
        "checkpoint": {"step": 1, "path": dirty},
        "termination": last,
        "evaluation": {"step": 1, "metrics": {dirty: 1.0}},
        "stacks": [{"attempt": 0, "frames": ["one\ntwo\x1b"]}],
        "fingerprints": [{"rank": 0, "version": dirty, "libraries": {dirty: dirty}, "devices": [dirty], "threads": 4}],
    }
    assert server.post(json.dumps(REPORT | fields).encode())[0] == 200
    received = server.reports.of("pod")
    assert received is not None
    report = received.report
    assert report.stacks[0].frames == ("one\\ntwo\\x1b",)
    assert report.notices[0].message.startswith("a\\x1b]0;owned\\x07\\nb\\u202exxx")
    stored = json.dumps(encode(replace(report, stacks=())), ensure_ascii=False)
    assert all(ord(each) >= 32 and each != "\u202e" for each in stored)
    assert "\\u001b" not in stored
    assert len(stored) < 16_000


def test_only_pods_that_report_too_often_are_refused() -> None:
    clock = [0.0]
    limits = RateLimits(lambda: clock[0])

    def refused(*, every: float, seconds: float) -> int:
        count = 0
        for _ in range(int(seconds / every)):
            clock[0] += every
            count += limits.retry_seconds("pod", size=2000, pods=1) > 0
        return count

    assert refused(every=0.02, seconds=60) == 0
    assert refused(every=0.001, seconds=10) > 9000
    clock[0] += 2
    assert limits.retry_seconds("pod", size=2000, pods=1) == 0


def test_pods_that_report_at_their_interval_are_served_during_a_flood() -> None:
    clock = [0.0]
    limits = RateLimits(lambda: clock[0], per_second=100.0, burst=100.0)
    served, shed = Counter[str](), Counter[str]()

    def report(uid: str) -> None:
        (shed if limits.retry_seconds(uid, size=2000, pods=60) else served).update([uid[:4]])
        limits.expect(uid, 2.0)

    for tick in range(1000):
        clock[0] += 0.01
        for number in range(10):
            report(f"evil-{number}")
        if tick % 10 == 0:
            report(f"good-{tick // 10 % 20}")
    assert shed["good"] == 0
    assert served["evil"] + served["good"] <= 100 * 10 + BURST_FOR_EACH * 60
    assert shed["evil"] > 8000


def test_a_large_report_costs_as_much_as_many_small_ones() -> None:
    def served(size: int) -> int:
        limits = RateLimits(lambda: 0.0)
        return sum(limits.retry_seconds("pod", size=size, pods=1) == 0 for _ in range(int(BURST_PER_POD)))

    assert served(12 * 1024) == served(2000) == BURST_PER_POD
    assert served(MAX_REPORT) <= BURST_PER_POD / 8


def test_no_report_of_a_large_world_that_breaks_twice_is_refused() -> None:
    clock, size = [0.0], 4096
    limits = RateLimits(lambda: clock[0])
    refused = 0

    def report(number: int, news: tuple[int, bool] | None) -> None:
        nonlocal refused
        clock[0] += 0.0005
        refused += limits.retry_seconds(str(number), size=2000, pods=size) > 0
        limits.expect(str(number), 13.0, news=news)

    for attempt in (1, 2):
        for news in ((attempt, False), (attempt, True), None):
            for number in range(size):
                report(number, news)
    assert refused == 0


def test_news_of_an_attempt_excuses_one_early_report() -> None:
    limits = RateLimits(lambda: 0.0, per_second=1.0, burst=100.0)

    def served(uid: str, news: tuple[int, bool] | None) -> int:
        """How many of 90 reports in a row are served to a pod whose replies all have this news."""
        count = 0
        for _ in range(90):
            count += limits.retry_seconds(uid, size=2000, pods=1) == 0
            limits.expect(uid, 10.0, news=news)
        return count

    assert served("flood", None) == 50  # the other half of the bucket is for pods that keep to their interval
    assert served("no news", None) == 1
    assert served("news", (1, True)) == 2


def test_a_refusal_for_the_rate_has_retry_after_and_ignores_the_body() -> None:
    server = ChannelServer()

    async def send(client: ClientSession, url: str) -> ClientResponse:
        for sequence in range(int(BURST_PER_POD)):
            async with client.post(url, json=REPORT | {"sequence": sequence}, headers={"Authorization": "Bearer good"}) as response:
                assert response.status == 200
        return await client.post(url, data=b"no report at all", headers={"Authorization": "Bearer good"})

    retry_after: list[str | None] = []

    async def last(client: ClientSession, url: str) -> ClientResponse:
        response = await send(client, url)
        retry_after.append(response.headers.get("Retry-After"))
        return response

    assert server.with_client(last)[0] == 429
    assert retry_after == ["1"]
    assert server.refused == {"rate": 1}
