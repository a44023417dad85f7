"""What a webhook gets, and what its answers mean."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator

import pytest

from muster.kubernetes.errors import RefusedError, UnavailableError
from muster.kubernetes.objects import Object
from muster.operator.webhook import SecretError, Webhook, is_sent, key_of, message_of, webhook_of
from tests.support.hooked import Receiver, receiving

KEY = bytes(range(32))
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"


def event(reason: str) -> Object:
    subject = {"apiVersion": "muster.dev/v1beta1", "kind": "TrainingJob", "namespace": "team", "name": "digits", "uid": "u-1"}
    return {
        "metadata": {"name": "digits.0123", "namespace": "team"},
        "involvedObject": subject,
        "reason": reason,
        "message": "ValueError: token=hunter2",
        "firstTimestamp": "2026-11-29T20:00:00Z",
    }


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def test_a_message_has_the_job_and_what_happened_and_no_text_of_the_program() -> None:
    assert message_of(event("Failed")) == {
        "type": "job.failed",
        "timestamp": "2026-11-29T20:00:00Z",
        "data": {"kind": "TrainingJob", "namespace": "team", "name": "digits", "uid": "u-1"},
    }


@pytest.mark.parametrize(
    ("reason", "sent"), [("Succeeded", True), ("Invalid", True), ("Hang", True), ("Stalled", True), ("Resumed", False), ("Notice", False)]
)
def test_only_ends_hangs_and_long_waits_are_sent(reason: str, sent: bool) -> None:
    assert is_sent(event(reason)) is sent


def test_a_message_is_signed_with_its_identifier_and_time(receiver: Receiver) -> None:
    asyncio.run(Webhook(receiver.url, key_of(SECRET), now=lambda: 1764446400.9).post(event("Succeeded")))
    headers, _ = receiver.requests[0]
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == ("digits.0123", "1764446400")
    assert receiver.is_signed(0, KEY)
    assert not receiver.is_signed(0, KEY[::-1])
    assert [each["type"] for each in receiver.received] == ["job.succeeded"]


def test_a_message_without_a_secret_has_no_signature(receiver: Receiver) -> None:
    asyncio.run(Webhook(receiver.url, None).post(event("Succeeded")))
    assert "webhook-signature" not in receiver.requests[0][0]


@pytest.mark.parametrize(
    ("status", "error"),
    [(500, UnavailableError), (503, UnavailableError), (429, UnavailableError), (404, RefusedError), (302, RefusedError)],
)
def test_an_answer_says_whether_another_try_may_help(receiver: Receiver, status: int, error: type[Exception]) -> None:
    receiver.answers = [status]
    with pytest.raises(error, match=f"the webhook answered {status}"):
        asyncio.run(Webhook(receiver.url, None).post(event("Failed")))
    assert len(receiver.requests) == 1  # a redirect is not followed: it could lead into the cluster


def test_a_webhook_that_is_away_is_tried_again_and_its_url_is_not_logged() -> None:
    with receiving() as gone:
        url = gone.url
    with pytest.raises(UnavailableError, match="does not answer") as raised:
        asyncio.run(Webhook(f"{url}hook/very-secret", None).post(event("Failed")))
    assert "very-secret" not in str(raised.value)


@pytest.mark.parametrize(
    "secret", ["whsec_", "whsec_%%%", "short", base64.b64encode(bytes(8)).decode(), base64.b64encode(bytes(65)).decode()]
)
def test_a_secret_of_another_form_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(SecretError, match=r"MUSTER_WEBHOOK_SECRET is no secret of a webhook; write whsec_ and 24 to 64") as raised:
        webhook_of("https://example.com", {"MUSTER_WEBHOOK_SECRET": secret})
    assert secret == "whsec_" or secret not in str(raised.value)


def test_no_url_means_no_webhook() -> None:
    assert webhook_of("", {"MUSTER_WEBHOOK_SECRET": SECRET}) is None
