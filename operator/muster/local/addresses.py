"""Where the replicas of a world are reached on this machine: loopback, and a port of its own for each port of each replica."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from muster.api.spec import RoleName
from muster.local.ports import HeldPorts, PortRange, hold_ports
from muster.strategies.base import WorldPlan


@dataclass(frozen=True)
class LoopbackAddresses:
    """Numbers by role, index and the port's name."""

    ports: Mapping[tuple[RoleName, int, str], int]

    def host(self, role: RoleName, index: int) -> str:
        return "127.0.0.1"

    def port(self, role: RoleName, index: int, name: str) -> int:
        return self.ports[role, index, name]


def addresses_for(plan: WorldPlan, allowed: PortRange | None) -> tuple[LoopbackAddresses, HeldPorts]:
    """Addresses for every replica of the world, and the ports that they hold. Raises ConfigurationError where ports are short."""
    names = [(replica.role, replica.index, name) for replica in plan.replicas for name in replica.ports]
    held = hold_ports(len(names), allowed)
    return LoopbackAddresses(dict(zip(names, held.numbers, strict=True))), held
