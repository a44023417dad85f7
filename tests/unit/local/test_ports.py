"""Reserved ports: they are distinct, in use until their release, and shared only with the training processes."""

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
    with reserve_ports(50) as reserved:
        assert len(set(reserved.numbers)) == 50


def test_a_reserved_port_is_in_use_for_other_runs() -> None:
    with reserve_ports(1) as reserved:
        [port] = reserved.numbers
        for share in (lambda: None, reserved.start_sharing) if SHARES_BOUND_PORTS else (lambda: None,):
            share()
            with pytest.raises(ConfigurationError, match=f"port {port} "):
                reserve_ports(1, PortRange(port, port))


def test_a_training_process_can_listen_on_a_port_only_once_it_is_shared() -> None:
    with reserve_ports(1) as reserved:
        [port] = reserved.numbers
        with pytest.raises(OSError, match="Address already in use"):
            listener(port)
        reserved.start_sharing()
        with closing(listener(port)), closing(socket.create_connection(("127.0.0.1", port), timeout=5)):
            pass


def test_released_ports_are_free_again() -> None:
    reserved = reserve_ports(1)
    reserved.release()
    with reserve_ports(1, PortRange(reserved.numbers[0], reserved.numbers[0])) as again:
        assert again.numbers == reserved.numbers


def test_a_range_gives_only_its_free_ports() -> None:
    with reserve_ports(1) as taken:
        [port] = taken.numbers
        if port > 65000:
            pytest.skip("no room above the port that the system chose")
        with reserve_ports(2, PortRange(port, port + 40)) as reserved:
            assert port not in reserved.numbers
            assert all(port < number <= port + 40 for number in reserved.numbers)


def test_no_port_stays_reserved_if_there_are_too_few() -> None:
    with reserve_ports(1) as taken, pytest.raises(ConfigurationError):
        reserve_ports(3, PortRange(taken.numbers[0], taken.numbers[0] + 1))
    reserve_ports(1, PortRange(taken.numbers[0], taken.numbers[0])).release()


def test_a_range_that_is_too_small_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"\b5 ports.*\b2\b"):
        reserve_ports(5, PortRange(30000, 30001))


@pytest.mark.parametrize("text", ["", "1", "a-b", "2-1", "0-5", "1-70000", "1-2-3", "-5", "٣-٤"])
def test_text_that_is_not_a_range_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="1 to 65535"):
        PortRange.parse(text)


def test_a_valid_range_is_parsed() -> None:
    assert PortRange.parse("30000-30100") == PortRange(30000, 30100)
