"""Connections of a world that is broken: a thread that waits for a peer on a lost node must not wait for it any longer."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from muster_trainer.host import connections
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="this system has no /proc")

WAITS = """
import socket, sys
from muster_trainer.host import connections
from muster_trainer.host.stopping import StopRequest

stop, before = StopRequest(), connections.sockets()
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
of_world = connections.sockets() - before
stop.on_lost_peers = lambda: connections.break_off(of_world)
peer.sendall(b"!")
peer.setblocking(True)
print("the peer is gone" if peer.recv(1) == b"" else "the peer has answered")
"""


def test_only_the_named_connections_end() -> None:
    with ExitStack() as opened:
        server = opened.enter_context(socket.create_server(("127.0.0.1", 0)))

        def connected() -> tuple[socket.socket, socket.socket]:
            near = opened.enter_context(socket.create_connection(server.getsockname()))
            return near, opened.enter_context(server.accept()[0])

        other, far_from_other = connected()
        before = connections.sockets()
        ours, _ = connected()
        waiting = threading.Thread(target=ours.recv, args=(1,), daemon=True)
        waiting.start()
        connections.break_off(connections.sockets() - before)
        waiting.join(10)
        assert not waiting.is_alive()
        other.sendall(b"?")
        assert far_from_other.recv(1) == b"?"
        connected()  # the server still listens


def test_a_process_that_waits_for_a_silent_peer_hears_that_the_world_is_broken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", WAITS, str(server.getsockname()[1])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, closing(server.accept()[0]) as far:
            assert far.recv(1) == b"!"
            wait_until(lambda: _sleeps(process.pid), "the process waits", seconds=30)
            os.kill(process.pid, signal.SIGUSR2)
            output, _ = process.communicate(timeout=30)
    assert (process.returncode, output.strip()) == (0, "the peer is gone")


def _sleeps(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"
