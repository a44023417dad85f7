"""The tokens of pods and of readers of metrics, and the limit of reviews that invalid tokens cause."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import Counter
from typing import Any

import pytest

from muster.channel import tokens
from muster.channel.coordination import RefusedReportError
from muster.channel.tokens import REVIEWS, Claim, Readers, Tokens, claim_of
from muster.kubernetes.errors import UnavailableError
from muster.kubernetes.objects import Object


def token(uid: str = "pod-1", signature: str = "good", **claims: Any) -> str:
    bound = {"namespace": "default", "pod": {"name": "digits-worker-0", "uid": uid}}
    content = {"aud": ["muster"], "exp": time.time() + 600, "kubernetes.io": bound, **claims}
    return f"e30.{base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip('=')}.{signature}"


class ApiServer:
    """Accepts tokens whose signature is `good`. `allowed` are users who may read the metrics."""

    def __init__(self) -> None:
        self.reviews: list[str] = []
        self.at_once = self.most_at_once = 0
        self.away = False
        self.allowed = {"prometheus"}

    async def request(self, verb: str, path: str, *, body: Object | None = None, query: dict[str, str] | None = None) -> Object:
        assert body is not None
        if path.endswith("/subjectaccessreviews"):
            assert body["spec"]["nonResourceAttributes"] == {"path": "/metrics", "verb": "get"}
            return {"status": {"allowed": body["spec"]["user"] in self.allowed}}
        self.reviews.append(body["spec"]["token"])
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0.001)
        self.at_once -= 1
        if self.away:
            raise UnavailableError("nobody answers")
        given = body["spec"]["token"]
        if not given.endswith(".good"):
            return {"status": {"authenticated": False}}
        claims = json.loads(base64.urlsafe_b64decode(given.split(".")[1] + "=="))
        extra = {"authentication.kubernetes.io/pod-uid": [claims["kubernetes.io"]["pod"]["uid"]]}
        user = {"username": claims.get("sub", "system:serviceaccount:default:default"), "extra": extra}
        return {"status": {"authenticated": True, "audiences": claims["aud"], "user": user}}


async def outcome(checker: Tokens | Readers, given: str, address: str = "10.0.0.1") -> str | int:
    try:
        return await (checker.identify(given, address) if isinstance(checker, Tokens) else checker.check(given, address)) or "allowed"
    except RefusedReportError as error:
        return error.status


def outcomes(server: ApiServer, *given: str) -> list[str | int]:
    async def all_of() -> list[str | int]:
        checker = Tokens(server, lambda uid: uid.startswith("pod-"))
        return list(await asyncio.gather(*(outcome(checker, each) for each in given)))

    return asyncio.run(all_of())


def test_a_good_token_is_reviewed_once() -> None:
    server, good = ApiServer(), token()
    assert outcomes(server, *[good] * 50) == ["pod-1"] * 50
    assert server.reviews == [good]


CANNOT_BE_GOOD = {
    "no JWT": "junk",
    "three parts of junk": "a.b.c",
    "no JSON": "e30.bm8.good",
    "a list": "e30.W10.good",
    "characters that no header should have": "e30.\udcff.good",
    "another audience": token(aud=["https://kubernetes.default.svc"]),
    "an audience of another type": token(aud=7),
    "expired": token(exp=time.time() - 3600),
    "without an end": token(exp=None),
    "of no pod": token(**{"kubernetes.io": {"namespace": "default"}}),
    "of a pod that is no object": token(**{"kubernetes.io": {"pod": "pod-1"}}),
    "of a service account": token(**{"kubernetes.io": None}),
    "a nest": "e30." + base64.urlsafe_b64encode(b"[" * 6000).decode().rstrip("=") + ".good",
}


@pytest.mark.parametrize("given", CANNOT_BE_GOOD.values(), ids=CANNOT_BE_GOOD)
def test_a_malformed_token_is_refused_without_a_review(given: str) -> None:
    server = ApiServer()
    assert outcomes(server, given) == [401]
    assert server.reviews == []


def test_a_token_of_a_pod_that_is_no_replica_is_refused_without_a_review() -> None:
    server = ApiServer()
    assert outcomes(server, token("other")) == [404]
    assert server.reviews == []


def test_invalid_tokens_cause_few_reviews_and_evict_no_valid_ones() -> None:
    server, good = ApiServer(), token("pod-2")

    async def check() -> Counter[str | int]:
        checker = Tokens(server, lambda uid: uid.startswith("pod-"))
        assert await outcome(checker, good) == "pod-2"
        bogus = [token("pod-1", f"bad{number}") for number in range(1500)]
        bogus += [token(f"none-{number}", "bad") for number in range(1500)]
        results = Counter(await asyncio.gather(*(outcome(checker, each) for each in bogus)))
        assert await outcome(checker, good) == "pod-2"
        assert await outcome(checker, token("pod-3")) == "pod-3", "others are reviewed meanwhile"
        return results

    results = asyncio.run(check())
    assert set(results) == {401, 404, 429}
    assert server.reviews.count(good) == 1
    assert len(server.reviews) <= REVIEWS + 2 + 10, "five at once, and one more for every two seconds that this took"


@pytest.mark.parametrize("addresses", [1, 3, 200])
def test_invalid_tokens_from_other_addresses_do_not_keep_a_pod_out(addresses: int) -> None:
    """The operator has just started, so it has no valid token in its cache."""
    server, begun = ApiServer(), time.monotonic()

    async def check() -> str | int:
        checker = Tokens(server, lambda uid: True)
        bogus = ((token("pod-1", f"bad{number}"), f"10.0.1.{number % addresses}") for number in range(2000))
        flood = [asyncio.create_task(outcome(checker, *each)) for each in bogus]
        await asyncio.sleep(0)
        answer = await outcome(checker, token("pod-1"), "10.0.0.1")
        await asyncio.gather(*flood)
        return answer

    assert asyncio.run(check()) == "pod-1"
    if addresses <= tokens.MOST_ADDRESSES:
        most = REVIEWS + tokens.REVIEWS_PER_SECOND * (time.monotonic() - begun) + 1
        assert len(server.reviews) <= addresses * most + 1


@pytest.mark.parametrize("addresses", [1, 4])
def test_invalid_tokens_that_name_many_pods_do_not_keep_another_waiting(addresses: int) -> None:
    """A tenant knows the uids of all pods of the namespace, and each has a limit of its own."""
    server = ApiServer()

    async def check() -> int:
        checker = Tokens(server, lambda uid: True)
        bogus = ((token(f"pod-{number}", "bad"), f"10.0.1.{number % addresses}") for number in range(2000))
        flood = [asyncio.create_task(outcome(checker, *each)) for each in bogus]
        await asyncio.sleep(0)
        assert await outcome(checker, token("pod-1"), "10.0.0.1") == "pod-1"
        before = len(server.reviews)
        await asyncio.gather(*flood)
        return before

    assert asyncio.run(check()) < 4 * tokens.REVIEWS_AT_ONCE


def test_a_bad_token_is_reviewed_once() -> None:
    server, bad = ApiServer(), token(signature="bad")
    assert outcomes(server, *[bad] * 20) == [401] * 20
    assert server.reviews == [bad]


def test_the_number_of_concurrent_reviews_is_bounded() -> None:
    server = ApiServer()
    many = [token(f"pod-{number}") for number in range(200)]
    assert len(set(outcomes(server, *many))) == 200
    assert server.most_at_once <= tokens.REVIEWS_AT_ONCE


def test_pods_get_503_while_the_api_server_is_away_and_use_up_no_reviews() -> None:
    server, good = ApiServer(), token()

    async def check() -> None:
        checker = Tokens(server, lambda uid: True)
        server.away = True
        assert [await outcome(checker, good) for _ in range(20)] == [503] * 20
        server.away = False
        assert await outcome(checker, good) == "pod-1"

    asyncio.run(check())


def test_a_token_that_was_good_is_refused_after_its_end() -> None:
    async def check() -> None:
        checker = Tokens(ApiServer(), lambda uid: True)
        ends = time.time() + 0.5
        given = token(exp=ends - tokens.CLOCKS_DIFFER)
        while (answer := await outcome(checker, given)) == "pod-1":
            assert time.time() < ends + 10
            await asyncio.sleep(0.02)
        assert answer == 401
        assert time.time() >= ends

    asyncio.run(check())


def test_claims_of_few_tokens_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MOST_CLAIMS", 3)
    decoded: list[str | None] = []

    claim_of = tokens.claim_of

    def counted(text: str) -> tokens.Claim:
        claim = claim_of(text)
        decoded.append(claim.uid)
        return claim

    async def check() -> None:
        checker = Tokens(ApiServer(), lambda uid: uid.startswith("pod-"))
        monkeypatch.setattr(tokens, "claim_of", counted)
        given = [token(f"pod-{number}") for number in range(5)]
        for each in [*given, token("other")]:
            await outcome(checker, each)
        decoded.clear()
        for each in reversed(given[1:]):
            await outcome(checker, each)

    asyncio.run(check())
    assert decoded == ["pod-1"]


def test_a_token_that_claims_another_pod_is_refused() -> None:
    class Lying(ApiServer):
        async def request(self, verb: str, path: str, *, body: Object | None = None, query: dict[str, str] | None = None) -> Object:
            answer = await super().request(verb, path, body=body)
            answer["status"]["user"]["extra"] = {"authentication.kubernetes.io/pod-uid": ["pod-2"]}
            return answer

    assert outcomes(Lying(), token("pod-1")) == [401]


def test_the_pod_of_a_token_is_read_from_its_claims() -> None:
    assert claim_of(token("pod-7", aud="muster", exp=1000)) == Claim("pod-7", 1000)


def test_only_users_that_rbac_allows_read_metrics() -> None:
    server = ApiServer()

    async def check() -> list[str | int]:
        readers = Readers(server)
        tokens_given = (token(sub="prometheus"), token(sub="prometheus"), token(sub="somebody"), token(signature="bad"), "junk")
        return [await outcome(readers, each) for each in tokens_given]

    assert asyncio.run(check()) == ["allowed", "allowed", 403, 403, 401]


def test_invalid_tokens_do_not_lock_out_a_reader_of_metrics() -> None:
    server, good, now = ApiServer(), token(sub="prometheus"), [0.0]

    async def check() -> None:
        readers = Readers(server, lambda: now[0])
        assert await outcome(readers, good) == "allowed"
        results = Counter([await outcome(readers, token(signature=f"bad{number}")) for number in range(500)])
        assert results[429] > 450
        now[0] += 61
        assert await outcome(readers, good) == "allowed", "it is reviewed again, first of all"

    asyncio.run(check())
    assert server.reviews.count(good) == 2


def test_invalid_tokens_of_one_address_do_not_keep_out_a_new_token_of_another() -> None:
    server, now = ApiServer(), [0.0]

    async def check() -> None:
        readers = Readers(server, lambda: now[0])
        results = Counter(await asyncio.gather(*(outcome(readers, token(signature=f"bad{number}")) for number in range(500))))
        assert results == {403: REVIEWS, 429: 500 - REVIEWS}
        assert await outcome(readers, token(sub="prometheus"), "10.0.0.2") == "allowed"
        assert await outcome(readers, token(sub="prometheus"), "10.0.0.1") == 429

    asyncio.run(check())
    assert len(server.reviews) == REVIEWS + 1
