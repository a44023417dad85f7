"""What decides about processes that survive the loss of a peer: which may go on, which state counts, and what ends their wait."""

from __future__ import annotations

import json
import os
import socket
import sys
import time

import pytest

from muster_contract.events import decode_event
from muster_contract.run_state import RunState, apply
from muster_trainer.host.connections import Connections
from muster_trainer.host.orders import Orders
from muster_trainer.supervisor.survivors import can_continue, moved
from muster_trainer.training.survivor import SurvivorSteps

ENV = {"MUSTER_ATTEMPT": "1", "MASTER_ADDR": "tiny-worker-0", "MASTER_PORT": "4000", "WORLD_SIZE": "2", "RANK": "1", "MUSTER_TRAINER": "{}"}


@pytest.mark.parametrize(
    ("steps", "newest", "source", "receivers"),
    [
        ((None, None), None, None, None),
        ((None, 7), 7, 1, [0]),
        ((7, None, 8, 8), 8, 2, [0, 1]),
        ((0, None), 0, 0, [1]),
        ((5, 5), 5, 0, []),
    ],
)
def test_the_newest_state_goes_to_the_ranks_without_it(
    steps: tuple[int | None, ...], newest: int | None, source: int | None, receivers: list[int] | None
) -> None:
    survivor_steps = SurvivorSteps(steps)
    assert (survivor_steps.newest, survivor_steps.survivors) == (newest, sum(step is not None for step in steps))
    if newest is not None:
        assert (survivor_steps.source, survivor_steps.receivers) == (source, receivers)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"MUSTER_ATTEMPT": "2", "MASTER_PORT": "4001"}, True),
        ({"MASTER_ADDR": "tiny-worker-0-2"}, True),
        ({"WORLD_SIZE": "3"}, False),
        ({"RANK": "0"}, False),
        ({"MUSTER_TRAINER": '{"task": "gpt"}'}, False),
        ({"A_NEW_VARIABLE": "1"}, False),
    ],
)
def test_a_process_goes_on_if_only_the_place_of_the_world_changes(change: dict[str, str], expected: bool) -> None:
    assert can_continue(ENV, {**ENV, **change}) is expected
    assert can_continue({**ENV, **change}, ENV) is expected


def test_an_order_has_all_addresses_because_the_process_may_have_changed_them() -> None:
    assert moved(ENV) == {"MUSTER_ATTEMPT": "1", "MASTER_ADDR": "tiny-worker-0", "MASTER_PORT": "4000"}


@pytest.fixture
def broken_worlds() -> list[int]:
    """The attempts whose worlds are to be left."""
    return []


@pytest.fixture
def pipe(broken_worlds: list[int]) -> tuple[Orders, int]:
    reader, writer = os.pipe()
    return Orders(reader, broken_worlds.append), writer


def test_an_order_names_the_next_world_once(pipe: tuple[Orders, int], broken_worlds: list[int]) -> None:
    orders, writer = pipe
    for order in ({"leave": 3}, {"world": {"MUSTER_ATTEMPT": "4"}}):
        os.write(writer, json.dumps(order).encode() + b"\n")
    assert orders.next_world(seconds=10, until=lambda: False) == {"MUSTER_ATTEMPT": "4"}
    assert broken_worlds == [3]
    assert orders.next_world(seconds=0, until=lambda: False) is None
    os.close(writer)


def test_the_end_of_the_pipe_ends_the_wait(pipe: tuple[Orders, int]) -> None:
    orders, writer = pipe
    os.close(writer)
    began = time.monotonic()
    assert orders.next_world(seconds=60, until=lambda: False) is None
    assert time.monotonic() < began + 30
    assert not orders.is_open


def test_a_request_to_stop_ends_the_wait(pipe: tuple[Orders, int]) -> None:
    orders, writer = pipe
    began = time.monotonic()
    assert orders.next_world(seconds=60, until=lambda: time.monotonic() > began + 0.2) is None
    assert time.monotonic() < began + 30
    os.close(writer)


def test_a_process_without_a_supervisor_gets_no_orders() -> None:
    assert not Orders.from_environment({}, lambda attempt: None).is_open


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the sockets of a process")
def test_only_connections_of_the_library_are_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        before = socket.create_connection(server.getsockname())
        connections = Connections()
        during = socket.create_connection(server.getsockname())
        connections.complete()
        after = socket.create_connection(server.getsockname())
        connections.close()
        connections.close()
        others = [server.accept()[0] for _ in range(3)]  # the socket that listens still does
        with before, during, after, others[0], others[1], others[2]:
            assert during.recv(1) == b""
            assert others[1].recv(1) == b""
            for own, other in ((before, others[0]), (after, others[2])):
                own.sendall(b"a")
                assert other.recv(1) == b"a"


def test_a_rank_that_can_wait_is_part_of_the_state() -> None:
    state = apply(RunState(), decode_event({"event": "wholeState", "waits": True, "rank": 1}))
    assert state.waits
    assert apply(state, decode_event({"event": "wholeState", "rank": 0})).waits
    assert not apply(RunState(), decode_event({"event": "wholeState"})).waits
