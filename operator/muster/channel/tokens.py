"""Identifies the holder of a bearer token by a TokenReview, and caches the answers.

A review is a request to the API server under the operator's identity, so a peer must not cause too many. A token is first parsed without
verification, and refused if it cannot be valid. Then there is one review at a time for each pod and address of a peer, at a limited rate.
Addresses take turns, so a peer that names many pods does not keep others waiting. So tokens that a peer invents use up nothing that a pod,
at its own address, needs. No claim of an unverified token is trusted.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cachetools import LRUCache, TTLCache

from muster.api.unchecked import mapping
from muster.channel.coordination import RefusedReportError
from muster.kubernetes.api_paths import collection
from muster.kubernetes.api_server import Requests
from muster.kubernetes.errors import ClusterError
from muster.kubernetes.fairness import Slots
from muster.kubernetes.objects import Object
from muster.kubernetes.token_bucket import AddressLimits, Bucket

AUDIENCE = "muster"
REVIEWS_AT_ONCE = 64
GOOD_SECONDS = 600.0  # the token of a deleted pod is refused sooner, because the store no longer has the pod
BAD_SECONDS = 5.0
REVIEWS, REVIEWS_PER_SECOND = 5.0, 0.5  # for each claimed pod and address: burst and rate
MOST_ADDRESSES = 64  # for each claimed pod; those that were seen last are kept
_TOKENS_PER_POD = 2  # the kubelet renews a token before it expires
CLOCKS_DIFFER = 60.0
_MOST_BAD = 1000
MOST_CLAIMS = 16_384
_POD_UID = "authentication.kubernetes.io/pod-uid"
_READER_SECONDS = 60.0
_MOST_READERS = 32


@dataclass
class _Peer:
    """The reviews that one address causes for one pod: their rate, and the one that is under way."""

    reviews: Bucket
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass
class _Pod:
    """The cache for one pod: the digests of its valid tokens with the time of their next review, and the peers that claim to be it."""

    good: LRUCache[bytes, float] = field(default_factory=lambda: LRUCache(_TOKENS_PER_POD))
    peers: LRUCache[str, _Peer] = field(default_factory=lambda: LRUCache(MOST_ADDRESSES))

    def peer(self, address: str, now: float) -> _Peer:
        return self.peers.setdefault(address, _Peer(Bucket(REVIEWS_PER_SECOND, REVIEWS, REVIEWS, now)))


class Tokens:
    """Identifies pods by the tokens of the channel. `is_replica` returns whether the store has a replica with that uid."""

    def __init__(self, requests: Requests, is_replica: Callable[[str], bool]) -> None:
        self._requests = requests
        self._is_replica = is_replica
        self._pods: dict[str, _Pod] = {}
        self._claims: LRUCache[bytes, Claim] = LRUCache(MOST_CLAIMS)
        """The claims of recent tokens, by digest. To decode those of each report would take a tenth of its time."""
        self._bad: TTLCache[bytes, None] = TTLCache(_MOST_BAD, BAD_SECONDS)
        self._reviews = Slots(REVIEWS_AT_ONCE, share=REVIEWS_AT_ONCE // 2)

    async def identify(self, token: str, address: str) -> str:
        """The uid of the pod that the token was issued for. `address` is that of the peer. Raises RefusedReportError."""
        digest = _digest(token)
        claim = self._claims.get(digest) or claim_of(token)
        uid = claim.uid
        if uid is None or claim.expires < time.time() - CLOCKS_DIFFER:
            raise RefusedReportError(401, "token", "the token does not belong to a pod and this channel, or it has expired")
        if not self._is_replica(uid):
            raise RefusedReportError(404, "pod", f"pod {uid} is not a replica of a job of this operator")
        self._claims[digest] = claim
        now = time.monotonic()
        pod = self._pods.setdefault(uid, _Pod())
        if pod.good.get(digest, 0.0) <= now:
            peer = pod.peer(address, now)
            async with peer.lock:
                await self._verify(token, digest, uid=uid, pod=pod, address=address, reviews=peer.reviews)
        return uid

    async def _verify(self, token: str, digest: bytes, *, uid: str, pod: _Pod, address: str, reviews: Bucket) -> None:
        now = time.monotonic()
        if pod.good.get(digest, 0.0) > now:  # another request had it reviewed while this one waited for the lock
            return
        if digest in self._bad:
            raise _not_accepted()
        if digest not in pod.good:
            if reviews.fill(now) < 1:
                raise RefusedReportError(429, "reviews", f"too many tokens from this address claim to be of pod {uid}", retry_seconds=2)
            reviews.tokens -= 1
        try:
            async with self._reviews.of(address):
                status = await review(self._requests, token, AUDIENCE)
        except ClusterError as error:
            reviews.tokens += 1
            raise RefusedReportError(503, "unavailable", f"the token cannot be reviewed now: {error}", retry_seconds=1) from None
        extra = status.get("user", {}).get("extra") or {}
        if AUDIENCE not in status.get("audiences", ()) or uid not in (extra.get(_POD_UID) or ()):
            self._bad[digest] = None
            raise _not_accepted()
        pod.good[digest] = time.monotonic() + GOOD_SECONDS

    def forget(self, uid: str) -> None:
        """Drops the state of a pod that is gone."""
        self._pods.pop(uid, None)


class Readers:
    """Checks who may read /metrics: users with the RBAC right `get` on the URL /metrics, as in controller-runtime. There is one review at a
    time, and each address may cause few that end in a refusal. `clock` returns monotonic seconds."""

    def __init__(self, requests: Requests, clock: Callable[[], float] = time.monotonic) -> None:
        self._requests = requests
        self._clock = clock
        self._answers: dict[bytes, tuple[bool, float]] = {}
        self._failures = AddressLimits(REVIEWS_PER_SECOND, REVIEWS, clock)
        self._lock = asyncio.Lock()

    async def check(self, token: str, address: str) -> None:
        """Raises RefusedReportError unless the bearer of the token may read /metrics. `address` is that of the peer."""
        digest = _digest(token)
        if _claims(token) is None:
            raise RefusedReportError(401, "token", "this cluster did not issue the token")
        async with self._lock:
            allowed, until = self._answers.get(digest, (False, 0.0))
            if until <= self._clock():
                allowed = await self._review(token, digest, address, was_allowed=allowed)
        if not allowed:
            raise RefusedReportError(403, "rights", "the token's user needs the right to get the URL /metrics: see docs/monitoring.md")

    async def _review(self, token: str, digest: bytes, address: str, *, was_allowed: bool) -> bool:
        """`was_allowed`: the last review allowed the token, so the rate limit for invalid tokens does not apply."""
        failures = self._failures.bucket(address)
        if not was_allowed and failures.tokens < 1:
            raise RefusedReportError(429, "reviews", "too many invalid tokens: try again", retry_seconds=2)
        try:
            allowed = await self._may_read(token)
        except ClusterError as error:
            if was_allowed:  # metrics are most useful while the API server is away
                return True
            raise RefusedReportError(503, "unavailable", f"the token cannot be reviewed now: {error}", retry_seconds=5) from None
        if not allowed:
            failures.tokens -= 1
        self._answers.pop(digest, None)
        self._answers[digest] = (allowed, self._clock() + _READER_SECONDS)  # the newest is the last
        while len(self._answers) > _MOST_READERS:
            bad = next((each for each, (good, _) in self._answers.items() if not good), next(iter(self._answers)))
            del self._answers[bad]
        return allowed

    async def _may_read(self, token: str) -> bool:
        user: Mapping[str, Any] = (await review(self._requests, token)).get("user") or {}
        if not user.get("username"):
            return False
        spec = {
            "user": user["username"],
            "uid": user.get("uid", ""),
            "groups": user.get("groups") or [],
            "extra": user.get("extra") or {},
            "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
        }
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        answer = await self._requests.request("POST", collection("authorization.k8s.io/v1", "subjectaccessreviews"), body=body)
        return (answer.get("status") or {}).get("allowed") is True


@dataclass(frozen=True)
class Claim:
    """What a token claims: the uid of its pod, and the time at which it expires, in Unix seconds. The uid is None if the token is not for
    the channel."""

    uid: str | None = None
    expires: float = 0.0


def claim_of(token: str) -> Claim:
    """The unverified claim of a token.

    Source: Kubernetes documentation, "Managing Service Accounts", bound service account tokens.
    """
    claims = _claims(token) or {}
    audiences, expires, bound = claims.get("aud"), claims.get("exp"), claims.get("kubernetes.io")
    if AUDIENCE not in (audiences if isinstance(audiences, list) else [audiences]) or not isinstance(expires, int | float):
        return Claim()
    uid = mapping(mapping(bound).get("pod")).get("uid")
    return Claim(uid, expires) if isinstance(uid, str) and uid else Claim()


def _claims(token: str) -> dict[str, Any] | None:
    """The unverified claims of a JSON Web Token. None if it is not one."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return None
    return claims if isinstance(claims, dict) else None


async def review(requests: Requests, token: str, *audiences: str) -> Mapping[str, Any]:
    """The status of a TokenReview. Empty if the token is invalid. Raises ClusterError."""
    spec = {"token": token, **({"audiences": list(audiences)} if audiences else {})}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
    answer = await requests.request("POST", collection("authentication.k8s.io/v1", "tokenreviews"), body=body)
    status: Object = answer.get("status") or {}
    return status if status.get("authenticated") is True else {}


def _not_accepted() -> RefusedReportError:
    return RefusedReportError(401, "token", "the API server does not accept the token")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
