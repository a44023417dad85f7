"""The orders of the supervisor to its training process, each a JSON object in one line:

- {"leave": ATTEMPT}: the world of that attempt is broken, and the process must not wait for it any longer.
- {"world": {NAME: VALUE}}: the variables of the next attempt, for a process that waits for it.

The end of the pipe means that there is no next world for this process. A thread reads the pipe, because the main thread may wait inside a
collective.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping

from muster_contract.environment import ORDERS_FD

_TURN = 0.1  # seconds between two checks whether the wait must end


class Orders:
    """The orders to this process. `on_leave` is called in another thread, with the attempt whose world is broken."""

    def __init__(self, descriptor: int | None, on_leave: Callable[[int], None]) -> None:
        self._descriptor = descriptor
        self._news = threading.Condition()
        self._world: dict[str, str] | None = None
        self._is_open = descriptor is not None
        self._on_leave = on_leave
        if descriptor is not None:
            threading.Thread(target=self._read, args=(descriptor,), name="orders", daemon=True).start()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], on_leave: Callable[[int], None]) -> Orders:
        return cls(descriptor_in(environment), on_leave)

    @property
    def is_open(self) -> bool:
        """Whether orders may still arrive. False without a supervisor, and after the end of the pipe."""
        return self._is_open

    def next_world(self, *, seconds: float, until: Callable[[], bool]) -> dict[str, str] | None:
        """The variables of the next world. None once `seconds` are over, `until` holds, or no order can come any more."""
        limit = time.monotonic() + seconds
        with self._news:
            while self._world is None and self._is_open and not until() and (remaining := limit - time.monotonic()) > 0:
                self._news.wait(min(remaining, _TURN))
            world, self._world = self._world, None
        return world

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb") as lines:
            for line in lines:
                order = json.loads(line)
                if "world" in order:
                    with self._news:
                        self._world = order["world"]
                        self._news.notify()
                else:
                    self._on_leave(order["leave"])
        with self._news:
            self._is_open = False
            self._news.notify()


def descriptor_in(environment: Mapping[str, str]) -> int | None:
    """The reading end of the pipe, if this process has one."""
    text = environment.get(ORDERS_FD, "")
    return int(text) if text.isdecimal() else None
