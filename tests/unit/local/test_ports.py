"""Ports: distinct, ours for as long as they are held, and shared only with those who are to listen on them."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from muster.local.errors import ConfigurationError
from muster.local.ports import SHARES_BOUND_PORTS, PortRange, reserve_ports


def listener(port: int) -> socket.socket:
    """A socket that listens as gRPC and torch's TCPStore do."""
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    opened.bind(("127.0.0.1", port))
    opened.listen()
    return opened


def test_ports_are_distinct() -> None:
    with reserve_ports(50) as held:
        assert len(set(held.numbers)) == 50


def test_a_held_port_is_in_use_for_another_run_before_and_after_it_is_shared() -> None:
    with reserve_ports(1) as held:
        [port] = held.numbers
        for share in (lambda: None, held.start_sharing) if SHARES_BOUND_PORTS else (lambda: None,):
            share()
            with pytest.raises(ConfigurationError, match=f"port {port} of the range is in use"):
                reserve_ports(1, PortRange(port, port))


def test_a_training_process_can_listen_on_a_shared_port_and_not_before() -> None:
    with reserve_ports(1) as held:
        [port] = held.numbers
        with pytest.raises(OSError, match="Address already in use"):
            listener(port)
        held.start_sharing()
        with closing(listener(port)), closing(socket.create_connection(("127.0.0.1", port), timeout=5)):
            pass


def test_released_ports_are_free_again() -> None:
    held = reserve_ports(1)
    held.release()
    with reserve_ports(1, PortRange(held.numbers[0], held.numbers[0])) as again:
        assert again.numbers == held.numbers


def test_a_range_gives_its_free_ports_and_passes_over_those_in_use() -> None:
    with reserve_ports(1) as taken:
        [port] = taken.numbers
        if port > 65000:
            pytest.skip("no room above the port that the system chose")
        with reserve_ports(2, PortRange(port, port + 40)) as held:
            assert port not in held.numbers
            assert all(port < number <= port + 40 for number in held.numbers)


def test_when_ports_are_short_nothing_stays_held() -> None:
    with reserve_ports(1) as taken, pytest.raises(ConfigurationError):
        reserve_ports(3, PortRange(taken.numbers[0], taken.numbers[0] + 1))
    reserve_ports(1, PortRange(taken.numbers[0], taken.numbers[0])).release()


def test_a_range_that_is_too_small_says_so() -> None:
    with pytest.raises(ConfigurationError, match="the job needs 5 ports, but the range has 2; give a larger range"):
        reserve_ports(5, PortRange(30000, 30001))


@pytest.mark.parametrize("text", ["", "1", "a-b", "2-1", "0-5", "1-70000", "1-2-3", "-5", "٣-٤"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="write two numbers from 1 to 65535"):
        PortRange.parse(text)


def test_a_range_is_read() -> None:
    assert PortRange.parse("30000-30100") == PortRange(30000, 30100)
