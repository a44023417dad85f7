"""The lease: at most one leads, whoever is frozen, slow or cut off."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from muster.control.errors import AlreadyExistsError, ClusterError, ConflictError, NotFoundError, UnavailableError
from muster.kubernetes.leader import Lease, Times

FAST = Times(duration=1.0, valid=0.3, retry=0.02)
LIMIT = 10.0


class LeaseServer:
    """One lease, as an API server keeps it: PUT needs the version that was read."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.away = False
        self._version = 0

    async def request(self, verb: str, path: str, *, body: Any = None, query: Any = None) -> Any:
        await asyncio.sleep(0)
        if self.away:
            raise UnavailableError("no answer")
        if verb == "GET":
            if self.lease is None:
                raise NotFoundError(path)
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


def candidate(server: LeaseServer, name: str) -> Lease:
    return Lease(server, "muster-system", name="muster", identity=name, times=FAST)


def play(scene: Callable[[LeaseServer], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(LIMIT):
            await scene(LeaseServer())

    asyncio.run(run())


def test_of_many_candidates_at_once_one_leads() -> None:
    async def scene(server: LeaseServer) -> None:
        lots = [candidate(server, f"pod-{number}") for number in range(10)]
        tasks = [asyncio.create_task(each.acquire()) for each in lots]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert sum(each.valid for each in lots) == 1
        for task in tasks:
            task.cancel()

    play(scene)


def test_a_released_lease_is_taken_at_once_and_one_that_is_not_renewed_after_its_duration() -> None:
    async def scene(server: LeaseServer) -> None:
        first, second, third = (candidate(server, name) for name in ("a", "b", "c"))
        await first.acquire()
        await first.release()
        assert not first.valid
        await second.acquire()
        begun = asyncio.get_running_loop().time()
        await third.acquire()  # the second never renews
        assert asyncio.get_running_loop().time() - begun >= FAST.duration - 0.1
        assert not second.valid, "it stopped before the third could begin"

    play(scene)


def test_the_same_pod_goes_on_with_its_lease_after_its_container_was_killed() -> None:
    async def scene(server: LeaseServer) -> None:
        await candidate(server, "a").acquire()
        again = candidate(server, "a")
        async with asyncio.timeout(FAST.duration / 2):
            await again.acquire()

    play(scene)


def test_a_leader_without_an_api_server_stops_writing_and_goes_on_when_it_is_back() -> None:
    async def scene(server: LeaseServer) -> None:
        lease = candidate(server, "a")
        await lease.acquire()
        keeping = asyncio.create_task(lease.keep())
        server.away = True
        while lease.valid:  # noqa: ASYNC110 - time alone ends it
            await asyncio.sleep(0.01)
        assert not lease.lost.is_set()
        server.away = False
        while not lease.valid:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        keeping.cancel()

    play(scene)


def test_a_leader_whose_lease_was_taken_knows_and_never_takes_it_back() -> None:
    async def scene(server: LeaseServer) -> None:
        lease = candidate(server, "a")
        await lease.acquire()
        assert server.lease
        server.lease["spec"]["holderIdentity"] = "b"
        server.lease["metadata"]["resourceVersion"] = "99"
        await lease.keep()
        assert lease.lost.is_set()
        assert not lease.valid
        assert server.holder == "b"

    play(scene)


@pytest.mark.parametrize("error", [UnavailableError("no answer"), ConflictError("quicker"), NotFoundError("gone")])
def test_releasing_never_fails(error: ClusterError) -> None:
    async def scene(server: LeaseServer) -> None:
        lease = candidate(server, "a")
        await lease.acquire()

        async def refuse(verb: str, path: str, *, body: Any = None, query: Any = None) -> Any:
            raise error

        server.request = refuse  # type: ignore[method-assign]
        await lease.release()
        assert not lease.valid

    play(scene)
