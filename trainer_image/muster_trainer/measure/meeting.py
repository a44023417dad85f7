"""Plain TCP connections between the processes of a world, without a framework.

Measurements use them to start at the same time, and to measure the network itself.
"""

from __future__ import annotations

import hashlib
import json
import selectors
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from muster_contract.environment import NAMES, RANK
from muster_contract.errors import PeerLost
from muster_trainer.measure.measuring import Timing, timed

TIMEOUT_SECONDS = 15 * 60.0  # pods of one world may start minutes apart
RETRY_SECONDS = 0.1
CHUNK = 1 << 20
MOST_BYTES = 4 << 20
"""Bytes of the value of one rank. The longest, the times of a measurement, have some kilobytes."""
MOST_WAITING = 256
"""Connections that have not sent their greeting yet. Above it, the oldest is closed."""
_GREETING = struct.Struct("!32sI")
_LENGTH = struct.Struct("!Q")
_DONE = b"."
T = TypeVar("T")


def address_of(environment: Mapping[str, str]) -> tuple[int, int, str, int]:
    """The rank, the number of processes, and the host and port of rank 0, from variables that the supervisor and the operator set."""
    host, _, port = environment.get(NAMES["world_address"], "").rpartition(":")
    return int(environment.get(RANK) or 0), int(environment.get(NAMES["world_size"]) or 1), host, int(port or 0)


class Meeting:
    """The connections of one process. Rank 0 listens, and all other ranks connect to it. Every rank calls the same methods in the same
    order. Each method raises PeerLost if another process is gone.

    A connection begins with a greeting: a digest of the job's uid, and the rank. Rank 0 reads no more than that from a
    connection before it has checked it, because everyone who reaches the port can connect.
    """

    def __init__(self, environment: Mapping[str, str], *, timeout: float = TIMEOUT_SECONDS) -> None:
        self.rank, self.world, host, port = address_of(environment)
        self._timeout = timeout
        self._world_digest = _digest_of(environment)
        self._peers: list[socket.socket] = []
        try:
            if self.world > 1:
                self._peers = self._accept(host, port) if self.rank == 0 else [self._connect(host, port)]
        except OSError as error:
            raise PeerLost(f"the world at {host}:{port} did not come up: {error}") from error

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        """Closes rank 0 last. The side that closes a connection first holds its port for a while, and the framework needs rank 0's port."""
        for peer in self._peers:
            if self.rank == 0 and failure is None:
                with suppress(OSError):
                    peer.recv(1)
            peer.close()

    def share(self, value: T) -> list[T]:
        """Returns the values of all ranks in their order, on every rank. Waits for all ranks. A value is one that JSON can hold."""
        if self.rank:
            self._send_json(self._peers[0], value)
            values: list[T] = self._receive_json(self._peers[0])
            return values
        values = [value, *(self._receive_json(peer) for peer in self._peers)]
        for peer in self._peers:
            self._send_json(peer, values)
        return values

    def first(self, value: T) -> T:
        """Returns the value of rank 0, on every rank."""
        return self.share(value)[0]

    def link(self, sizes: Sequence[int]) -> dict[int, Timing]:
        """Measures the connection to the last rank. Returns the times on rank 0, and nothing on other ranks.

        A time is that of sending a number of bytes and receiving one byte. For 0 bytes it is the time of a round trip.
        """
        timings: dict[int, Timing] = {}
        if self.world > 1 and self.rank == 0:
            peer, block = self._peers[-1], memoryview(bytes(CHUNK))
            timings = {size: timed(partial(self._send, peer, size, block), most=1000, seconds=0.3) for size in sizes}
            self._send(peer, None, block)
        elif self.rank and self.rank == self.world - 1:
            self._receive_all(self._peers[0])
        self.share(None)
        return timings

    def _send(self, peer: socket.socket, size: int | None, block: memoryview) -> None:
        """Sends the number of bytes plus one, then the bytes, and waits for the answer. Without a `size` it sends 0, which is the end."""
        try:
            peer.sendall(_LENGTH.pack(0 if size is None else size + 1))
            remaining = size or 0
            while remaining:
                remaining -= peer.send(block[: min(remaining, CHUNK)])
            if peer.recv(1) != _DONE:
                raise PeerLost("rank 0: the process at the other end of the link went away")
        except OSError as error:
            raise PeerLost(f"rank 0: the link broke: {error}") from error

    def _receive_all(self, peer: socket.socket) -> None:
        block = bytearray(CHUNK)
        while length := _LENGTH.unpack(self._exactly(peer, _LENGTH.size))[0]:
            remaining = length - 1
            while remaining:
                count = peer.recv_into(block, min(remaining, CHUNK))
                if not count:
                    raise PeerLost(f"rank {self.rank}: the process at the other end of the link went away")
                remaining -= count
            peer.sendall(_DONE)
        peer.sendall(_DONE)

    def _accept(self, host: str, port: int) -> list[socket.socket]:
        """Accepts the connections of ranks 1, 2, ..., and returns them in this order."""
        here = host == "127.0.0.1"
        both = not here and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        with socket.create_server((host if here else "", port), family=family, backlog=self.world, dualstack_ipv6=both) as listener:
            return self._greeted(listener)

    def _greeted(self, listener: socket.socket) -> list[socket.socket]:
        """The connections whose greeting is valid, by rank. Others are closed."""
        limit = time.monotonic() + self._timeout
        peers: dict[int, socket.socket] = {}
        waiting: dict[socket.socket, bytes] = {}
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            while len(peers) < self.world - 1:
                ready = selector.select(max(0.0, limit - time.monotonic()))
                if not ready:
                    raise TimeoutError(f"{len(peers) + 1} of {self.world} processes connected within {self._timeout:.0f} s")
                for key, _ in ready:
                    peer = key.fileobj
                    assert isinstance(peer, socket.socket)
                    if peer is listener:
                        self._take_in(listener, waiting, selector)
                    elif peer in waiting:
                        self._read_greeting(peer, waiting, selector, peers)
            for peer in waiting:
                peer.close()
        return [peers[rank] for rank in sorted(peers)]

    def _take_in(self, listener: socket.socket, waiting: dict[socket.socket, bytes], selector: selectors.BaseSelector) -> None:
        peer, _ = listener.accept()
        peer.setblocking(False)
        selector.register(peer, selectors.EVENT_READ)
        waiting[peer] = b""
        if len(waiting) > MOST_WAITING:
            oldest = next(iter(waiting))
            del waiting[oldest]
            selector.unregister(oldest)
            oldest.close()

    def _read_greeting(
        self, peer: socket.socket, waiting: dict[socket.socket, bytes], selector: selectors.BaseSelector, peers: dict[int, socket.socket]
    ) -> None:
        """Reads what has arrived. A complete greeting of a rank that is absent makes the connection that of the rank."""
        try:
            piece = peer.recv(_GREETING.size - len(waiting[peer]))
        except OSError:
            piece = b""
        waiting[peer] += piece
        if piece and len(waiting[peer]) < _GREETING.size:
            return
        greeting = waiting.pop(peer)
        selector.unregister(peer)
        digest, rank = _GREETING.unpack(greeting) if len(greeting) == _GREETING.size else (b"", 0)
        if digest == self._world_digest and 0 < rank < self.world and rank not in peers:
            self._prepare(peer)
            peers[rank] = peer
        else:
            peer.close()

    def _connect(self, host: str, port: int) -> socket.socket:
        limit = time.monotonic() + self._timeout
        while True:
            try:
                peer = socket.create_connection((host, port), timeout=self._timeout)
                break
            except OSError:
                if time.monotonic() > limit:
                    raise
                time.sleep(RETRY_SECONDS)
        self._prepare(peer)
        peer.sendall(_GREETING.pack(self._world_digest, self.rank))
        return peer

    def _prepare(self, peer: socket.socket) -> None:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.settimeout(self._timeout)

    def _send_json(self, peer: socket.socket, value: object) -> None:
        text = json.dumps(value).encode()
        try:
            peer.sendall(_LENGTH.pack(len(text)) + text)
        except OSError as error:
            raise PeerLost(f"rank {self.rank}: {error}") from error

    def _receive_json(self, peer: socket.socket) -> Any:
        length = _LENGTH.unpack(self._exactly(peer, _LENGTH.size))[0]
        if length > MOST_BYTES * (self.world if self.rank else 1):  # rank 0 sends the values of all ranks
            raise PeerLost(f"rank {self.rank}: a process of the world sends {length} bytes, which is too much")
        return json.loads(self._exactly(peer, length))

    def _exactly(self, peer: socket.socket, count: int) -> bytes:
        content = bytearray()
        while len(content) < count:
            try:
                piece = peer.recv(count - len(content))
            except OSError as error:
                raise PeerLost(f"rank {self.rank}: {error}") from error
            if not piece:
                raise PeerLost(f"rank {self.rank}: a process of the world went away")
            content += piece
        return bytes(content)


def _digest_of(environment: Mapping[str, str]) -> bytes:
    return hashlib.sha256(environment.get(NAMES["job_uid"], "").encode()).digest()
