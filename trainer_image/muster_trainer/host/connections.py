"""The connections that a library opens, so that they can be closed when it waits for what will not come. Linux only."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from typing import ClassVar

_DESCRIPTORS = "/proc/self/fd"


class Connections:
    """The TCP connections that are opened after this object was made, until `complete`."""

    can_be_closed: ClassVar[bool] = sys.platform == "linux"

    def __init__(self) -> None:
        self._before = set(_sockets())
        self._opened: set[str] | None = None

    def complete(self) -> None:
        """The library opens no more. Later ones belong to others."""
        self._opened = set(_sockets()) - self._before

    def close(self) -> None:
        """Shuts them down in both directions: whatever reads or writes fails at once, here and at the other end. The descriptors stay with
        the library. Sockets that listen stay as they are, because Gloo ends the process if one of them fails. Any thread may call it."""
        for name, descriptor in _sockets().items():
            if name not in self._before if self._opened is None else name in self._opened:
                with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                    is_same = os.readlink(f"{_DESCRIPTORS}/{connection.fileno()}") == name  # the library may have closed it meanwhile
                    is_tcp = connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM
                    if is_same and is_tcp and not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        connection.shutdown(socket.SHUT_RDWR)


def _sockets() -> dict[str, int]:
    """The sockets of this process: descriptors by the kernel's name, which no other socket gets while this one is open."""
    sockets: dict[str, int] = {}
    if Connections.can_be_closed:
        for number in os.listdir(_DESCRIPTORS):
            with suppress(OSError):
                name = os.readlink(f"{_DESCRIPTORS}/{number}")
                if name.startswith("socket:"):
                    sockets[name] = int(number)
    return sockets
