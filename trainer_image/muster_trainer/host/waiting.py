"""Deadlines for calls to other machines, and for the start of other machines."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import TypeVar

from muster_contract.errors import PeerLost
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.host.stopping import StopRequest

Answer = TypeVar("Answer")
START_SECONDS = 15 * 60.0
"""The longest time between the starts of the first and the last member of a world."""
NAME_SECONDS = 60.0
"""How long a host name may take to get an address."""
_PROBE_SECONDS = 5.0
BETWEEN_SECONDS = 0.05


def within(seconds: float, doing: str, call: Callable[[], Answer]) -> Answer:
    """Runs `call` in a thread, and returns or raises what it returns or raises. Raises PeerLost if it takes longer than `seconds`.

    After that the thread goes on until the process ends, because Python cannot end a thread.
    """
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
    """Waits until a process listens at each address (name -> host:port). Raises PeerLost, which names the address, after `seconds`.

    `meanwhile` is called repeatedly during the wait. It may raise to end the wait.
    """
    limit = time.monotonic() + seconds
    for name, address in addresses.items():
        while not listens(address):
            if meanwhile is not None:
                meanwhile()
            if time.monotonic() > limit:
                raise PeerLost(f"waited {seconds:g} s for {name}, and nothing listens at {address}")
            time.sleep(BETWEEN_SECONDS)


def numeric(host: str, *, meanwhile: Callable[[], None] | None = None) -> str:
    """An address of that host, or its name if it has none in time. `meanwhile` is called repeatedly during the wait.

    PyTorch looks up IPv6 addresses first. In a cluster without them, the name server passes the query on, which may take seconds.
    """
    limit = time.monotonic() + NAME_SECONDS
    while True:
        try:
            return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
        except OSError:
            if meanwhile is not None:
                meanwhile()
            if time.monotonic() > limit:
                return host
        time.sleep(2 * BETWEEN_SECONDS)


def until(is_so: Callable[[], bool], stop: StopRequest, *, seconds: float) -> bool:
    """Waits until something is so. False after `seconds`, or after a request to stop."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline or stop.requested:
            return False
        time.sleep(BETWEEN_SECONDS)
    return True


def seconds_in(spec: TrainerSpec, name: str, default: float) -> float:
    """The seconds of a setting in `trainer.config`."""
    seconds = spec.config.get(name, default)
    return float(seconds) if isinstance(seconds, int | float) else default


def listens(address: str) -> bool:
    """Whether a process accepts connections at `host:port` now. False if the host name does not resolve yet."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_PROBE_SECONDS).close()
    except OSError:
        return False
    return True
