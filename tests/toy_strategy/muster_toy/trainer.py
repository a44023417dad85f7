"""The trainer's side: what the processes of each role run."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

from muster_contract.codes import ExitCode

NUMBERS = range(1, 11)
DEADLINE_SECONDS = 60.0


def launch(spec: Any, events: Any, stop: Any) -> ExitCode:
    """Sends each number to a worker, adds up the squares, and tells the workers that all is done."""
    hosts = (Path(os.environ["MUSTER_OBJECTS"]) / "hostfile" / "hosts").read_text().split()
    workers = [_connected(host) for host in hosts]
    total = 0
    for position, number in enumerate(NUMBERS):
        worker = workers[position % len(workers)]
        worker.write(f"{number}\n")
        worker.flush()
        total += int(worker.readline())
    for worker in workers:
        worker.write("done\n")
        worker.flush()
    print(f"launcher: {len(workers)} workers gave {total}", flush=True)
    return ExitCode.COMPLETED


def serve(spec: Any, events: Any, stop: Any) -> ExitCode:
    """Squares numbers for the launcher."""
    own = int(os.environ["MUSTER_INDEX"])
    port = int((Path(os.environ["MUSTER_OBJECTS"]) / "hostfile" / "hosts").read_text().split()[own].rpartition(":")[2])
    with socket.create_server(("", port)) as listener:
        listener.settimeout(DEADLINE_SECONDS)
        connection, _ = listener.accept()
        with connection, connection.makefile("rw") as launcher:
            while (line := launcher.readline().strip()) != "done":
                if not line:
                    return ExitCode.PEER_LOST
                launcher.write(f"{int(line) ** 2}\n")
                launcher.flush()
    return ExitCode.COMPLETED


def _connected(host: str) -> Any:
    name, _, port = host.rpartition(":")
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            return socket.create_connection((name, int(port)), timeout=DEADLINE_SECONDS).makefile("rw")
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
