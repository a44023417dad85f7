"""Packet rules of the machine: the guard around the cluster's network, and the rules that dockerd leaves behind.

dockerd installs chains and a FORWARD policy, and does not remove them. `Snapshot` records the rules before its start.
"""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from .errors import CommandFailedError, MissingError
from .process import run, succeeds

FAMILIES = ("iptables", "ip6tables")
FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
_DOCKERS = re.compile(r"DOCKER|docker0|muster0|\bbr-[0-9a-f]{12}\b")


def close_off(bridge: str) -> None:
    """Refuses packets from the cluster's bridge that would leave through this machine, so that packets of a test stay in the cluster.

    dockerd evaluates DOCKER-USER before its own rules, and does not change its content.
    """
    rule = ["DOCKER-USER", "-i", bridge, "!", "-o", bridge, "-j", "REJECT"]
    if not succeeds(["iptables", "-w", "-C", *rule], 30):
        run(["iptables", "-w", "-I", *rule], 30)


@dataclass(frozen=True)
class Snapshot:
    """The machine's packet rules at one moment, as `iptables-save` prints them, by family, and whether the machine forwarded packets."""

    rules: dict[str, list[str]]
    forwarding: str

    @classmethod
    def take(cls) -> "Snapshot":
        """The current rules."""
        return cls({family: _saved(family) for family in FAMILIES}, FORWARDING.read_text().strip())

    def write(self, path: Path) -> None:
        """Writes the rules to a file."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> "Snapshot":
        """The rules in a file that `write` has written."""
        return cls(**json.loads(path.read_text()))

    def restore(self) -> None:
        """Removes the rules that dockerd has added since, and no others."""
        for family, before in self.rules.items():
            now = _saved(family)
            if now:
                run([f"{family}-restore", "-w"], 30, stdin="\n".join(without_docker(now, before)) + "\n")
        FORWARDING.write_text(self.forwarding)


def without_docker(now: list[str], before: list[str]) -> list[str]:
    """The lines of `now` without new lines that mention dockerd's chains, and with the FORWARD policy of `before`."""
    table, lines = "", []
    for line in now:
        if line.startswith("*"):
            table = line
        if table == "*filter" and line.startswith(":FORWARD "):
            lines.append(next((each for each in _table("*filter", before) if each.startswith(":FORWARD ")), ":FORWARD ACCEPT [0:0]"))
        elif line in _table(table, before) or not _DOCKERS.search(line):
            lines.append(line)
    return [line for line in lines if not line.startswith("#")]


def _table(name: str, lines: list[str]) -> list[str]:
    """The lines of one table, from `*name` to its COMMIT."""
    if name not in lines:
        return []
    begin = lines.index(name)
    return lines[begin : lines.index("COMMIT", begin)]


def _saved(family: str) -> list[str]:
    try:
        return run([f"{family}-save"], 30).splitlines()
    except (CommandFailedError, MissingError):  # the kernel has no IPv6, or the program is not installed yet, so there are no rules
        return []
