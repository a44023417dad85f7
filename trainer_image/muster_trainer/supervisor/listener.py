"""Receives events over the loopback interface, for programs that do not inherit the events pipe, such as those that torchrun starts.

The program sends the token as its first line, and then the same lines as in the pipe, with the same limits. A program may also post its
status over HTTP (`status_posts`).
"""

from __future__ import annotations

import secrets
import socket
import time
from contextlib import suppress

from muster_contract.environment import EVENTS_ADDRESS, EVENTS_TOKEN
from muster_trainer.supervisor.event_reader import EventReader, Line
from muster_trainer.supervisor.status_posts import PATH, REQUEST_LINE, Request, StatusPosts

MOST_CONNECTIONS = 256
"""The most open connections. Each training process has one, and a replica has at most 64 processes."""
BACKLOG = 128
LONGEST_TOKEN = 256
ADMISSION_SECONDS = 10.0
"""The time in which a connection must send the token or the whole request."""


class Connection(EventReader):
    """Reads the events of one connection. Closes a connection that does not send the token."""

    def __init__(self, connection: socket.socket, rank: int, token: bytes, posts: StatusPosts) -> None:
        super().__init__(connection.fileno(), rank)
        self._socket = connection
        self._token = token
        self._posts = posts
        self._greeting = b""
        self._request: Request | None = None
        self._deadline = time.monotonic() + ADMISSION_SECONDS
        self.admitted = False

    @property
    def is_post(self) -> bool:
        """Whether it is an HTTP request."""
        return self._request is not None

    @property
    def is_overdue(self) -> bool:
        """Whether it has not sent the token or the whole request in time."""
        return not self.admitted and time.monotonic() > self._deadline

    def close(self) -> None:
        """Closes the descriptor."""
        self.open = False
        self._socket.close()

    def _take(self) -> bytes | None:
        try:
            return super()._take()
        except OSError:  # the process at the other end was killed, and the rest of its data is lost
            self.open = False
            return b"\n"

    def _split(self, chunk: bytes) -> list[Line]:
        if self.admitted:
            return super()._split(chunk)
        if self._request is not None:
            return self._post(self._request, chunk)
        self._greeting += chunk
        line, ends, rest = self._greeting.partition(b"\n")
        if ends and secrets.compare_digest(line, self._token):
            self.admitted = True
            return super()._split(rest)
        if ends and len(line) <= LONGEST_TOKEN and REQUEST_LINE.fullmatch(line):
            self._request = Request(self._token)
            return self._post(self._request, self._greeting)
        if ends or len(line) > LONGEST_TOKEN:
            self.open = False
        return []

    def _post(self, request: Request, chunk: bytes) -> list[Line]:
        """If the request is complete, answers it, closes the connection, and returns its events."""
        answer = request.take(chunk) if self.open else None
        if answer is None:
            return []
        self.open = False
        with suppress(OSError):  # the program may not wait for the answer
            self._socket.send(answer.to_bytes())
            self._socket.shutdown(socket.SHUT_WR)
        return super()._split(self._posts.lines(answer.status, time.monotonic())) if answer.status is not None else []


class Listener:
    """Receives the events of one attempt's programs. Each attempt has its own token, so that events of older attempts are refused."""

    def __init__(self, rank: int) -> None:
        """`rank` is the rank of events without a rank. Raises OSError if this process cannot listen."""
        self._rank = rank
        self._token = secrets.token_hex(16)
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        self._socket.setblocking(False)
        self.connections: list[Connection] = []
        self.posts = StatusPosts()

    @property
    def token(self) -> str:
        return self._token

    @property
    def status_url(self) -> str:
        """The URL at which a program may post its status."""
        host, port = self._socket.getsockname()
        return f"http://{host}:{port}{PATH}"

    @property
    def variables(self) -> dict[str, str]:
        """The variables that a program needs to send events."""
        host, port = self._socket.getsockname()
        return {EVENTS_ADDRESS: f"{host}:{port}", EVENTS_TOKEN: self._token}

    def fileno(self) -> int:
        return self._socket.fileno()

    def accept(self) -> list[Connection]:
        """Accepts new connections and returns them. Closes those beyond MOST_CONNECTIONS."""
        accepted: list[Connection] = []
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return accepted
            if len(self.connections) >= MOST_CONNECTIONS:
                connection.close()
                continue
            new = Connection(connection, self._rank, self._token.encode(), self.posts)
            self.connections.append(new)
            accepted.append(new)

    def remove(self, connection: Connection) -> None:
        """Closes a connection that has ended."""
        if connection in self.connections:
            self.connections.remove(connection)
        connection.close()

    def close(self) -> None:
        for connection in list(self.connections):
            self.remove(connection)
        self._socket.close()
