"""Sends events to the supervisor, which listens on the loopback interface.

A pipe would not reach every process, because a launcher such as torchrun closes the descriptors that it inherits. An error in this module
does not stop the training.
"""

from __future__ import annotations

import json
import math
import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from muster_contract.environment import EVENTS_ADDRESS, EVENTS_TOKEN
from muster_contract.events import Event, encode_event

TIMEOUT = 2.0
"""Seconds for one event. A supervisor that does not read must not block the training for longer."""
RETRY_SECONDS = 1.0


class Sender:
    """The events of one process. Without a supervisor it sends nothing."""

    def __init__(self, variables: Mapping[str, str], rank: int) -> None:
        host, _, port = variables.get(EVENTS_ADDRESS, "").rpartition(":")
        self._address = (host, int(port)) if host and port.isdecimal() else None
        self._token = variables.get(EVENTS_TOKEN, "")
        self._rank = rank
        self._socket: socket.socket | None = None
        self._process = 0
        self._retry = -math.inf
        self._lock = threading.Lock()

    def send(self, event: Event) -> None:
        """Sends an event of the contract."""
        self.send_document(encode_event(event))

    def send_document(self, document: Mapping[str, Any]) -> None:
        """Sends the JSON object of an event, with the current time and this rank."""
        if self._address is None:
            return
        line = json.dumps({**document, "time": time.time(), "rank": self._rank}).encode() + b"\n"
        with self._lock:
            try:
                self._connected().sendall(line)
            except OSError:
                self._close()

    def _connected(self) -> socket.socket:
        """The connection of this process. A forked process opens its own."""
        if self._socket is not None and self._process == os.getpid():
            return self._socket
        if time.monotonic() < self._retry:
            raise ConnectionError
        self._retry = time.monotonic() + RETRY_SECONDS
        assert self._address is not None
        self._socket = socket.create_connection(self._address, timeout=TIMEOUT)
        self._process = os.getpid()
        self._socket.sendall(self._token.encode() + b"\n")
        return self._socket

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
