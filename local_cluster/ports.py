"""Free ports for servers on this machine."""

import socket
from contextlib import ExitStack


def free_ports(count: int) -> list[int]:
    """Distinct ports of loopback on which no program listens."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
