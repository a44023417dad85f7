"""The program of a replica in the bench's large world. It joins, steps together with all others, and ends when one of them is gone.

It uses no framework, so that a machine with too little memory for 32 processes of a framework can run 32 of these.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
PLACE = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
STEP_SECONDS = 0.1
PEER_LOST = 20


def emit(**event: object) -> None:
    line = json.dumps({"time": time.time(), "rank": RANK, **event}) + "\n"
    os.write(int(os.environ["MUSTER_EVENTS_FD"]), line.encode())


def members() -> list[socket.socket]:
    """On rank 0: connections to all other ranks. On other ranks: one connection to rank 0."""
    if RANK == 0:
        with socket.create_server(("", PLACE[1]), backlog=WORLD) as listener:
            return [listener.accept()[0] for _ in range(WORLD - 1)]
    while True:
        try:
            return [socket.create_connection(PLACE, timeout=60)]
        except OSError:
            time.sleep(0.1)


def meet(others: list[socket.socket]) -> None:
    """Ends the process if another process is gone."""
    try:
        for other in others if RANK == 0 else ():
            if not other.recv(1):
                sys.exit(PEER_LOST)
        for other in others:
            other.sendall(b".")
        for other in others if RANK else ():
            if not other.recv(1):
                sys.exit(PEER_LOST)
    except OSError:
        sys.exit(PEER_LOST)


def main() -> None:
    others = members()
    for step in range(1, 1_000_000):
        meet(others)
        if RANK == 0:
            emit(
                event="step", step=step, totalSteps=1_000_000, epoch=0, loss="0.0", lossHex=(0.0).hex(), samples=WORLD, seconds=STEP_SECONDS
            )
        time.sleep(STEP_SECONDS)


if __name__ == "__main__":
    main()
