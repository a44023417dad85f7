"""Free ports for servers on this machine."""

import random
import socket
from contextlib import ExitStack

PORTS = range(10_000, 30_000)
"""Linux assigns higher ports to programs that request any free port. So a server that takes seconds to start finds its port free."""


def free_ports(count: int) -> list[int]:
    """Distinct ports of loopback on which no program listens."""
    ports: list[int] = []
    choose = random.SystemRandom()  # tests seed the generator that all share
    with ExitStack() as stack:
        while len(ports) < count:
            bound, port = stack.enter_context(socket.socket()), choose.choice(PORTS)
            try:
                bound.bind(("127.0.0.1", port))
            except OSError:  # it is in use
                continue
            ports.append(port)
    return ports
