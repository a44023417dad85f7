"""The processes of a world, connected by plain TCP. Here they are threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from local_cluster.ports import free_ports
from muster_contract.errors import PeerLost
from muster_trainer.measure.meeting import Meeting, address_of


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
