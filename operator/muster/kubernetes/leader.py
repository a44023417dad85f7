"""Leader election by a Lease: of several operators one works, the others wait.

As client-go's: a lease is taken over when its holder has not renewed it for its duration, by the observer's own clock. Unlike client-go's,
a holder that cannot renew because the API server is away does not end: it stops writing (`valid` is false), keeps trying, and goes on when
it finds the lease still its own, as it will when nobody could reach the API server. It ends when somebody else has taken it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from muster.control.cluster import Object
from muster.control.errors import AlreadyExistsError, ClusterError, ConflictError, NotFoundError

log = logging.getLogger("muster.leader")


class Requests(Protocol):
    """What the election needs of the gateway."""

    async def request(self, verb: str, path: str, *, body: Object | None = None, query: dict[str, str] | None = None) -> Object: ...


@dataclass(frozen=True)
class Times:
    """Seconds. Between `valid` and `duration` lies what clocks may differ by and a request under way may take.

    Twice client-go's 15 and 10: on a starved machine a thousand jobs at once can hold up a renewal for ten seconds, and while nobody leads
    all that runs runs on. A container that is started again in its pod goes on at once.
    """

    duration: float = 30.0
    valid: float = 20.0
    retry: float = 2.0


class Lease:
    """One candidate for one lease. `identity` must be unique."""

    def __init__(self, requests: Requests, namespace: str, *, name: str, identity: str, times: Times = Times()) -> None:
        self._requests = requests
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name = name
        self._identity = identity
        self._times = times
        self._renewed: float | None = None
        self._held: Object | None = None
        self._holder = ""
        self._seen: tuple[str, float] | None = None
        self.lost = asyncio.Event()

    @property
    def valid(self) -> bool:
        """Whether nobody else can have taken the lease yet: only then may its holder write."""
        return self._renewed is not None and time.monotonic() - self._renewed < self._times.valid

    async def acquire(self) -> None:
        """Waits until the lease is ours."""
        while not await self._tried():  # noqa: ASYNC110
            await asyncio.sleep(self._times.retry)  # what is waited for is on the API server
        log.info("%s leads", self._identity)

    async def keep(self) -> None:
        """Renews the lease until somebody else has it; then sets `lost`."""
        while True:
            await asyncio.sleep(self._times.retry)
            if not await self._tried() and self._holder not in ("", self._identity):
                log.error("%s has the lease now", self._holder)
                self._renewed = None
                self.lost.set()
                return

    async def release(self) -> None:
        """Lets the next one lead at once. Not being able to costs it `duration`, and nothing else."""
        if self._renewed is None:
            return
        self._renewed = None
        try:
            lease = await self._requests.request("GET", f"{self._path}/{self._name}")
            if lease["spec"].get("holderIdentity") == self._identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._requests.request("PUT", f"{self._path}/{self._name}", body=lease)
        except ClusterError as error:
            log.warning("the lease could not be released: %s", error)

    async def _tried(self) -> bool:
        """One try to take or renew it. `_holder` is afterwards who is known to have it."""
        begun = time.monotonic()
        try:
            taken = await self._take()
        except (AlreadyExistsError, ConflictError, NotFoundError):
            self._holder = ""  # somebody was quicker; the next look says who
            return False
        except ClusterError as error:
            self._holder = ""
            log.warning("the lease cannot be renewed: %s", error)
            return False
        if taken:
            self._renewed = begun
        return taken

    async def _take(self) -> bool:
        if self._held is not None:
            known, self._held = self._held, None
            return await self._claim(known)  # a conflict says that somebody else has it, and the next look says who
        try:
            lease = await self._requests.request("GET", f"{self._path}/{self._name}")
        except NotFoundError:
            self._held = await self._requests.request("POST", self._path, body=self._written({}))
            self._holder = self._identity
            return True
        self._holder = lease.get("spec", {}).get("holderIdentity") or ""
        if self._holder not in ("", self._identity) and not self._expired(lease):
            return False
        return await self._claim(lease)

    async def _claim(self, lease: Object) -> bool:
        self._held = await self._requests.request("PUT", f"{self._path}/{self._name}", body=self._written(lease))
        self._holder = self._identity
        return True

    def _expired(self, lease: Object) -> bool:
        """Whether the lease has not changed for its duration, by our own clock: clocks of other machines prove nothing."""
        version, now = lease["metadata"]["resourceVersion"], time.monotonic()
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, now)
        return now - self._seen[1] >= float(lease["spec"].get("leaseDurationSeconds") or self._times.duration)

    def _written(self, lease: Object) -> Object:
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
        old = lease.get("spec", {})
        ours = old.get("holderIdentity") == self._identity
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": round(self._times.duration),
            "renewTime": now,
            "acquireTime": old.get("acquireTime", now) if ours else now,
            "leaseTransitions": old.get("leaseTransitions", 0) + (0 if ours or not lease else 1),
        }
        metadata = lease.get("metadata", {"name": self._name})
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
