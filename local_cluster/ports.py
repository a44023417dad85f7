"""Free ports for servers on this machine."""

import random
import socket
from contextlib import ExitStack, suppress

RANGE = range(10_000, 30_000)
"""Below the ports that the kernel chooses for connections and for servers, and below the node ports of Kubernetes. So a port is still free
when its server starts some seconds later, even if other tests run at the same time."""


def free_ports(count: int) -> list[int]:
    """Distinct ports of loopback on which no program listens. Raises OSError if there are too few."""
    ports: list[int] = []
    with ExitStack() as stack:
        for port in random.SystemRandom().sample(RANGE, len(RANGE)):  # a test may have seeded the other generator
            if len(ports) == count:
                return ports
            with suppress(OSError):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
                ports.append(port)
    raise OSError(f"fewer than {count} ports of {RANGE.start} to {RANGE.stop - 1} are free")
