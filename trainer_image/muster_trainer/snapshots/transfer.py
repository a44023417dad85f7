"""How a spare gets snapshots from the memory of another replica, over TCP. Both ends are supervisors.

The client sends the key of the server and the position of a process in its replica. The server sends the headers of the filled slots in the
memory of that process. Then the client asks for slots, one after the other. The server sends the payload of each, and whether the slot has
stayed the same meanwhile. The server does not stop the training, which may overwrite the slot.
"""

from __future__ import annotations

import secrets
import socket
import struct
from collections.abc import Callable

from muster_contract.reports import MAX_KEY, SnapshotSource
from muster_trainer.host.sockets import exactly
from muster_trainer.snapshots.arena import HEADER_BYTES, MOST_SLOTS, Arena, FilledSlot, Header, pack, unpack

SECONDS = 10.0
"""The most seconds for one message, or for a piece of a payload."""
_REQUEST = struct.Struct(f"<{MAX_KEY}sI")
_NUMBER = struct.Struct("<I")
_PIECE = 1 << 20
_SAME, _CHANGED = b"=", b"!"


def answer(connection: socket.socket, key: str, arena_of: Callable[[int], Arena | None]) -> None:
    """Serves one client until it closes the connection. Raises OSError if the connection breaks or the client is too slow.

    `arena_of` returns the memory of the process at a position; None if there is none.
    """
    connection.settimeout(SECONDS)
    given, position = _REQUEST.unpack(_receive(connection, _REQUEST.size))
    if not secrets.compare_digest(given, _padded(key)) or (arena := arena_of(position)) is None:
        return
    filled = {each.slot: each.header for each in arena.filled_slots()}
    connection.sendall(_NUMBER.pack(len(filled)))
    for slot, header in filled.items():
        connection.sendall(_NUMBER.pack(slot) + pack(header).ljust(HEADER_BYTES, b"\0"))
    while True:
        (slot,) = _NUMBER.unpack(_receive(connection, _NUMBER.size))
        if slot not in filled:
            return
        header = filled[slot]
        content = arena.payload(slot, header.size)
        for begin in range(0, header.size, _PIECE):
            connection.sendall(content[begin : begin + _PIECE])
        connection.sendall(_SAME if arena.header(slot) == header else _CHANGED)


class Offer:
    """The snapshots of one process of another replica, over an open connection."""

    def __init__(self, source: SnapshotSource, position: int) -> None:
        """Raises OSError or ValueError if the other replica does not answer as it should."""
        self._connection = socket.create_connection((source.host, source.server.port), timeout=SECONDS)
        try:
            self._connection.sendall(_REQUEST.pack(_padded(source.server.key), position))
            (count,) = _NUMBER.unpack(_receive(self._connection, _NUMBER.size))
            if count > MOST_SLOTS:
                raise ValueError(f"{source.host} offers {count} slots")
            self.filled_slots = [self._filled_slot() for _ in range(count)]
        except BaseException:
            self.close()
            raise

    def _filled_slot(self) -> FilledSlot:
        (slot,) = _NUMBER.unpack(_receive(self._connection, _NUMBER.size))
        header = unpack(_receive(self._connection, HEADER_BYTES), Header)
        if not isinstance(header, Header):
            raise ValueError(f"slot {slot} has no header")
        return FilledSlot(slot, header)

    def fetch(self, slot: int, room: memoryview, *, until: Callable[[], bool]) -> bool:
        """Writes the payload of a slot to `room`. Returns whether it is whole. False if the slot has changed, or if `until` returns True.
        Raises OSError if the connection breaks."""
        self._connection.sendall(_NUMBER.pack(slot))
        done = 0
        while done < len(room):
            if until():
                return False
            received = self._connection.recv_into(room[done : done + _PIECE])
            if not received:
                raise ConnectionResetError("the connection was closed")
            done += received
        return _receive(self._connection, 1) == _SAME and not until()

    def interrupt(self) -> None:
        """Ends the messages of another thread."""
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # it is closed already
            return

    def close(self) -> None:
        self._connection.close()


def _padded(key: str) -> bytes:
    return key.encode()[:MAX_KEY].ljust(MAX_KEY, b"\0")


def _receive(connection: socket.socket, size: int) -> bytes:
    return exactly(connection, size, seconds=SECONDS)
