"""The ranks of a world: gathering, stops, ends and invalid connections."""

from __future__ import annotations

import itertools
import json
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_contract.errors import BadConfiguration, PeerLost
from muster_trainer.host.ranks import Address, Lines, OtherRank, Ranks, RankZero, Table, address_of
from tests.support.own_loops import own_replica
from tests.support.waiting import wait_until

T = TypeVar("T")


def fresh_address() -> Address:
    name = uuid.uuid4().hex[:16]
    return Address(name=f"\0test-{name}" if sys.platform == "linux" else f"/tmp/test-{name}.sock")


@contextmanager
def world_of(size: int) -> Iterator[tuple[list[Ranks], Address]]:
    address, greeting = fresh_address(), {"job": "uid", "attempt": 0, "generation": "", "world": size}
    first = RankZero(address, greeting, size)
    ranks: list[Ranks] = [first, *(OtherRank(address, greeting, rank) for rank in range(1, size))]
    yield ranks, address
    for rank in reversed(ranks):
        rank.leave()


def on_all(ranks: list[Ranks], call: Callable[[Ranks], T]) -> list[T]:
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(call, ranks, timeout=60))


def test_gather_gives_all_texts_in_order_and_broadcast_the_text_of_rank_0() -> None:
    with world_of(4) as (ranks, _):
        for number in range(3):
            expected = [f"{number}-{rank}" for rank in range(4)]
            assert on_all(ranks, lambda each: each.gather(f"{number}-{each.rank}")) == [expected] * 4  # noqa: B023
        assert on_all(ranks, lambda each: each.broadcast(f"from {each.rank}")) == ["from 0"] * 4


def test_all_ranks_stop_at_the_same_call_if_any_rank_is_requested_to() -> None:
    for requested in range(3):
        with world_of(3) as (ranks, _):

            def train(rank: Ranks) -> int:
                deadline = time.monotonic() + 60
                for call in itertools.count(1):
                    time.sleep(0.001 * rank.rank)
                    if rank.stops(call, rank.rank == requested and call > 20):  # noqa: B023
                        return call
                    assert time.monotonic() < deadline
                return 0

            stops = on_all(ranks, train)
            assert len(set(stops)) == 1
            assert stops[0] > 20


@given(st.integers(1, 5), st.integers(0, 60), st.randoms(use_true_random=False))
def test_ranks_never_pass_the_call_at_which_another_stops(world: int, requested_at: int, random: Random) -> None:
    table, calls, stopped = Table(world), [0] * world, [0] * world
    requested = random.randrange(world)
    for _ in range(2000):
        rank = random.randrange(world)
        if stopped[rank]:
            continue
        calls[rank] += 1
        stop, until = table.stops(calls[rank], rank == requested and calls[rank] >= requested_at)
        assert until >= calls[rank] or stop
        stopped[rank] = calls[rank] if stop else 0
    assert len({each for each in stopped if each}) <= 1
    limit = max(stopped)
    assert not limit or max(calls) <= limit


def test_all_ranks_save_at_the_same_calls_once_for_each_wish_of_rank_0() -> None:
    with world_of(3) as (ranks, _):

        def train(rank: Ranks) -> list[int]:
            saves = []
            for call in range(1, 200):
                time.sleep(0.0005 * rank.rank)
                assert not rank.stops(call, False, save=rank.rank == 0 and call in (20, 90))
                saves += [call] if rank.saves else []
            return saves

        first, *others = on_all(ranks, train)
        assert others == [first, first]
        assert len(first) == 2
        assert first[0] >= 20
        assert first[1] >= 90


def test_a_rank_that_is_asked_to_stop_before_a_save_is_asked_again_at_the_save() -> None:
    table = Table(2)
    granted = table.stops(1, False)[1]
    table.request_save()
    save = granted + 1
    for call in range(2, save):
        assert table.stops(call, False)[1] < save
    assert table.stops(save, False)[1] > save, "rank 0 saves, and goes on"
    assert table.stops(save - 1, True) == (False, save - 1), "the other rank has not saved yet"
    assert table.saves(save)


def test_a_killed_rank_is_a_lost_peer_for_waiting_ranks() -> None:
    with world_of(3) as (ranks, _):
        killed = ranks[2]
        assert isinstance(killed, OtherRank)
        killed._lines.close()
        for answer in on_all(ranks[:2], lost):
            assert "rank 2 is gone" in answer


def test_rank_0_is_a_lost_peer_if_killed_but_not_if_it_has_left() -> None:
    with world_of(2) as (ranks, _):
        first, other = ranks
        first.leave()
        assert other.stops(1, False) is False
        assert "has ended" in lost(other)
    with world_of(2) as (ranks, _):
        first, other = ranks
        assert isinstance(first, RankZero)
        wait_until(lambda: 1 in first._lines, "rank 1")
        first._lines[1].close()
        with pytest.raises(PeerLost, match="rank 0 is gone"):
            other.stops(1, False)


def test_gathered_texts_reach_all_ranks_even_if_rank_0_ends_at_once() -> None:
    for _ in range(5):
        with world_of(4) as (ranks, _):

            def last(rank: Ranks) -> list[str]:
                texts = rank.gather("x" * 100_000)
                rank.leave()
                return texts

            assert on_all(ranks, last) == [["x" * 100_000] * 4] * 4


def test_a_rank_that_connects_a_second_time_is_not_lost() -> None:
    for _ in range(5):
        address, own = fresh_address(), {"job": "uid", "attempt": 0, "generation": "", "world": 2}
        first = RankZero(address, own, 2)
        given_up = Lines(address.connect())
        given_up.send(**own, rank=1)
        given_up.close()
        ranks: list[Ranks] = [first, OtherRank(address, own, 1)]
        assert on_all(ranks, lambda rank: rank.gather(str(rank.rank))) == [["0", "1"]] * 2
        for rank in reversed(ranks):
            rank.leave()


def lost(rank: Ranks) -> str:
    with pytest.raises(PeerLost) as error:
        rank.gather("")
    return str(error.value)


def greeting(**changed: object) -> bytes:
    return json.dumps({"job": "uid", "attempt": 0, "generation": "", "world": 2, "rank": 1, **changed}).encode() + b"\n"


@pytest.mark.parametrize(
    "sent",
    [
        *(b"\n", b"[]\n", b"\xff\xff\n", b"[" * 3000 + b"\n", b"{" + b"x" * 10_000),
        *(greeting(job="other"), greeting(attempt=1), greeting(world=3)),
        *(greeting(rank=rank) for rank in (0, 2, -1, "1", True, None)),
    ],
)
def test_invalid_connections_are_closed_and_do_not_disturb_the_ranks(sent: bytes) -> None:
    with world_of(2) as (ranks, address):
        outsider = Lines(address.connect())
        outsider.connection.settimeout(30)
        outsider.connection.sendall(sent)
        with pytest.raises(ConnectionError):
            outsider.receive()
        assert on_all(ranks, lambda each: each.gather(str(each.rank))) == [["0", "1"]] * 2


@pytest.mark.parametrize("message", [{}, {"call": "x", "requested": 1}, {"gather": None, "text": ""}, {"call": []}])
def test_a_rank_that_sends_invalid_messages_is_lost(message: dict[str, Any]) -> None:
    with world_of(2) as (ranks, _):
        other = ranks[1]
        assert isinstance(other, OtherRank)
        other._lines.send(**message)
        assert "rank 1 is gone" in lost(ranks[0])


def test_the_address_of_ranks_is_derived_from_the_port_of_the_framework() -> None:
    assert address_of(own_replica(world_address="digits-worker-0.digits:29500"), "") == Address("digits-worker-0.digits", 30500)
    assert address_of(own_replica(world_address="host:65000"), "").port == 64000
    local = address_of(own_replica(world_address="127.0.0.1:29500"), "")
    assert local.name
    assert local != address_of(own_replica(world_address="127.0.0.1:29500", attempt=1), "")
    with pytest.raises(BadConfiguration, match="no address"):
        address_of(own_replica(world_address=None), "")
