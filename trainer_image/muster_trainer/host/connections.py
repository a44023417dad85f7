"""The TCP connections of this process, and how another thread breaks them."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

_DESCRIPTORS = "/proc/self/fd"


def sockets() -> frozenset[str]:
    """The sockets that this process has open, by their names in /proc. Empty where there is none."""
    return frozenset(_open_sockets().values())


def break_off(names: frozenset[str]) -> None:
    """Ends the TCP connections among these sockets. A thread that waits for a peer sees that the connection is closed."""
    for descriptor, name in _open_sockets().items():
        if name in names:
            _shut_down(descriptor)


def _open_sockets() -> dict[int, str]:
    found = {}
    with suppress(OSError):
        for descriptor in map(int, os.listdir(_DESCRIPTORS)):
            with suppress(OSError):  # closed meanwhile
                name = os.readlink(f"{_DESCRIPTORS}/{descriptor}")
                if name.startswith("socket:"):
                    found[descriptor] = name
    return found


def _shut_down(descriptor: int) -> None:
    """A copy of the descriptor is closed, and never the descriptor itself: its owner may still use it."""
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
            connection.getpeername()  # fails for a socket that listens
            connection.shutdown(socket.SHUT_RDWR)
