"""Who holds a token, and how few reviews bogus ones cause."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import Counter
from typing import Any

import pytest

from muster.control.cluster import Object
from muster.control.coordination import RefusedReportError
from muster.control.errors import UnavailableError
from muster.kubernetes import tokens
from muster.kubernetes.tokens import REVIEWS, Readers, Tokens, claimed_pod


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
        held = body["spec"]["token"]
        if not held.endswith(".good"):
            return {"status": {"authenticated": False}}
        claims = json.loads(base64.urlsafe_b64decode(held.split(".")[1] + "=="))
        extra = {"authentication.kubernetes.io/pod-uid": [claims["kubernetes.io"]["pod"]["uid"]]}
        user = {"username": claims.get("sub", "system:serviceaccount:default:default"), "extra": extra}
        return {"status": {"authenticated": True, "audiences": claims["aud"], "user": user}}


async def outcome(known: Tokens | Readers, held: str) -> str | int:
    try:
        return await (known.identify(held) if isinstance(known, Tokens) else known.check(held)) or "allowed"
    except RefusedReportError as error:
        return error.status


def outcomes(server: ApiServer, *held: str) -> list[str | int]:
    async def all_of() -> list[str | int]:
        known = Tokens(server, lambda uid: uid.startswith("pod-"))
        return list(await asyncio.gather(*(outcome(known, each) for each in held)))

    return asyncio.run(all_of())


def test_a_good_token_is_reviewed_once_however_often_it_comes() -> None:
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


@pytest.mark.parametrize("held", CANNOT_BE_GOOD.values(), ids=CANNOT_BE_GOOD)
def test_a_token_that_cannot_be_good_is_never_reviewed(held: str) -> None:
    server = ApiServer()
    assert outcomes(server, held) == [401]
    assert server.reviews == []


def test_a_token_of_a_pod_that_is_no_replica_is_never_reviewed() -> None:
    server = ApiServer()
    assert outcomes(server, token("other")) == [404]
    assert server.reviews == []


def test_bogus_tokens_cause_few_reviews_and_evict_nobody() -> None:
    server, good = ApiServer(), token("pod-2")

    async def check() -> Counter[str | int]:
        known = Tokens(server, lambda uid: uid.startswith("pod-"))
        assert await outcome(known, good) == "pod-2"
        bogus = [token("pod-1", f"bad{number}") for number in range(1500)]
        bogus += [token(f"none-{number}", "bad") for number in range(1500)]
        found = Counter(await asyncio.gather(*(outcome(known, each) for each in bogus)))
        assert await outcome(known, good) == "pod-2"
        assert await outcome(known, token("pod-3")) == "pod-3", "others are reviewed meanwhile"
        return found

    found = asyncio.run(check())
    assert set(found) == {401, 404, 429}
    assert server.reviews.count(good) == 1
    assert len(server.reviews) <= REVIEWS + 2 + 10, "five at once, and one more for every two seconds that this took"


def test_a_bad_token_that_comes_again_is_not_reviewed_again() -> None:
    server, bad = ApiServer(), token(signature="bad")
    assert outcomes(server, *[bad] * 20) == [401] * 20
    assert server.reviews == [bad]


def test_reviews_at_once_are_bounded() -> None:
    server = ApiServer()
    many = [token(f"pod-{number}") for number in range(200)]
    assert len(set(outcomes(server, *many))) == 200
    assert server.most_at_once <= tokens.REVIEWS_AT_ONCE


def test_while_the_api_server_is_away_a_pod_is_asked_to_come_again_and_loses_no_review_by_it() -> None:
    server, good = ApiServer(), token()

    async def check() -> None:
        known = Tokens(server, lambda uid: True)
        server.away = True
        assert [await outcome(known, good) for _ in range(20)] == [503] * 20
        server.away = False
        assert await outcome(known, good) == "pod-1"

    asyncio.run(check())


def test_a_token_of_one_pod_that_claims_another_is_refused() -> None:
    class Lying(ApiServer):
        async def request(self, verb: str, path: str, *, body: Object | None = None, query: dict[str, str] | None = None) -> Object:
            answer = await super().request(verb, path, body=body)
            answer["status"]["user"]["extra"] = {"authentication.kubernetes.io/pod-uid": ["pod-2"]}
            return answer

    assert outcomes(Lying(), token("pod-1")) == [401]


def test_the_claim_of_a_pod_is_read_without_a_doubt_about_its_form() -> None:
    assert claimed_pod(token("pod-7", aud="muster"), time.time()) == "pod-7"
    assert claimed_pod(token("pod-7", exp=1000), 1030) == "pod-7", "clocks differ"


def test_metrics_are_for_users_whom_rbac_allows() -> None:
    server = ApiServer()

    async def check() -> list[str | int]:
        readers = Readers(server)
        held = (token(sub="prometheus"), token(sub="prometheus"), token(sub="somebody"), token(signature="bad"), "junk")
        return [await outcome(readers, each) for each in held]

    assert asyncio.run(check()) == ["allowed", "allowed", 403, 403, 401]


def test_bogus_tokens_do_not_keep_a_reader_of_metrics_out() -> None:
    server, good, now = ApiServer(), token(sub="prometheus"), [0.0]

    async def check() -> None:
        readers = Readers(server, lambda: now[0])
        assert await outcome(readers, good) == "allowed"
        found = Counter([await outcome(readers, token(signature=f"bad{number}")) for number in range(500)])
        assert found[429] > 450
        now[0] += 61
        assert await outcome(readers, good) == "allowed", "it is reviewed again, first of all"

    asyncio.run(check())
    assert server.reviews.count(good) == 2
