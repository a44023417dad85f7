"""The lease: at most one operator leads, even if operators or the API server freeze, are slow or are cut off."""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import wraps
from typing import Any

import pytest

from muster.kubernetes.election import Election, Lease, Times
from muster.kubernetes.errors import AlreadyExistsError, ClusterError, ConflictError, NotFoundError, UnavailableError
from tests.support.quick_loop import QuickLoop

FAST = Times(1.0)
REAL = Times(3.0)
LIMIT = 30.0
"""The most seconds of a test, by the clock of its loop."""
AsyncTest = Callable[..., Awaitable[None]]


class LeaseServer:
    """An API server with one lease. A PUT needs the current resource version."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.away = False
        self.hangs = False
        self.slow = 0.0
        self.reads = 0
        self._version = 0

    async def request(self, verb: str, path: str, *, body: Any = None, query: Any = None) -> Any:
        await asyncio.sleep(3600 if self.hangs else self.slow)
        if self.away:
            raise UnavailableError("no answer")
        if verb == "GET":
            if self.lease is None:
                raise NotFoundError(path)
            self.reads += 1
            return copy.deepcopy(self.lease)
        if verb == "POST" and self.lease is not None:
            raise AlreadyExistsError(path)
        if verb == "PUT" and self.lease and body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise ConflictError(path)
        self._version += 1
        self.lease = {**copy.deepcopy(body), "metadata": {**body["metadata"], "resourceVersion": str(self._version)}}
        return copy.deepcopy(self.lease)

    @property
    def holder(self) -> str:
        assert self.lease
        return str(self.lease["spec"]["holderIdentity"])


def candidate(server: LeaseServer, name: str, *, times: Times = FAST, ready: Callable[[], bool] = lambda: True) -> Lease:
    clock = asyncio.get_running_loop().time
    return Lease(server, "muster-system", name="muster", identity=name, times=times, ready=ready, clock=clock)


@pytest.fixture
def server() -> LeaseServer:
    return LeaseServer()


def on_quick_loop(test: AsyncTest) -> Callable[..., None]:
    """Runs an asynchronous test on a QuickLoop."""

    @wraps(test)
    def run(**fixtures: Any) -> None:
        loop = QuickLoop()
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(asyncio.wait_for(test(**fixtures), LIMIT))

    return run


def in_real_time(test: AsyncTest) -> Callable[..., None]:
    """Runs an asynchronous test."""

    @wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**fixtures), LIMIT))

    return run


@on_quick_loop
async def test_the_log_says_that_a_renewal_got_no_answer_in_time(server: LeaseServer, caplog: pytest.LogCaptureFixture) -> None:
    lease = candidate(server, "one")
    await lease.acquire()
    server.hangs = True
    with suppress(TimeoutError):
        await asyncio.wait_for(lease.keep(), 2 * FAST.duration)
    assert f"the lease cannot be read or renewed: no answer within {FAST.request_timeout} s" in caplog.messages


@on_quick_loop
async def test_one_of_many_candidates_leads(server: LeaseServer) -> None:
    candidates = [candidate(server, f"pod-{number}") for number in range(10)]
    tasks = [asyncio.create_task(each.acquire()) for each in candidates]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert sum(each.valid for each in candidates) == 1
    for task in tasks:
        task.cancel()


@on_quick_loop
async def test_a_lease_is_taken_at_once_if_released_or_else_after_its_duration(server: LeaseServer) -> None:
    first, second, third = (candidate(server, name) for name in ("a", "b", "c"))
    await first.acquire()
    await first.release()
    assert not first.valid
    await second.acquire()
    begun = asyncio.get_running_loop().time()
    await third.acquire()  # the second never renews
    assert asyncio.get_running_loop().time() - begun >= FAST.duration - 0.1
    assert not second.valid, "it stopped before the third could begin"


@on_quick_loop
async def test_a_pod_takes_its_lease_again_after_its_container_was_killed(server: LeaseServer) -> None:
    await candidate(server, "a").acquire()
    again = candidate(server, "a")
    async with asyncio.timeout(FAST.duration):
        await again.acquire()


@on_quick_loop
async def test_a_lease_is_invalid_while_the_api_server_is_away(server: LeaseServer) -> None:
    lease = candidate(server, "a")
    await lease.acquire()
    keeping = asyncio.create_task(lease.keep())
    server.away = True
    while lease.valid:  # noqa: ASYNC110 - only the passing of time ends it
        await asyncio.sleep(0.01)
    assert not lease.lost
    server.away = False
    while not lease.valid:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    keeping.cancel()


@on_quick_loop
async def test_a_leader_does_not_take_a_lost_lease_back(server: LeaseServer) -> None:
    lease = candidate(server, "a")
    await lease.acquire()
    assert server.lease
    server.lease["spec"]["holderIdentity"] = "b"
    server.lease["metadata"]["resourceVersion"] = "99"
    await lease.keep()
    assert lease.lost
    assert not lease.valid
    assert server.holder == "b"


@pytest.mark.parametrize("trouble", ["away", "hangs"])
@on_quick_loop
async def test_a_candidate_does_not_take_the_lease_because_the_api_server_was_away(trouble: str, server: LeaseServer) -> None:
    """When it answers again, the leader has a whole duration to renew its lease, however long the trouble took."""
    first, standby = candidate(server, "a"), candidate(server, "b", times=Times(0.5))
    await first.acquire()
    before = server.reads
    taking = asyncio.create_task(standby.acquire())
    while server.reads == before:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    setattr(server, trouble, True)
    await asyncio.sleep(2 * FAST.duration)  # the lease has expired by every clock
    assert not first.valid
    setattr(server, trouble, False)
    await asyncio.sleep(FAST.valid)
    assert server.holder == "a"
    await first.acquire()
    keeping = asyncio.create_task(first.keep())
    await asyncio.sleep(FAST.duration)
    assert server.holder == "a"
    assert first.valid
    for task in (taking, keeping):
        task.cancel()


@on_quick_loop
async def test_the_leader_keeps_its_lease_if_responses_are_slow(server: LeaseServer) -> None:
    first, standby = candidate(server, "a"), candidate(server, "b")
    await first.acquire()
    server.slow = FAST.request_timeout / 2
    tasks = [asyncio.create_task(standby.acquire()), asyncio.create_task(first.keep())]
    begun = asyncio.get_running_loop().time()
    while asyncio.get_running_loop().time() < begun + 4 * FAST.duration:
        await asyncio.sleep(0.01)
        assert first.valid
    for task in tasks:
        task.cancel()


@on_quick_loop
async def test_a_renewal_that_hangs_is_retried_in_time(server: LeaseServer) -> None:
    first = candidate(server, "a")
    await first.acquire()
    keeping = asyncio.create_task(first.keep())
    server.hangs = True
    await asyncio.sleep(FAST.renewal + 0.05)  # one renewal hangs, and only that one
    server.hangs = False
    begun = asyncio.get_running_loop().time()
    while asyncio.get_running_loop().time() < begun + FAST.duration:
        await asyncio.sleep(0.01)
        assert first.valid
    keeping.cancel()


@on_quick_loop
async def test_a_candidate_takes_the_lease_only_once_it_is_ready_to_lead(server: LeaseServer) -> None:
    ready = False
    cold = candidate(server, "cold", ready=lambda: ready)
    taking = asyncio.create_task(cold.acquire())
    await candidate(server, "a").acquire()  # and never renews
    begun = asyncio.get_running_loop().time()
    while asyncio.get_running_loop().time() < begun + 1.5 * FAST.duration:
        await asyncio.sleep(0.01)
        assert server.holder == "a"
    ready = True
    async with asyncio.timeout(FAST.duration):
        await taking


class Campaign:
    """An election on this server. The event loop of the test reads the state of its lease."""

    def __init__(self, server: LeaseServer, name: str, *, times: Times = REAL) -> None:
        self.election = Election()
        self._server, self._name, self._times = server, name, times

    async def run(self) -> None:
        await self.election.run(self.connect, lambda requests: Lease(requests, "ns", name="muster", identity=self._name, times=self._times))

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[LeaseServer]:
        yield self._server


@in_real_time
async def test_a_blocked_event_loop_does_not_delay_renewals(server: LeaseServer) -> None:
    campaign = Campaign(server, "a")
    election = campaign.election
    leading = asyncio.create_task(campaign.run())
    await election.won.wait()
    time.sleep(1.3 * REAL.duration)  # noqa: ASYNC251 - this is the point
    assert election.valid
    leading.cancel()
    await asyncio.wait([leading])
    assert server.holder == "", "it released the lease"
    while [each for each in threading.enumerate() if each.name == "election"]:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@in_real_time
async def test_an_election_ends_if_another_operator_leads_or_it_cannot_connect(server: LeaseServer) -> None:
    campaign = Campaign(server, "a")
    running = asyncio.create_task(campaign.run())
    await campaign.election.won.wait()
    assert server.lease
    server.lease["spec"]["holderIdentity"] = "b"
    server.lease["metadata"]["resourceVersion"] = "99"
    await running
    assert campaign.election.lost
    assert not campaign.election.valid

    @asynccontextmanager
    async def broken() -> AsyncIterator[LeaseServer]:
        raise OSError("no configuration")
        yield server

    with pytest.raises(OSError, match="no configuration"):
        await Election().run(broken, lambda requests: candidate(server, "c"))


@pytest.mark.parametrize("error", [UnavailableError("no answer"), ConflictError("quicker"), NotFoundError("gone")])
@on_quick_loop
async def test_release_never_raises(error: ClusterError, server: LeaseServer) -> None:
    lease = candidate(server, "a")
    await lease.acquire()

    async def refuse(verb: str, path: str, *, body: Any = None, query: Any = None) -> Any:
        raise error

    server.request = refuse  # type: ignore[method-assign]
    await lease.release()
    assert not lease.valid
