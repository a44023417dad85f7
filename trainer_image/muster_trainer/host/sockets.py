"""What all TCP servers and fixed-size messages of the trainer have in common."""

from __future__ import annotations

import errno
import socket
import time
from ipaddress import ip_address


def listening(port: int, *, loopback: bool = False, backlog: int | None = None) -> socket.socket:
    """Listens at this port, or at a free one if it is 0: on the loopback interface, or on all addresses of both families as far as the
    machine has them. Raises OSError."""
    if loopback:
        return socket.create_server(("127.0.0.1", port), backlog=backlog)
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise  # otherwise the node may have no IPv6
    return socket.create_server(("", port), backlog=backlog)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine. A name other than `localhost` is not looked up."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def exactly(connection: socket.socket, size: int, *, seconds: float | None = None) -> bytes:
    """Exactly `size` bytes. Raises OSError if there are fewer. With `seconds`, all of them must come within this time, which each later
    operation has as well. Without, each piece has the time that the connection has."""
    content = bytearray()
    until = None if seconds is None else time.monotonic() + seconds
    while len(content) < size:
        if until is not None:
            connection.settimeout(max(0.001, until - time.monotonic()))
        piece = connection.recv(size - len(content))
        if not piece:
            raise ConnectionResetError("the other end has closed the connection")
        content += piece
    if seconds is not None:
        connection.settimeout(seconds)
    return bytes(content)
