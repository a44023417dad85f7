"""The processes of a world that measures, without a framework. They start measurements at the same time, and measure the network itself."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from muster_contract.environment import ReplicaEnvironment
from muster_contract.errors import PeerLost
from muster_trainer.host.ranks import meet
from muster_trainer.host.sockets import exactly, listening
from muster_trainer.measure.measuring import Timing, timed

CHUNK = 1 << 20
LINK_SECONDS = 15 * 60.0
STRANGER_SECONDS = 5.0
"""The time in which a connection must send the secret of the link."""
_LENGTH_BYTES = 8
_DONE = b"."
T = TypeVar("T")


class Meeting:
    """One process. Every rank calls the same methods in the same order. Each method raises PeerLost if another process is gone."""

    def __init__(self, replica: ReplicaEnvironment, *, rank: int) -> None:
        self.rank, self.world = rank, replica.world_size or 1
        self._address = replica.world_address or ""
        self._ranks = meet(replica, rank=rank, world=self.world, generation="measure")

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, *_: object) -> None:
        self._ranks.leave()

    def share(self, value: T) -> list[T]:
        """Returns the values of all ranks in their order, on every rank. Waits for all ranks. A value is one that JSON can hold."""
        return [json.loads(text) for text in self._ranks.gather(json.dumps(value))]

    def first(self, value: T) -> T:
        """Returns the value of rank 0, on every rank."""
        return self.share(value)[0]

    def link(self, sizes: Sequence[int]) -> dict[int, Timing]:
        """Measures a TCP connection between the first and the last rank. Returns the times on rank 0, and nothing on other ranks.

        A time is that of sending a number of bytes and receiving one byte. For 0 bytes it is the time of a round trip.
        """
        if self.world == 1:
            return {}
        timings: dict[int, Timing] = {}
        host, _, port = self._address.rpartition(":")
        try:
            if self.rank == 0:
                with (
                    listening(int(port), loopback=host == "127.0.0.1") as listener,
                    _linked(listener, self.first(secrets.token_hex(16)).encode()) as peer,
                ):
                    timings = {size: timed(partial(_send, peer, size), most=1000, seconds=0.3) for size in sizes}
                    _send(peer, None)
                    peer.recv(1)  # the side that closes first holds the port for a while, and the framework needs it
            else:
                secret = self.first("").encode()
                if self.rank == self.world - 1:
                    with socket.create_connection((host, int(port)), timeout=LINK_SECONDS) as peer:
                        _prepare(peer)
                        peer.sendall(secret)
                        _receive_all(peer)
        except OSError as error:
            raise PeerLost(f"rank {self.rank}: the link broke: {error}") from error
        self.share(None)
        return timings


def _linked(listener: socket.socket, secret: bytes) -> socket.socket:
    """The connection that begins with the secret. Others are closed, because everyone who reaches the port can connect."""
    while True:
        listener.settimeout(LINK_SECONDS)
        peer, _ = listener.accept()
        with suppress(OSError):
            if secrets.compare_digest(exactly(peer, len(secret), seconds=STRANGER_SECONDS), secret):
                _prepare(peer)
                return peer
        peer.close()


def _prepare(peer: socket.socket) -> None:
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.settimeout(LINK_SECONDS)


_BLOCK = memoryview(bytes(CHUNK))


def _send(peer: socket.socket, size: int | None) -> None:
    """Sends the number of bytes plus one, then the bytes, and waits for the answer. Without a `size` it sends 0, which is the end."""
    peer.sendall((0 if size is None else size + 1).to_bytes(_LENGTH_BYTES, "big"))
    remaining = size or 0
    while remaining:
        remaining -= peer.send(_BLOCK[: min(remaining, CHUNK)])
    exactly(peer, len(_DONE))


def _receive_all(peer: socket.socket) -> None:
    block = bytearray(CHUNK)
    while length := int.from_bytes(exactly(peer, _LENGTH_BYTES), "big"):
        remaining = length - 1
        while remaining:
            count = peer.recv_into(block, min(remaining, CHUNK))
            if not count:
                raise ConnectionError("the other end has closed the connection")
            remaining -= count
        peer.sendall(_DONE)
    peer.sendall(_DONE)
