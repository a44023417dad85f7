"""Deadlines for calls to other machines and for machines that do not start."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import TypeVar

from muster_contract.errors import PeerLost

Answer = TypeVar("Answer")
START_SECONDS = 15 * 60.0
"""How long the members of a world may take to come up one after the other."""
_PROBE_SECONDS = 5.0
BETWEEN_SECONDS = 0.05


def within(seconds: float, doing: str, call: Callable[[], Answer]) -> Answer:
    """What `call` returns or raises. Raises PeerLost if it takes longer. Its thread cannot be ended, and ends with the process."""
    outcome: Future[Answer] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 (`within` raises it)
            outcome.set_exception(error)

    threading.Thread(target=run, name=doing, daemon=True).start()
    if not wait([outcome], seconds).done:
        raise PeerLost(f"{doing} took more than {seconds:g} s")
    return outcome.result()


def wait_for(addresses: Mapping[str, str], seconds: float, *, meanwhile: Callable[[], None] | None = None) -> None:
    """Waits until something listens at each address (name -> host:port). Raises PeerLost that names the one that does not listen.
    `meanwhile` is called again and again during the wait, and may raise to end it."""
    limit = time.monotonic() + seconds
    for name, address in addresses.items():
        while not listens(address):
            if meanwhile is not None:
                meanwhile()
            if time.monotonic() > limit:
                raise PeerLost(f"waited {seconds:g} s for {name}, and nothing listens at {address}")
            time.sleep(BETWEEN_SECONDS)


def listens(address: str) -> bool:
    """Whether something takes connections at `host:port` now. False if the name has no address yet."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_PROBE_SECONDS).close()
    except OSError:
        return False
    return True
