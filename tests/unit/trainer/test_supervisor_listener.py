"""The supervisor's listener for events. Its input is checked as strictly as the input of the pipe."""

from __future__ import annotations

import json
import socket

import pytest

from muster_contract.environment import EVENTS_ADDRESS, EVENTS_TOKEN
from muster_contract.events import Step
from muster_trainer.supervisor.event_reader import LONGEST_LINE, Line
from muster_trainer.supervisor.listener import LONGEST_TOKEN, MOST_CONNECTIONS, Connection, Listener
from muster_training.sender import Sender
from tests.support.waiting import wait_until


def connect(listener: Listener) -> socket.socket:
    host, _, port = listener.variables[EVENTS_ADDRESS].rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def accepted(listener: Listener) -> Connection:
    return wait_until(listener.accept, "the connection")[0]


def lines_of(connection: Connection, count: int = 1) -> list[Line]:
    lines: list[Line] = []

    def enough() -> bool:
        lines.extend(connection.read() if connection.open else [])
        return len(lines) >= count or not connection.open

    wait_until(enough, "lines")
    return lines


def test_events_come_after_the_token_and_get_the_rank_of_the_replica(listener: Listener) -> None:
    with connect(listener) as program:
        connection = accepted(listener)
        program.sendall(listener.variables[EVENTS_TOKEN].encode() + b'\n{"event": "step", "step": 3}\n{"event": "step", "step"')
        program.sendall(b': 4, "rank": 7}\n')
        assert [(line.event.rank, line.document["step"]) for line in lines_of(connection, 2)] == [(4, 3), (7, 4)]


@pytest.mark.parametrize("first", [b"\n", b"wrong\n", b'{"event": "step", "step": 3}\n', b"\xff" * (LONGEST_TOKEN + 1)])
def test_a_connection_without_the_token_is_closed_unread(listener: Listener, first: bytes) -> None:
    with connect(listener) as program:
        connection = accepted(listener)
        program.sendall(first + b'{"event": "step", "step": 3}\n')
        assert lines_of(connection) == []
        assert not connection.open


def test_malformed_lines_are_counted_and_too_long_lines_are_dropped(listener: Listener) -> None:
    with connect(listener) as program:
        connection = accepted(listener)
        program.sendall(listener.variables[EVENTS_TOKEN].encode() + b"\n[1]\n\xff\xfe\n")
        program.settimeout(None)
        wait_until(lambda: connection.read() or connection.malformed == 2, "the malformed lines")
        left = b"x" * (LONGEST_LINE + (1 << 17))
        program.setblocking(False)
        while left:
            try:
                left = left[program.send(left) :]
            except BlockingIOError:
                connection.read()
        wait_until(lambda: connection.read() or connection.malformed >= 3, "the long line to be dropped")


def test_connections_above_the_limit_are_refused_until_one_is_removed(listener: Listener) -> None:
    programs = []
    for _ in range(MOST_CONNECTIONS):
        programs.append(connect(listener))
        accepted(listener)
    with connect(listener) as refused:
        wait_until(lambda: not listener.accept() and refused.recv(1) == b"", "the refusal")
    listener.remove(listener.connections[0])
    with connect(listener):
        assert accepted(listener)
    for program in programs:
        program.close()


def test_the_listener_reads_events_of_the_library(listener: Listener) -> None:
    Sender(listener.variables, rank=2).send(Step(step=5, loss="nan"))
    [line] = lines_of(accepted(listener))
    assert isinstance(line.event, Step)
    assert (line.event.step, line.event.rank, line.event.loss) == (5, 2, "nan")
    assert json.loads(json.dumps(line.document)) == line.document


def test_a_sender_without_a_supervisor_raises_no_error() -> None:
    Sender({}, rank=0).send(Step(step=1))
    gone = Listener(rank=0)
    variables = gone.variables
    gone.close()
    sender = Sender(variables, rank=0)
    sender.send(Step(step=1))
    sender.send(Step(step=2))
