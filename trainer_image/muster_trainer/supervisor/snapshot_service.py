"""Gives the snapshots in the memory of this replica to spares of the job, from threads beside the training."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from muster_contract.reports import SnapshotServer
from muster_trainer.host.sockets import listening
from muster_trainer.snapshots.arena import Arena
from muster_trainer.snapshots.transfer import answer

MOST_CLIENTS = 8
"""Further connections are closed at once. A spare tries again."""
PAUSE_SECONDS = 0.5


class SnapshotService:
    """Serves clients that send its key, until the supervisor ends."""

    def __init__(self, arena_of: Callable[[int], Arena | None], *, loopback: bool) -> None:
        """Listens on the loopback interface only, or on all. Raises OSError."""
        self._arena_of = arena_of
        self._socket = listening(0, loopback=loopback)
        self.address = SnapshotServer(self._socket.getsockname()[1], secrets.token_hex(16))
        self._free = threading.Semaphore(MOST_CLIENTS)
        threading.Thread(target=self._accept, name="snapshots", daemon=True).start()

    def close(self) -> None:
        """Accepts no more clients."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while self._socket.fileno() >= 0:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed, or no descriptor is free
                time.sleep(PAUSE_SECONDS)
                continue
            if self._free.acquire(blocking=False):
                threading.Thread(target=self._answer, args=(connection,), name="snapshot client", daemon=True).start()
            else:
                connection.close()

    def _answer(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError, ValueError):
                answer(connection, self.address.key, self._arena_of)
        finally:
            self._free.release()
