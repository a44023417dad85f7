"""Connections between the ranks of a world, for programs of users and for measurements: decisions that are the same on all ranks. No
framework is needed.

Rank 0 listens at a port beside that of the framework, or at a Unix socket if the whole world is on one machine. The other ranks connect
to it. Each sends the job's uid, the attempt and the world, and rank 0 refuses other connections. A message is one line of JSON, and each
message has an answer. A rank that ends normally sends a farewell before it closes its connection. A connection that closes without a
farewell means that the peer is lost.
"""

from __future__ import annotations

import errno
import hashlib
import json
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Protocol

from muster_contract.environment import ReplicaEnvironment
from muster_contract.errors import BadConfiguration, PeerLost
from muster_trainer.host.sockets import listening

MEET_SECONDS = 15 * 60.0
"""The longest wait for other ranks at the start, because pods of one world may start minutes apart."""
GREETING_SECONDS = 5.0
RETRY_SECONDS = 0.05
FAREWELL_SECONDS = 5.0
"""How long rank 0 waits before it ends for ranks that have not connected yet, because they would find no listener."""
LONGEST_GREETING = 4096
MOST_STRANGERS = 64
"""The most open connections that have not yet proved to be of this world, besides one of each rank."""
LONGEST_LINE = 64 << 20
"""Bytes of the longest message: the names, sizes and hashes of the files that all ranks have written."""
CHUNK = 1 << 20
PORTS_APART = 1000
AHEAD_SECONDS = 0.1
"""An answer that there is no stop is valid for the calls of about this time. So ranks send fewer messages, and a stop may come this much
later."""
MOST_AHEAD = 20


class Ranks(Protocol):
    """The ranks of a world, as `muster_trainer.training.agreement` needs them, and their votes on a stop and a save."""

    rank: int
    saves: bool = False
    """Whether all ranks save at the newest call of `stops`."""

    def broadcast(self, text: str) -> str:
        return self.gather(text)[0]

    def gather(self, text: str) -> list[str]: ...

    def stops(self, call: int, requested: bool, *, save: bool = False) -> bool:
        """Whether the world stops at this call. `call` counts the calls of this rank. The answer to a call is the same on all ranks. With
        `save`, rank 0 asks all ranks to save."""

    def leave(self) -> None:
        """Announces to the other ranks that this rank ends normally."""


@dataclass
class Alone(Ranks):
    """A world of one rank."""

    rank: int = 0

    def gather(self, text: str) -> list[str]:
        return [text]

    def stops(self, call: int, requested: bool, *, save: bool = False) -> bool:
        self.saves = save
        return requested

    def leave(self) -> None:
        return


@dataclass
class Round:
    """The texts that have arrived so far for one call of `gather`, by rank."""

    texts: dict[int, str] = field(default_factory=dict)
    fetched: int = 0


class Table:
    """The state of all ranks, on rank 0. The threads of all connections use it."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._changed = threading.Condition()
        self._rounds: dict[int, Round] = {}
        self._lost_rank: str | None = None
        self._last_grant: tuple[int, float] | None = None
        self._granted = 0
        self._stop_at: int | None = None
        self._saves_at: set[int] = set()

    @property
    def stop_at(self) -> int | None:
        return self._stop_at

    def stops(self, call: int, requested: bool) -> tuple[bool, int]:
        """Whether to stop at this call, and the last call at which the world certainly goes on and saves nothing.

        A stop begins at the first call that no rank has an answer for. So no rank is past that call. The same holds for a save.
        """
        with self._changed:
            if requested and self._stop_at is None:
                self._stop_at = self._granted + 1
            if self._stop_at is not None:
                return call >= self._stop_at, self._before_a_save(call, self._stop_at - 1)
            if call > self._granted:
                self._granted = call + self._ahead(call)
            return False, self._before_a_save(call, self._granted)

    def _before_a_save(self, call: int, until: int) -> int:
        """The last call up to `until` at which nothing is saved, after this call."""
        return min([until, *(each - 1 for each in self._saves_at if each > call)])

    def request_save(self) -> None:
        with self._changed:
            self._saves_at.add(self._granted + 1)

    def saves(self, call: int) -> bool:
        return call in self._saves_at

    def _ahead(self, call: int) -> int:
        """The number of calls in about AHEAD_SECONDS, at the rate since the last answer, because an older rate may be far too high."""
        now = time.monotonic()
        before, self._last_grant = self._last_grant or (call, now), (call, now)
        return min(MOST_AHEAD, int(AHEAD_SECONDS * (call - before[0]) / max(now - before[1], AHEAD_SECONDS)))

    def gather(self, number: int, rank: int, text: str) -> list[str]:
        """Waits for the texts of all ranks in the call `number` of `gather`, and returns them. Raises PeerLost if a rank is lost."""
        with self._changed:
            gathering = self._rounds.setdefault(number, Round())
            gathering.texts[rank] = text
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(gathering.texts) == self._world or self._lost_rank is not None)
            if len(gathering.texts) < self._world:
                raise PeerLost(str(self._lost_rank))
            gathering.fetched += 1
            if gathering.fetched == self._world:
                del self._rounds[number]
            return [gathering.texts[each] for each in range(self._world)]

    def lose(self, rank: int, how: str) -> None:
        """Records that a rank is gone. Calls of `gather` that wait for it raise PeerLost."""
        with self._changed:
            self._lost_rank = self._lost_rank or f"rank {rank} {how}"
            self._changed.notify_all()


class Lines:
    """Lines of JSON over a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.answering = threading.Lock()
        """Locked from a message to its answer, so that a farewell is not sent in between."""
        self._rest = b""

    def send(self, **message: Any) -> None:
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, *, longest: int = LONGEST_LINE, seconds: float | None = None) -> dict[str, Any]:
        """The next message. Raises OSError if it is not complete after `seconds` or the connection ends, and ValueError if it is not an
        object of JSON."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while b"\n" not in self._rest:
            if len(self._rest) > longest:
                raise ValueError("the line is too long")
            if deadline is not None:
                self.connection.settimeout(max(deadline - time.monotonic(), 0.001))
            chunk = self.connection.recv(CHUNK)
            if not chunk:
                raise ConnectionError("the connection has ended")
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError("the line is not an object")
        return message

    def close(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


class RankZero(Ranks):
    """Rank 0. It listens, and has a thread for the connection of each other rank."""

    rank = 0

    def __init__(self, address: Address, greeting: dict[str, Any], world: int) -> None:
        self._table = Table(world)
        self._greeting = greeting
        self._world = world
        self._number = 0
        self._lines: dict[int, Lines] = {}
        self._unverified = threading.BoundedSemaphore(world + MOST_STRANGERS)
        self._listener = address.listen(backlog=world)
        threading.Thread(target=self._accept, name="muster-ranks", daemon=True).start()

    def gather(self, text: str) -> list[str]:
        self._number += 1
        return self._table.gather(self._number, 0, text)

    def stops(self, call: int, requested: bool, *, save: bool = False) -> bool:
        if save:
            self._table.request_save()
        self.saves = self._table.saves(call)
        return self._table.stops(call, requested)[0]

    def leave(self) -> None:
        self._table.lose(0, "has ended")
        deadline = time.monotonic() + FAREWELL_SECONDS
        while len(self._lines) < self._world - 1 and time.monotonic() < deadline:
            time.sleep(RETRY_SECONDS)
        deadline = time.monotonic() + FAREWELL_SECONDS
        for lines in list(self._lines.values()):
            if not lines.answering.acquire(timeout=max(deadline - time.monotonic(), 0.0)):
                continue
            with suppress(OSError):
                lines.send(bye=True, stopAt=self._table.stop_at)
                lines.connection.shutdown(socket.SHUT_WR)
            lines.answering.release()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._listener.fileno() < 0:
                    return
                time.sleep(RETRY_SECONDS)  # the process has too many open descriptors for now, or the other end is gone
                continue
            if not self._unverified.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(Lines(connection),), name="muster-rank", daemon=True).start()

    def _serve(self, lines: Lines) -> None:
        try:
            rank = self._greeted(lines)
        finally:
            self._unverified.release()
        if rank is None:
            lines.close()
            return
        how = "is gone"
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            while True:
                message = lines.receive()
                if "bye" in message:
                    how = "has ended"
                    break
                with lines.answering:
                    self._answer(lines, rank, message)
        if self._lines.get(rank) is lines:
            self._table.lose(rank, how)
        lines.close()

    def _greeted(self, lines: Lines) -> int | None:
        """The rank at the other end; None if it is not of this world, or has given up waiting. A rank that gave up connects again."""
        try:
            message = lines.receive(longest=LONGEST_GREETING, seconds=GREETING_SECONDS)
            rank = message.pop("rank", None)
            if message != self._greeting or type(rank) is not int or not 0 < rank < self._world:
                return None
            lines.send(welcome=True)
            lines.receive(longest=LONGEST_GREETING, seconds=GREETING_SECONDS)
            lines.connection.settimeout(None)
            self._lines[rank] = lines
        except (OSError, ValueError, RecursionError):
            return None
        return rank

    def _answer(self, lines: Lines, rank: int, message: dict[str, Any]) -> None:
        if "call" in message:
            stop, until = self._table.stops(int(message["call"]), bool(message["requested"]))
            lines.send(stop=stop, until=until, save=self._table.saves(int(message["call"])))
            return
        try:
            lines.send(texts=self._table.gather(int(message["gather"]), rank, str(message["text"])))
        except PeerLost as error:
            lines.send(lost=str(error))


class OtherRank(Ranks):
    """Every rank but the first. It has one connection to rank 0."""

    def __init__(self, address: Address, greeting: dict[str, Any], rank: int) -> None:
        self.rank = rank
        self._number = 0
        self._until = 0
        self._requested = False
        self._stop_at: int | None = None
        self._rank_zero_ended = False
        self._lines = self._meet(address, greeting)

    def gather(self, text: str) -> list[str]:
        self._number += 1
        answer = self._exchange(gather=self._number, text=text)
        if "texts" not in answer:
            raise PeerLost(str(answer.get("lost", "rank 0 has ended")))
        texts: list[str] = answer["texts"]
        return texts

    def stops(self, call: int, requested: bool, *, save: bool = False) -> bool:
        self.saves = False
        if self._rank_zero_ended:
            return self._stop_at is not None and call >= self._stop_at
        if call <= self._until and requested == self._requested:
            return False
        answer = self._exchange(call=call, requested=requested)
        if self._rank_zero_ended:
            return self._stop_at is not None and call >= self._stop_at
        self._requested, self._until = requested, int(answer["until"])
        self.saves = bool(answer["save"])
        return bool(answer["stop"])

    def leave(self) -> None:
        with suppress(OSError):
            self._lines.send(bye=True)

    def _exchange(self, **message: Any) -> dict[str, Any]:
        """Sends a message and returns the answer of rank 0, or its farewell if it has ended normally. Raises PeerLost if it is gone."""
        if self._rank_zero_ended:
            return {}
        try:
            with suppress(OSError):  # rank 0 may have sent a farewell before it closed the connection
                self._lines.send(**message)
            answer = self._lines.receive()
        except (OSError, ValueError) as error:
            raise PeerLost(f"rank 0 is gone: {error}") from None
        if "bye" in answer:
            self._rank_zero_ended, self._stop_at = True, answer.get("stopAt")
        return answer

    def _meet(self, address: Address, greeting: dict[str, Any]) -> Lines:
        deadline = time.monotonic() + MEET_SECONDS
        while True:
            try:
                lines = Lines(address.connect())
                try:
                    lines.send(**greeting, rank=self.rank)
                    lines.receive(longest=LONGEST_GREETING, seconds=GREETING_SECONDS)
                    lines.send(met=True)
                except BaseException:
                    lines.close()
                    raise
                lines.connection.settimeout(None)
                return lines
            except (OSError, ValueError) as error:
                if time.monotonic() > deadline:
                    raise PeerLost(f"rank 0 does not answer at {address}: {error}") from None
            time.sleep(RETRY_SECONDS)


@dataclass(frozen=True)
class Address:
    """The address at which rank 0 listens: a host and port, or a Unix socket. On Linux the socket is abstract, so no file stays behind."""

    host: str = ""
    port: int = 0
    name: str = ""

    def __str__(self) -> str:
        return repr(self.name) if self.name else f"{self.host}:{self.port}"

    def listen(self, backlog: int) -> socket.socket:
        if not self.name:
            return listening(self.port, backlog=backlog)
        if not self.name.startswith("\0"):
            Path(self.name).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(self.name)
            listener.listen(backlog)
        except BaseException:
            listener.close()
            raise
        return listener

    def connect(self) -> socket.socket:
        if not self.name:
            return socket.create_connection((self.host, self.port), timeout=GREETING_SECONDS)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(GREETING_SECONDS)
        try:
            connection.connect(self.name)
        except BaseException:
            connection.close()
            raise
        return connection


def address_of(replica: ReplicaEnvironment, generation: str) -> Address:
    """The address of rank 0 of this world. `generation` distinguishes the worlds of one attempt, if a launcher starts several."""
    host, _, port = (replica.world_address or "").rpartition(":")
    if not host or not port.isdecimal():
        raise BadConfiguration(f"the strategy {replica.strategy} has no address at which the ranks of its world can meet")
    if _is_loopback(host):
        name = hashlib.sha256(f"{replica.job_uid}/{replica.attempt}/{port}/{generation}".encode()).hexdigest()[:24]
        return Address(name=f"\0muster-{name}" if sys.platform == "linux" else f"/tmp/muster-{name}.sock")
    number = int(port)
    return Address(host, number - PORTS_APART if number + PORTS_APART > 2**16 - 1 else number + PORTS_APART)


def meet(replica: ReplicaEnvironment, *, rank: int, world: int, generation: str) -> Ranks:
    """Connects to rank 0, or listens if this is rank 0, and returns the ranks of the world. Raises PeerLost and BadConfiguration."""
    if world == 1:
        return Alone()
    address = address_of(replica, generation)
    greeting = {"job": replica.job_uid, "attempt": replica.attempt, "generation": generation, "world": world}
    try:
        return RankZero(address, greeting, world) if rank == 0 else OtherRank(address, greeting, rank)
    except OSError as error:
        message = f"rank 0 cannot listen at {address}: {error.strerror}"
        if error.errno == errno.EADDRINUSE:  # a child of an earlier process may hold the port for a moment
            raise PeerLost(message) from None
        raise BadConfiguration(message) from None


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
