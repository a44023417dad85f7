"""Connections of a world that is broken: a thread that waits for a peer on a lost node must not wait for it any longer."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from muster_contract.environment import ORDERS_FD
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="this system has no /proc")

WAITS = """
import os, socket, sys
from muster_trainer.host.connections import Connections
from muster_trainer.host.orders import Orders

connections = Connections()
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
connections.complete()
orders = Orders.from_environment(os.environ, lambda attempt: connections.close())
peer.sendall(b"!")
peer.setblocking(True)
print("the peer is gone" if peer.recv(1) == b"" else "the peer has answered")
"""


def test_a_process_that_waits_for_a_silent_peer_leaves_a_broken_world() -> None:
    reader, writer = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", WAITS, str(server.getsockname()[1])]
        environment = {**os.environ, ORDERS_FD: str(reader)}
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, pass_fds=[reader]) as process,
            closing(server.accept()[0]) as far,
        ):
            assert far.recv(1) == b"!"
            wait_until(lambda: _sleeps(process.pid), "the process waits")
            os.write(writer, b'{"leave": 0}\n')
            output, _ = process.communicate(timeout=60)
    for descriptor in (reader, writer):
        os.close(descriptor)
    assert (process.returncode, output.strip()) == (0, "the peer is gone")


def _sleeps(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"
