"""The processes of a world, met over plain TCP; here they are threads."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from muster_trainer.contract import PeerLost
from muster_trainer.meeting import Meeting, place_of


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def all_ranks(world: int, does: Callable[[Meeting], Any]) -> list[Any]:
    """What each rank gives, or the PeerLost that it ends with."""
    port = str(free_port())

    def one(rank: int) -> Any:
        environment = {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        try:
            with Meeting(environment, timeout=30) as meeting:
                return does(meeting)
        except PeerLost as error:
            return error

    with ThreadPoolExecutor(world) as threads:
        return list(threads.map(one, range(world)))


@pytest.mark.parametrize("world", [1, 2, 4])
def test_all_learn_what_each_gives_in_the_order_of_ranks(world: int) -> None:
    found = all_ranks(world, lambda meeting: (meeting.share({"rank": meeting.rank}), meeting.first(meeting.rank + 7)))
    assert found == [([{"rank": rank} for rank in range(world)], 7)] * world


def test_the_link_is_measured_between_the_first_and_the_last_and_all_go_on_together() -> None:
    timings, *others = all_ranks(3, lambda meeting: (meeting.link([0, 3_000_000]), meeting.share(meeting.rank))[0])
    assert others == [{}, {}]
    assert set(timings) == {0, 3_000_000}
    assert 0 < timings[0].median < timings[3_000_000].median


def test_a_rank_that_goes_away_is_missed_by_all_others() -> None:
    def leaves(meeting: Meeting) -> str:
        if meeting.rank == 2:
            raise PeerLost("gone")
        meeting.share(None)
        return "went on"

    assert all(isinstance(one, PeerLost) for one in all_ranks(3, leaves))


def test_a_world_is_found_where_its_framework_will_find_it() -> None:
    config = {"cluster": {"worker": ["w-0.job:2222", "w-1.job:2223"]}, "task": {"type": "worker", "index": 1}}
    assert place_of({"TF_CONFIG": json.dumps(config)}) == (1, 2, "w-0.job", 2222)
    assert place_of({"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "m", "MASTER_PORT": "29500"}) == (3, 4, "m", 29500)
    assert place_of({})[:2] == (0, 1)
