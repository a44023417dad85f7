"""Deadlines for calls that could wait for ever."""

from __future__ import annotations

import socket
import threading

import pytest

from muster_contract.errors import PeerLost
from muster_trainer.host.waiting import wait_for, within


def test_a_call_that_ends_in_time_gives_its_result_or_error() -> None:
    assert within(10, "adding", lambda: 1 + 1) == 2
    with pytest.raises(ZeroDivisionError):
        within(10, "dividing", lambda: 1 // 0)


def test_a_call_that_does_not_end_raises_a_lost_peer_with_its_name() -> None:
    with pytest.raises(PeerLost, match=r"0\.05 s"):
        within(0.05, "connecting", threading.Event().wait)


def test_a_member_that_does_not_listen_in_time_is_named() -> None:
    with socket.socket() as there, socket.socket() as held:
        there.bind(("127.0.0.1", 0))
        there.listen()
        held.bind(("127.0.0.1", 0))  # taken, and not listened at: as a port that waits for its process
        ports = [one.getsockname()[1] for one in (there, held)]
        wait_for({"ps 0": f"127.0.0.1:{ports[0]}"}, 10)
        with pytest.raises(PeerLost, match=rf"0\.1 s for worker 1, .*127\.0\.0\.1:{ports[1]}"):
            wait_for({"ps 0": f"127.0.0.1:{ports[0]}", "worker 1": f"127.0.0.1:{ports[1]}"}, 0.1)
