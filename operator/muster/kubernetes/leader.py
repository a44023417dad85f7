"""Leader election by a Lease: of several operators one leads, the others stand by.

As in client-go, a candidate takes over a lease that its holder has not renewed for its duration, measured by the candidate's own monotonic
clock from the moment it first saw the last renewal. The holder counts from before it sent that renewal, and stops writing earlier
(`Lease.valid`). So the two never overlap, whatever the clocks of their machines say.

It differs from client-go in three ways:

- A holder that cannot renew because the API server is away does not end. It stops writing, keeps trying, and goes on if the lease is still
  its own. It ends when another candidate has taken the lease.
- A candidate counts only time in which the API server answered it. A slow or absent API server holds up renewals too, and proves nothing
  about the holder; after such a time the holder has a whole duration to renew.
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
from typing import Protocol

from muster.control.cluster import Object
from muster.control.errors import AlreadyExistsError, ClusterError, ConflictError, NotFoundError

RELEASE_SECONDS = 5.0

log = logging.getLogger("muster.leader")


class Requests(Protocol):
    """What the election needs of the gateway."""

    async def request(self, verb: str, path: str, *, body: Object | None = None, query: dict[str, str] | None = None) -> Object: ...


@dataclass(frozen=True)
class Times:
    """Seconds, all of them shares of `duration`: after so long without a renewal the lease is free."""

    duration: float

    @property
    def valid(self) -> float:
        """The holder writes for so long after it began a renewal. The rest of `duration` is for requests that are under way, and for clocks
        that run at different speeds. A request may take longer than that: so each write is safe by itself too. A status is written to
        the version it was decided from, a deletion names the uid, and a creation fails where the name is taken."""
        return self.duration * 3 / 4

    @property
    def renewal(self) -> float:
        """From the beginning of one renewal to that of the next."""
        return self.duration / 4

    @property
    def patience(self) -> float:
        """For one request. With `renewal` and another try it fits into `valid`. An API server that takes longer for each answer is not
        fit to be written to anyhow."""
        return self.duration * 3 / 8

    @property
    def look(self) -> float:
        """Between two looks of a candidate, and between two tries of a holder after one that failed."""
        return self.duration / 8


@dataclass(frozen=True)
class _Sighting:
    """A version of the lease, when it was first seen, and when it was last seen; in monotonic seconds."""

    version: str
    first: float
    last: float


class Lease:
    """One candidate for one lease. `identity` must be unique. `ready`: whether it may take the lease."""

    def __init__(
        self,
        requests: Requests,
        namespace: str,
        *,
        name: str,
        identity: str,
        times: Times,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._requests = requests
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name = name
        self._identity = identity
        self._times = times
        self._ready = ready
        self._renewed: float | None = None
        self._held: Object | None = None
        self._holder = ""
        self._seen: _Sighting | None = None
        self.lost = False
        """Whether another candidate has taken it."""

    @property
    def valid(self) -> bool:
        """Whether nobody else can have taken the lease yet: only then may its holder write. Any thread may ask."""
        renewed = self._renewed
        return renewed is not None and time.monotonic() - renewed < self._times.valid

    async def acquire(self) -> None:
        """Waits until the lease is ours."""
        while not await self._tried():  # noqa: ASYNC110 - the lease is on the API server
            await asyncio.sleep(self._times.look)
        log.info("%s leads", self._identity)

    async def keep(self) -> None:
        """Renews the lease until another candidate has it."""
        pause = self._times.renewal
        while True:
            await asyncio.sleep(pause)
            begun = time.monotonic()
            renewed = await self._tried()
            if not renewed and self._holder not in ("", self._identity):
                log.error("%s has the lease now", self._holder)
                self._renewed = None
                self.lost = True
                return
            pause = max(0.0, begun + self._times.renewal - time.monotonic()) if renewed else self._times.look

    async def release(self) -> None:
        """Lets the next candidate lead at once. Where that fails, it has to wait for `duration`."""
        if self._renewed is None:
            return
        self._renewed = None
        try:
            lease = await self._asked("GET", f"{self._path}/{self._name}")
            if lease["spec"].get("holderIdentity") == self._identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._asked("PUT", f"{self._path}/{self._name}", body=lease)
        except (ClusterError, TimeoutError) as error:
            log.warning("the lease could not be released: %s", error or "no answer in time")

    async def _tried(self) -> bool:
        """One try to take or renew it. `_holder` is then the identity that has it, as far as it is known."""
        begun = time.monotonic()
        try:
            taken = await self._take()
        except (AlreadyExistsError, ConflictError, NotFoundError):
            self._holder = ""  # another candidate was quicker; the next look says which
            return False
        except (ClusterError, TimeoutError) as error:
            self._holder = ""
            log.warning("the lease cannot be read or renewed: %s", error or f"no answer within {self._times.patience} s")
            return False
        if taken:
            self._renewed = begun
        return taken

    async def _take(self) -> bool:
        if self._held is not None:
            known, self._held = self._held, None
            return await self._claim(known)  # a conflict says that another candidate has it, and the next look says which
        try:
            lease = await self._asked("GET", f"{self._path}/{self._name}")
        except NotFoundError:
            if not self._ready():
                return False
            self._held = await self._asked("POST", self._path, body=self._written({}))
            self._holder = self._identity
            return True
        self._holder = lease.get("spec", {}).get("holderIdentity") or ""
        expired = self._expired(lease)
        if not self._ready() or (self._holder not in ("", self._identity) and not expired):
            return False
        return await self._claim(lease)

    async def _claim(self, lease: Object) -> bool:
        self._held = await self._asked("PUT", f"{self._path}/{self._name}", body=self._written(lease))
        self._holder = self._identity
        return True

    async def _asked(self, verb: str, path: str, *, body: Object | None = None) -> Object:
        """Raises TimeoutError, for a connection may hang longer than the lease lasts."""
        async with asyncio.timeout(self._times.patience):
            return await self._requests.request(verb, path, body=body)

    def _expired(self, lease: Object) -> bool:
        """Whether the lease has not changed for its duration, all through which we could look at it."""
        version, now = lease["metadata"]["resourceVersion"], time.monotonic()
        seen = self._seen
        if seen is None or seen.version != version or now - seen.last > self._times.look + self._times.patience:
            seen = _Sighting(version, now, now)
        self._seen = _Sighting(version, seen.first, now)
        return now - seen.first >= float(lease["spec"].get("leaseDurationSeconds") or self._times.duration)

    def _written(self, lease: Object) -> Object:
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
        old = lease.get("spec", {})
        ours = old.get("holderIdentity") == self._identity
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._times.duration)),
            "renewTime": now,
            "acquireTime": old.get("acquireTime", now) if ours else now,
            "leaseTransitions": old.get("leaseTransitions", 0) + (0 if ours or not lease else 1),
        }
        metadata = lease.get("metadata", {"name": self._name})
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


class Election:
    """Runs a candidate in a thread of its own, with connections of its own.

    A pass over a job of thousands can hold up the operator's event loop for longer than a lease may go without renewal. An event loop that
    stays blocked fails the liveness probe.
    """

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[Requests]], candidate: Callable[[Requests], Lease]) -> None:
        self._connect = connect
        self._candidate = candidate
        self._lease: Lease | None = None
        self.won = asyncio.Event()

    @property
    def valid(self) -> bool:
        """Whether this process leads and may write now."""
        return self._lease is not None and self._lease.valid

    @property
    def lost(self) -> bool:
        """Whether it led, and another one leads now."""
        return self._lease is not None and self._lease.lost

    async def run(self) -> None:
        """Ends when another candidate leads; sets `won` when this one does. When it is cancelled, it releases the lease. Raises what
        `connect` raises."""
        outer = asyncio.get_running_loop()
        over: asyncio.Future[None] = outer.create_future()
        inner = asyncio.new_event_loop()
        campaign = inner.create_task(self._campaign(lambda: outer.call_soon_threadsafe(self.won.set)))

        def work() -> None:
            failure: Exception | None = None
            try:
                inner.run_until_complete(campaign)
            except asyncio.CancelledError:
                pass
            except Exception as error:  # noqa: BLE001 - it is raised where `run` is awaited
                failure = error
            inner.close()
            with suppress(RuntimeError):  # the outer loop does not wait for ever for a release
                outer.call_soon_threadsafe(lambda: over.set_exception(failure) if failure else over.set_result(None))

        threading.Thread(target=work, name="election", daemon=True).start()
        try:
            await asyncio.shield(over)
        except asyncio.CancelledError:
            inner.call_soon_threadsafe(campaign.cancel)
            await asyncio.wait([over], timeout=RELEASE_SECONDS)
            raise

    async def _campaign(self, won: Callable[[], object]) -> None:
        async with self._connect() as requests:
            self._lease = self._candidate(requests)
            try:
                await self._lease.acquire()
                won()
                await self._lease.keep()
            finally:
                await self._lease.release()
