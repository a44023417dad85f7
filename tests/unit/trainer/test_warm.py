"""The warm parent's choice between its prepared processes and a new one, without processes."""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
from collections.abc import Iterator

import pytest

from muster_contract.trainer_spec import BatchSpec, TrainerSpec
from muster_trainer import warm
from muster_trainer.supervisor import warm as supervisor_warm
from muster_trainer.supervisor.signals import SignalInbox
from muster_trainer.supervisor.warm import Starter
from tests.support import descriptors

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a warm parent")
COUNT, FORKED = 20, 4711


@pytest.fixture
def parent() -> Iterator[warm.Parent]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield warm.Parent(ours, TrainerSpec(strategy=descriptors.runtime("DDP"), batch=BatchSpec(), task="digits"), 1)


def test_prepared_processes_that_hang_delay_a_launch_only_once(parent: warm.Parent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(warm.Parent, "_fork", lambda *_: FORKED)
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(COUNT)]
    for pid, (ours, theirs) in enumerate(pairs):
        theirs.send(warm.SIGN)
        parent.prepared.append(warm.Prepared(pid, ours))
    began = time.monotonic()
    assert parent.start(b"{}", []) == FORKED
    assert time.monotonic() - began < COUNT * warm.ANSWER_SECONDS / 2
    assert not parent.prepared
    for _, theirs in pairs:
        theirs.close()


@pytest.mark.parametrize("failing", ["the first fork", "the second fork"])
def test_a_warm_parent_goes_on_if_a_fork_fails(failing: str, parent: warm.Parent, monkeypatch: pytest.MonkeyPatch) -> None:
    fork, test = os.fork, os.getpid()

    def short_of_memory() -> int:
        if failing == "the second fork" and os.getpid() == test:
            return fork()
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(os, "fork", short_of_memory)
    before = os.listdir("/proc/self/fd")
    assert parent.prepare() is None
    assert parent.start(b"{}", []) is None
    assert not parent.prepared
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_supervisor_that_gets_no_prepared_process_does_not_insist(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[int] = []

    class Short:
        pid, ready, prepared = FORKED, True, frozenset[int]()

        def await_ready(self, inbox: SignalInbox) -> bool:
            return True

        def prepare(self, request: bytes) -> None:
            requests.append(1)
            assert len(requests) <= COUNT

    monkeypatch.setattr(supervisor_warm, "become_subreaper", lambda: None)
    monkeypatch.setattr(supervisor_warm, "WarmParent", lambda environ: Short())
    starter = Starter(SignalInbox.__new__(SignalInbox))  # the real one takes the signals of the tests
    starter.warm_up({}, bundled=True)
    starter.prepare(COUNT)
    assert starter.spare == {FORKED}
