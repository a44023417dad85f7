"""Notifies a URL of the administrator when a job ends, hangs or waits for long. The requests follow https://www.standardwebhooks.com.

A message has only what Muster itself decides: which job, and what happened. The texts of programs stay in the cluster, because they may
have secrets.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping

import aiohttp

from muster.kubernetes.errors import RefusedError, UnavailableError
from muster.kubernetes.objects import Object

KINDS = {"Succeeded": "job.succeeded", "Failed": "job.failed", "Invalid": "job.invalid", "Hang": "job.hung", "Stalled": "job.stalled"}
"""The Events of jobs that are sent: reason and type of the message."""
SECRET_VARIABLE = "MUSTER_WEBHOOK_SECRET"
TIMEOUT_SECONDS = 10.0
_PREFIX = "whsec_"
_ASKS_FOR_ANOTHER_TRY = (408, 425, 429)


class SecretError(ValueError):
    """The secret is none of Standard Webhooks. The message does not contain it."""


def key_of(secret: str) -> bytes:
    """The key of a secret such as whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw: base64 of 24 to 64 bytes. Raises SecretError."""
    try:
        key = base64.b64decode(secret.strip().removeprefix(_PREFIX), validate=True)
    except ValueError:
        key = b""
    if not 24 <= len(key) <= 64:
        raise SecretError(f"{SECRET_VARIABLE} is no secret of a webhook; write {_PREFIX} and 24 to 64 random bytes in base64")
    return key


class Webhook:
    """Sends messages to `url`. With a `key`, each has a signature. `now` returns Unix seconds."""

    def __init__(self, url: str, key: bytes | None, *, now: Callable[[], float] = time.time) -> None:
        self._url, self._key, self._now = url, key, now

    async def post(self, event: Object) -> Object:
        """Sends the message of a Kubernetes Event. Raises UnavailableError if another try may help, and RefusedError if not.

        The identifier is the name of the Event, which is the same if another leader sends the message again."""
        body = json.dumps(message_of(event)).encode()
        headers = self._headers(event["metadata"]["name"], body)
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, trust_env=True) as session,
                session.post(self._url, data=body, headers=headers, allow_redirects=False) as answer,
            ):
                status = answer.status
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise UnavailableError(f"the webhook does not answer ({type(error).__name__})") from None
        if status >= 500 or status in _ASKS_FOR_ANOTHER_TRY:
            raise UnavailableError(f"the webhook answered {status}")
        if not 200 <= status < 300:
            raise RefusedError(f"the webhook answered {status}")
        return {}

    def _headers(self, identifier: str, body: bytes) -> dict[str, str]:
        """A signature covers the time too, so that nobody can send an old message again."""
        at = str(int(self._now()))
        headers = {"Content-Type": "application/json", "webhook-id": identifier, "webhook-timestamp": at}
        if self._key is not None:
            signed = hmac.digest(self._key, b".".join((identifier.encode(), at.encode(), body)), hashlib.sha256)
            headers["webhook-signature"] = f"v1,{base64.b64encode(signed).decode()}"
        return headers


def webhook_of(url: str, environment: Mapping[str, str]) -> Webhook | None:
    """The webhook of an installation, whose secret is in MUSTER_WEBHOOK_SECRET. None without a URL. Raises SecretError."""
    secret = environment.get(SECRET_VARIABLE)
    return Webhook(url, key_of(secret) if secret else None) if url else None


def message_of(event: Object) -> Object:
    """The message of an Event whose reason is one of KINDS."""
    job = event["involvedObject"]
    return {
        "type": KINDS[event["reason"]],
        "timestamp": event["firstTimestamp"],
        "data": {"kind": job["kind"], "namespace": job["namespace"], "name": job["name"], "uid": job["uid"]},
    }


def is_sent(event: Object) -> bool:
    """Whether the webhook gets a message of this Event."""
    return event["reason"] in KINDS
