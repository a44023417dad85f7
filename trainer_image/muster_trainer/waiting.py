"""Deadlines for what would wait for ever: calls into other machines, and machines that never come up."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from muster_trainer.contract import PeerLost

Answer = TypeVar("Answer")
START_SECONDS = 15 * 60.0
"""How long the members of a world may take to come up one after the other."""
_PROBE_SECONDS = 5.0
BETWEEN_SECONDS = 0.05


def within(seconds: float, doing: str, call: Callable[[], Answer]) -> Answer:
    """What `call` gives or raises. Raises PeerLost where it takes longer: its thread cannot be ended, and ends with the process."""
    ends: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            ends.put((call(), None))
        except BaseException as error:  # noqa: BLE001 (it is raised where the call was asked for)
            ends.put((None, error))

    threading.Thread(target=run, name=doing, daemon=True).start()
    try:
        answer, failure = ends.get(timeout=seconds)
    except queue.Empty:
        raise PeerLost(f"{doing} took more than {seconds:g} s") from None
    if failure is not None:
        raise failure
    return answer


def wait_for(addresses: Mapping[str, str], seconds: float) -> None:
    """Waits until something listens at each address ({who: host:port}). Raises PeerLost that names who did not come."""
    limit = time.monotonic() + seconds
    for who, address in addresses.items():
        while not listens(address):
            if time.monotonic() > limit:
                raise PeerLost(f"waited {seconds:g} s for {who}, and nothing listens at {address}")
            time.sleep(BETWEEN_SECONDS)


def listens(address: str) -> bool:
    """Whether something takes connections at `host:port` now. A name that is not known yet is an address nobody listens at."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_PROBE_SECONDS).close()
    except OSError:
        return False
    return True
