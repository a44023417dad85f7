"""The addresses of replicas on this machine: loopback, and a distinct free port for each port of each replica.

Another program may take a free port before the training process listens on it, which takes seconds. On Linux, this process therefore binds
the ports for the whole attempt. A bound socket that does not listen shares its port with a socket that sets SO_REUSEADDR, as gRPC and
torch's TCPStore do. The kernel does not assign a bound port to programs that request any free port, and a second `muster run` sees that the
port is in use.
"""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from muster.api.spec import RoleName
from muster.local.errors import ConfigurationError
from muster.strategies.base import WorldPlan

SHARES_BOUND_PORTS = sys.platform == "linux"


@dataclass(frozen=True)
class PortRange:
    """The ports that a user allows. Both ends are included."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> PortRange:
        """Parses text such as `30000-30100`. Raises ConfigurationError if it is not a range."""
        match = re.fullmatch(r"\s*([0-9]{1,5})-([0-9]{1,5})\s*", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]) <= 65535:
            raise ConfigurationError(f"--ports: {text!r} is not a range of ports; write two numbers from 1 to 65535, such as 30000-30100")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


class ReservedPorts:
    """Ports that are reserved until `release`. Each has a socket that is bound to all addresses of this machine and does not listen."""

    def __init__(self, sockets: Sequence[socket.socket]) -> None:
        self._sockets = list(sockets)
        self.numbers: tuple[int, ...] = tuple(bound.getsockname()[1] for bound in sockets)

    def start_sharing(self) -> None:
        """Lets other sockets listen on the ports. Call it just before the training processes start."""
        if not SHARES_BOUND_PORTS:
            self.release()
        for bound in self._sockets:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def release(self) -> None:
        for bound in self._sockets:
            bound.close()
        self._sockets = []

    def __enter__(self) -> ReservedPorts:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


@dataclass(frozen=True)
class LoopbackAddresses:
    """`ports` maps role, index and port name to a port number."""

    ports: Mapping[tuple[RoleName, int, str], int]

    def host(self, role: RoleName, index: int) -> str:
        return "127.0.0.1"

    def port(self, role: RoleName, index: int, name: str) -> int:
        return self.ports[role, index, name]


def addresses_for(plan: WorldPlan, allowed: PortRange | None) -> tuple[LoopbackAddresses, ReservedPorts]:
    """Addresses for every replica of the world, and the ports reserved for them. Raises ConfigurationError if too few ports are free."""
    names = [(replica.role, replica.index, name) for replica in plan.replicas for name in replica.ports]
    reserved = reserve_ports(len(names), allowed)
    return LoopbackAddresses(dict(zip(names, reserved.numbers, strict=True))), reserved


def reserve_ports(count: int, allowed: PortRange | None = None) -> ReservedPorts:
    """Reserves `count` distinct free ports, from the `allowed` range if there is one. Raises ConfigurationError if too few are free."""
    sockets: list[socket.socket] = []
    in_use: list[int] = []
    candidates = [0] * count if allowed is None else list(range(allowed.first, allowed.last + 1))
    try:
        for port in candidates:
            if len(sockets) == count:
                break
            bound = _bound(port)
            if bound is None:
                in_use.append(port)
            else:
                sockets.append(bound)
        if len(sockets) < count:
            raise _too_few(count, in_use, allowed)
    except BaseException:
        for bound in sockets:
            bound.close()
        raise
    return ReservedPorts(sockets)


def _bound(port: int) -> socket.socket | None:
    """A socket that is bound to the port exclusively. None if the port is in use."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.bind(("", port))
    except OSError:
        bound.close()
        return None
    return bound


def _too_few(count: int, in_use: Sequence[int], allowed: PortRange | None) -> ConfigurationError:
    if allowed is None:
        return ConfigurationError(f"this machine does not have {count} free ports; end some of the programs that listen")
    size = allowed.last - allowed.first + 1
    if size < count:
        return ConfigurationError(f"--ports {allowed}: the job needs {count} ports, but the range has {size}; give a larger range")
    shown = ", ".join(map(str, in_use[:5])) + (", ..." if len(in_use) > 5 else "")
    subject, verb = ("ports", "are") if len(in_use) > 1 else ("port", "is")
    return ConfigurationError(
        f"--ports {allowed}: the job needs {count} ports, but {subject} {shown} of the range {verb} in use; "
        "end the program that uses them, give a larger range, or omit --ports"
    )
