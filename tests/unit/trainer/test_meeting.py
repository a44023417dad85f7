"""The processes of a world, connected by plain TCP. Here they are threads."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from local_cluster.ports import free_ports
from muster_contract.errors import PeerLost
from muster_trainer.measure import meeting as meeting_module
from muster_trainer.measure.meeting import Meeting, address_of
from tests.support.waiting import wait_until


def all_ranks(world: int, does: Callable[[Meeting], Any]) -> list[Any]:
    """The result of each rank, or its PeerLost."""
    [port] = free_ports(1)

    def one(rank: int) -> Any:
        environment = {"MUSTER_RANK": str(rank), "MUSTER_WORLD_SIZE": str(world), "MUSTER_WORLD_ADDRESS": f"127.0.0.1:{port}"}
        try:
            with Meeting(environment, timeout=30) as meeting:
                return does(meeting)
        except PeerLost as error:
            return error

    with ThreadPoolExecutor(world) as threads:
        return list(threads.map(one, range(world)))


@pytest.mark.parametrize("world", [1, 2, 4])
def test_all_ranks_receive_the_values_in_rank_order(world: int) -> None:
    results = all_ranks(world, lambda meeting: (meeting.share({"rank": meeting.rank}), meeting.first(meeting.rank + 7)))
    assert results == [([{"rank": rank} for rank in range(world)], 7)] * world


def test_the_link_is_measured_between_the_first_and_the_last_rank() -> None:
    timings, *others = all_ranks(3, lambda meeting: (meeting.link([0, 3_000_000]), meeting.share(meeting.rank))[0])
    assert others == [{}, {}]
    assert set(timings) == {0, 3_000_000}
    assert 0 < timings[0].median < timings[3_000_000].median


def test_a_rank_that_ends_is_a_lost_peer_for_all_others() -> None:
    def leaves(meeting: Meeting) -> str:
        if meeting.rank == 2:
            raise PeerLost("gone")
        meeting.share(None)
        return "went on"

    assert all(isinstance(one, PeerLost) for one in all_ranks(3, leaves))


def test_the_address_of_the_world_comes_from_the_environment() -> None:
    environment = {"MUSTER_RANK": "3", "MUSTER_WORLD_SIZE": "4", "MUSTER_WORLD_ADDRESS": "[::1]:29500"}
    assert address_of(environment) == (3, 4, "[::1]", 29500)
    assert address_of({})[:2] == (0, 1)


def test_a_connection_without_the_greeting_is_closed_and_disturbs_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting_module, "MOST_WAITING", 3)
    [port] = free_ports(1)
    world = {"MUSTER_WORLD_SIZE": "2", "MUSTER_WORLD_ADDRESS": f"127.0.0.1:{port}", "MUSTER_JOB_UID": "uid"}

    def rank(number: int, **other: str) -> list[int]:
        with Meeting({**world, "MUSTER_RANK": str(number), **other}, timeout=60) as meeting:
            return meeting.share(number)

    def stranger(content: bytes) -> socket.socket:
        connection = wait_until(lambda: connected_to(port), "rank 0 listens")
        with suppress(OSError):
            connection.sendall(content)
        return connection

    with ThreadPoolExecutor(3) as threads, ExitStack() as stack:
        first = threads.submit(rank, 0)
        for content in (
            b"",
            b"x",
            b"x" * 36,
            struct.pack("!Q", 300 << 20) + b"[" * (8 << 20),
            struct.pack("!32sI", b"", 1),
            b"",
            b"",
            b"",
            b"",
        ):
            stack.enter_context(stranger(content))
        foreign = threads.submit(rank, 1, MUSTER_JOB_UID="another")
        assert isinstance(foreign.exception(60), PeerLost)
        own = threads.submit(rank, 1)
        assert first.result(60) == own.result(60) == [0, 1]


def connected_to(port: int) -> socket.socket | None:
    try:
        return socket.create_connection(("127.0.0.1", port), timeout=30)
    except OSError:
        return None


def test_a_value_that_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting_module, "MOST_BYTES", 100)
    results = all_ranks(2, lambda meeting: meeting.share("x" * 200 * meeting.rank))
    assert isinstance(results[0], PeerLost)
    assert "too much" in str(results[0])
