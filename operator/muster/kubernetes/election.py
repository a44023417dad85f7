"""Leader election by a Lease: one of several operators leads, and the others are standby operators.

As in client-go, a candidate takes over a lease that its holder has not renewed for its duration. The candidate measures that with its own
monotonic clock, from the moment at which it first saw the last renewal. The holder counts from before it sent that renewal, and stops
writing earlier (`Lease.valid`). So the two never overlap, even if the clocks of their machines differ.

It differs from client-go in three ways:

- A holder that cannot renew because the API server is away does not end. It stops writing, keeps trying, and continues if it still
  has the lease. It ends when another candidate has taken the lease.
- A candidate counts only time in which the API server answered it. A slow or absent API server delays renewals too, and says nothing
  about the holder. After such a time, the holder has a whole duration to renew.
- A candidate takes no lease before it has cached all jobs and pods. Until then it could do nothing with it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from muster.kubernetes.api_paths import ApiPath, collection, member
from muster.kubernetes.api_server import Requests
from muster.kubernetes.errors import AlreadyExistsError, ClusterError, ConflictError, NotFoundError
from muster.kubernetes.objects import Object

RELEASE_SECONDS = 5.0

log = logging.getLogger("muster.leader")


@dataclass(frozen=True)
class Times:
    """Times in seconds, all in proportion to `duration`. The lease is free after `duration` without a renewal."""

    duration: float

    @property
    def valid(self) -> float:
        """How long the holder writes after the start of a renewal. The rest of `duration` is for requests that are under way, and for
        clocks of different speed. A request may take longer, so each write is also safe by itself: a status names the resourceVersion of
        the decision, a deletion names the uid, and a creation fails if the name is taken."""
        return self.duration * 3 / 4

    @property
    def renewal(self) -> float:
        """From the start of one renewal to the start of the next."""
        return self.duration / 4

    @property
    def request_timeout(self) -> float:
        """The limit of one request. Together with `renewal` and a second try it fits into `valid`."""
        return self.duration * 3 / 8

    @property
    def look(self) -> float:
        """Seconds between two reads by a candidate, and between two tries of a holder after a failure."""
        return self.duration / 8


@dataclass(frozen=True)
class _Sighting:
    """A version of the lease, with the times at which it was first and last seen, in monotonic seconds."""

    version: str
    first: float
    last: float


class Lease:
    """One candidate for one lease. `identity` must be unique. `ready` returns whether the candidate may take the lease."""

    def __init__(
        self,
        requests: Requests,
        namespace: str,
        *,
        name: str,
        identity: str,
        times: Times,
        ready: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._requests = requests
        self._clock = clock
        self._leases = collection("coordination.k8s.io/v1", "leases", namespace=namespace)
        self._name = name
        self._identity = identity
        self._times = times
        self._ready = ready
        self._renewed: float | None = None
        self._lease: Object | None = None
        self._holder = ""
        self._seen: _Sighting | None = None
        self.lost = False
        """Whether another candidate has taken the lease."""

    @property
    def valid(self) -> bool:
        """Whether no other candidate can have taken the lease yet. If false, the holder must not write. Safe to read from any thread."""
        renewed = self._renewed
        return renewed is not None and self._clock() - renewed < self._times.valid

    async def acquire(self) -> None:
        """Waits until this candidate holds the lease."""
        while not await self._try():  # noqa: ASYNC110 - the lease is on the API server
            await asyncio.sleep(self._times.look)
        log.info("%s leads", self._identity)

    async def keep(self) -> None:
        """Renews the lease until another candidate has it."""
        pause = self._times.renewal
        while True:
            await asyncio.sleep(pause)
            begun = self._clock()
            renewed = await self._try()
            if not renewed and self._holder not in ("", self._identity):
                log.error("%s has the lease now", self._holder)
                self._renewed = None
                self.lost = True
                return
            pause = max(0.0, begun + self._times.renewal - self._clock()) if renewed else self._times.look

    async def release(self) -> None:
        """Frees the lease, so that the next candidate leads at once. If that fails, the next one waits for `duration`."""
        if self._renewed is None:
            return
        self._renewed = None
        try:
            lease = await self._request("GET", member(self._leases, self._name))
            if lease["spec"].get("holderIdentity") == self._identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._request("PUT", member(self._leases, self._name), body=lease)
        except (ClusterError, TimeoutError) as error:
            log.warning("the lease could not be released: %s", str(error) or "no answer in time")

    async def _try(self) -> bool:
        """Tries once to take or renew the lease. Sets `_holder` to the identity of the holder, or to an empty text if it is unknown."""
        begun = self._clock()
        try:
            acquired = await self._take()
        except (AlreadyExistsError, ConflictError, NotFoundError):
            self._holder = ""  # another candidate was faster; the next read shows which
            return False
        except (ClusterError, TimeoutError) as error:
            self._holder = ""
            log.warning("the lease cannot be read or renewed: %s", str(error) or f"no answer within {self._times.request_timeout} s")
            return False
        if acquired:
            self._renewed = begun
        return acquired

    async def _take(self) -> bool:
        if self._lease is not None:
            lease, self._lease = self._lease, None
            return await self._claim(lease)  # a conflict means that another candidate has it; the next read shows which
        try:
            lease = await self._request("GET", member(self._leases, self._name))
        except NotFoundError:
            if not self._ready():
                return False
            self._lease = await self._request("POST", self._leases, body=self._manifest({}))
            self._holder = self._identity
            return True
        self._holder = lease.get("spec", {}).get("holderIdentity") or ""
        expired = self._expired(lease)
        if not self._ready() or (self._holder not in ("", self._identity) and not expired):
            return False
        return await self._claim(lease)

    async def _claim(self, lease: Object) -> bool:
        self._lease = await self._request("PUT", member(self._leases, self._name), body=self._manifest(lease))
        self._holder = self._identity
        return True

    async def _request(self, verb: str, path: ApiPath, *, body: Object | None = None) -> Object:
        """Raises TimeoutError, because a connection may hang for longer than the lease lasts."""
        async with asyncio.timeout(self._times.request_timeout):
            return await self._requests.request(verb, path, body=body)

    def _expired(self, lease: Object) -> bool:
        """Whether the lease has not changed for its duration, while this candidate could read it all the time."""
        version, now = lease["metadata"]["resourceVersion"], self._clock()
        seen = self._seen
        if seen is None or seen.version != version or now - seen.last > self._times.look + self._times.request_timeout:
            seen = _Sighting(version, now, now)
        self._seen = _Sighting(version, seen.first, now)
        return now - seen.first >= float(lease["spec"].get("leaseDurationSeconds") or self._times.duration)

    def _manifest(self, lease: Object) -> Object:
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
        old = lease.get("spec", {})
        is_holder = old.get("holderIdentity") == self._identity
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._times.duration)),
            "renewTime": now,
            "acquireTime": old.get("acquireTime", now) if is_holder else now,
            "leaseTransitions": old.get("leaseTransitions", 0) + (0 if is_holder or not lease else 1),
        }
        metadata = lease.get("metadata", {"name": self._name})
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


class Election:
    """Runs a candidate in its own thread, with its own connections.

    A pass over a job with thousands of replicas can block the operator's event loop for longer than the lease lasts without a renewal. An
    event loop that stays blocked fails the liveness probe.
    """

    def __init__(self) -> None:
        self._lease: Lease | None = None
        self.won = asyncio.Event()

    @property
    def valid(self) -> bool:
        """Whether this process leads and may write now."""
        return self._lease is not None and self._lease.valid

    @property
    def lost(self) -> bool:
        """Whether this process has led, and another one leads now."""
        return self._lease is not None and self._lease.lost

    async def run(self, connect: Callable[[], AbstractAsyncContextManager[Requests]], candidate: Callable[[Requests], Lease]) -> None:
        """Runs the candidate that `candidate` returns for a connection. Sets `won` when it leads, and ends when another one leads. Releases
        the lease when it is cancelled. Raises the errors of `connect`."""
        outer = asyncio.get_running_loop()
        over: asyncio.Future[None] = outer.create_future()
        inner = asyncio.new_event_loop()
        campaign = inner.create_task(self._campaign(connect, candidate, lambda: outer.call_soon_threadsafe(self.won.set)))

        def work() -> None:
            failure: Exception | None = None
            try:
                inner.run_until_complete(campaign)
            except asyncio.CancelledError:
                pass
            except Exception as error:  # noqa: BLE001 - `run` raises it
                failure = error
            inner.close()
            with suppress(RuntimeError):  # the outer loop may have ended before the release
                outer.call_soon_threadsafe(lambda: over.set_exception(failure) if failure else over.set_result(None))

        threading.Thread(target=work, name="election", daemon=True).start()
        try:
            await asyncio.shield(over)
        except asyncio.CancelledError:
            inner.call_soon_threadsafe(campaign.cancel)
            await asyncio.wait([over], timeout=RELEASE_SECONDS)
            raise

    async def _campaign(
        self,
        connect: Callable[[], AbstractAsyncContextManager[Requests]],
        candidate: Callable[[Requests], Lease],
        on_won: Callable[[], object],
    ) -> None:
        async with connect() as requests:
            self._lease = candidate(requests)
            try:
                await self._lease.acquire()
                on_won()
                await self._lease.keep()
            finally:
                await self._lease.release()
