"""What the operator's side and the pods of MPI agree on. It imports only the standard library."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

LAUNCHER = "launcher"
HOSTS = "MUSTER_MPI_HOSTS"
"""The hosts of the world, in the launcher."""
PORT = "MUSTER_MPI_PORT"
"""The port on which the program of a worker listens."""
WORLD = "MUSTER_MPI_WORLD"
"""The file with the hosts, for the agent of mpirun."""
OBJECT, KEY = "mpi", "key"
"""The Secret, and its entry."""


@dataclass(frozen=True)
class Host:
    """One host of mpirun: a worker, which listens at `address` and `port`."""

    name: str
    slots: int
    address: str
    port: int


def written(hosts: Sequence[Host], *, own_slots: int) -> str:
    """The hosts as text. `own_slots` is the number of ranks that the launcher itself runs."""
    return json.dumps({"ownSlots": own_slots, "hosts": [list(asdict(host).values()) for host in hosts]})


def read(text: str) -> tuple[list[Host], int]:
    """The hosts and the number of ranks of the launcher. Raises ValueError if the text is not of `written`."""
    try:
        document = json.loads(text)
        return [Host(str(name), int(slots), str(address), int(port)) for name, slots, address, port in document["hosts"]], int(
            document["ownSlots"]
        )
    except (TypeError, KeyError) as error:
        raise ValueError(str(error)) from None
