"""Distinct free ports of this machine for the replicas of a world, kept from everybody else until they are used.

A port that is free now may be taken a second later, and a training process needs seconds to come so far as to listen.
Where the kernel allows it (Linux), the port therefore stays bound by us for the whole attempt: a socket that does not
listen shares its port with one that sets SO_REUSEADDR, as gRPC and torch's TCPStore do, while the kernel hands the port
to nobody who asks for any port or connects out, and a second `muster run` sees it as in use.
"""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from muster.local.errors import ConfigurationError

SHARES_BOUND_PORTS = sys.platform == "linux"


@dataclass(frozen=True)
class PortRange:
    """The ports that a user allows, both ends included."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> PortRange:
        """From `30000-30100`. Raises ConfigurationError where it is none."""
        match = re.fullmatch(r"\s*([0-9]{1,5})-([0-9]{1,5})\s*", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]) <= 65535:
            raise ConfigurationError(f"--ports: {text!r} is no range of ports; write two numbers from 1 to 65535, such as 30000-30100")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


class HeldPorts:
    """Ports that are ours until `release`; each is bound on every address of this machine, and listens on none."""

    def __init__(self, sockets: Sequence[socket.socket]) -> None:
        self._sockets = list(sockets)
        self.numbers: tuple[int, ...] = tuple(held.getsockname()[1] for held in sockets)

    def start_sharing(self) -> None:
        """To be called just before the processes start that will listen on the ports."""
        if not SHARES_BOUND_PORTS:
            self.release()
        for held in self._sockets:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def release(self) -> None:
        for held in self._sockets:
            held.close()
        self._sockets = []

    def __enter__(self) -> HeldPorts:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def hold_ports(count: int, allowed: PortRange | None = None) -> HeldPorts:
    """`count` distinct free ports, of the `allowed` range or any. Raises ConfigurationError where there are not so many."""
    sockets: list[socket.socket] = []
    in_use: list[int] = []
    candidates = [0] * count if allowed is None else list(range(allowed.first, allowed.last + 1))
    try:
        for port in candidates:
            if len(sockets) == count:
                break
            held = _bound(port)
            if held is None:
                in_use.append(port)
            else:
                sockets.append(held)
        if len(sockets) < count:
            raise _too_few(count, in_use, allowed)
    except BaseException:
        for held in sockets:
            held.close()
        raise
    return HeldPorts(sockets)


def _bound(port: int) -> socket.socket | None:
    """A socket bound to the port exclusively, None where the port is in use."""
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        held.bind(("", port))
    except OSError:
        held.close()
        return None
    return held


def _too_few(count: int, in_use: Sequence[int], allowed: PortRange | None) -> ConfigurationError:
    if allowed is None:
        return ConfigurationError(f"this machine has no {count} free ports left; end some of the programs that listen")
    size = allowed.last - allowed.first + 1
    if size < count:
        return ConfigurationError(f"--ports {allowed}: the job needs {count} ports, the range has {size}; give a larger range")
    shown = ", ".join(map(str, in_use[:5])) + (", ..." if len(in_use) > 5 else "")
    several = "ports" if len(in_use) > 1 else "port"
    return ConfigurationError(
        f"--ports {allowed}: the job needs {count} ports, but {several} {shown} of the range {'are' if len(in_use) > 1 else 'is'} in use; "
        "end the program that holds it, give a larger range, or leave --ports out"
    )
