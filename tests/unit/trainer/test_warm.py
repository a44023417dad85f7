"""The warm parent's choice between its prepared processes and a new one, without processes."""

from __future__ import annotations

import socket
import sys
import time

import pytest

from muster_trainer import warm
from tests.support import descriptors

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a warm parent")
COUNT, FORKED = 20, 4711


def test_prepared_processes_that_hang_delay_a_launch_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(warm.Parent, "_fork", lambda *_: FORKED)
    connection, supervisor = socket.socketpair()
    parent = warm.Parent(connection, descriptors.runtime("DDP"), 1)
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(COUNT)]
    for pid, (ours, theirs) in enumerate(pairs):
        theirs.send(warm.SIGN)
        parent._prepared.append(warm.Prepared(pid, ours))
    began = time.monotonic()
    assert parent._start(b"{}", []) == FORKED
    assert time.monotonic() - began < COUNT * warm.ANSWER_SECONDS / 2
    assert not parent._prepared
    for each in (connection, supervisor, *(theirs for _, theirs in pairs)):
        each.close()
