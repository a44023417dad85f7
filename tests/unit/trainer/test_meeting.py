"""The processes of a world that measures. Here they are threads."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from local_cluster.ports import free_ports
from muster_contract.errors import PeerLost
from muster_trainer.measure import meeting as meetings
from muster_trainer.measure.meeting import Meeting
from tests.support.own_loops import own_replica
from tests.support.waiting import wait_until


def all_ranks(world: int, does: Callable[[Meeting], Any], *, port: int | None = None) -> list[Any]:
    """The result of each rank, or its PeerLost."""
    port = port or free_ports(1)[0]
    replica = own_replica(job_uid=uuid.uuid4().hex, world_size=world, world_address=f"127.0.0.1:{port}")

    def one(rank: int) -> Any:
        try:
            with Meeting(replica, rank=rank) as meeting:
                return does(meeting)
        except PeerLost as error:
            return error

    with ThreadPoolExecutor(world) as threads:
        return list(threads.map(one, range(world), timeout=120))


@pytest.mark.parametrize("world", [1, 2, 4])
def test_all_ranks_receive_the_values_in_rank_order(world: int) -> None:
    results = all_ranks(world, lambda meeting: (meeting.share({"rank": meeting.rank}), meeting.first(meeting.rank + 7)))
    assert results == [([{"rank": rank} for rank in range(world)], 7)] * world


@pytest.mark.parametrize("world", [2, 3])
def test_the_link_is_measured_between_the_first_and_the_last_rank(world: int) -> None:
    timings, *others = all_ranks(world, lambda meeting: (meeting.link([0, 3_000_000]), meeting.share(meeting.rank))[0])
    assert others == [{}] * (world - 1)
    assert set(timings) == {0, 3_000_000}
    assert 0 < timings[0].median < timings[3_000_000].median


def test_a_rank_that_ends_is_a_lost_peer_for_all_others() -> None:
    def leaves(meeting: Meeting) -> str:
        if meeting.rank == 2:
            raise PeerLost("gone")
        meeting.share(None)
        return "went on"

    assert all(isinstance(one, PeerLost) for one in all_ranks(3, leaves))


def test_a_stranger_on_the_link_is_closed_and_disturbs_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meetings, "STRANGER_SECONDS", 0.5)
    [port] = free_ports(1)

    def link(meeting: Meeting) -> set[int]:
        if meeting.rank == 1:
            for content in (b"", b"x", b"x" * 32, b"\xff" * 4096):
                with suppress(OSError):
                    strangers.enter_context(wait_until(lambda: connected_to(port), "rank 0 listens")).sendall(content)
        return set(meeting.link([0]))

    with ExitStack() as strangers:
        assert all_ranks(2, link, port=port) == [{0}, set()]


def connected_to(port: int) -> socket.socket | None:
    try:
        return socket.create_connection(("127.0.0.1", port), timeout=30)
    except OSError:
        return None
