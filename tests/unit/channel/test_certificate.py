"""The certificate of the coordination channel: it is valid for its host, all operators share it, and invalid data is replaced."""

from __future__ import annotations

import asyncio
import copy
import ssl
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from muster.channel.certificate import LEAST_VALIDITY, LIFE, Certificate, load_or_create, new_certificate
from muster.kubernetes.errors import NotFoundError

HOST = "muster-coordination.muster-system.svc"
NOW = datetime.now(UTC).replace(microsecond=0)


class Secrets:
    """One Secret, as the chart makes it."""

    def __init__(self, data: dict[str, str] | None = None) -> None:
        self.secret: dict[str, Any] | None = {"metadata": {"resourceVersion": "1"}} | ({"data": data} if data else {})
        self.writes = 0

    async def request(self, verb: str, path: str, *, body: Any = None, query: Any = None) -> Any:
        assert path == "/api/v1/namespaces/muster-system/secrets/muster-coordination"
        if self.secret is None:
            raise NotFoundError(path)
        if verb == "PUT":
            self.writes += 1
            self.secret = copy.deepcopy(body)
        return copy.deepcopy(self.secret)


def load(secrets: Secrets, now: datetime = NOW) -> Certificate:
    return asyncio.run(load_or_create(secrets, "muster-system", secret="muster-coordination", host=HOST, now=now))


def shake_hands(certificate: Certificate, authority: str, host: str) -> None:
    """Does a whole handshake with the strict checks of newer Pythons. Raises ssl.SSLError if the client does not trust the certificate."""
    trusting = ssl.create_default_context(cadata=authority)
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(down, up, server_hostname=host)
    server = certificate.context().wrap_bio(up, down, server_side=True)
    for side in (client, server, client, server):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    assert client.version() == server.version() == "TLSv1.3"


def test_supervisors_trust_the_certificate_only_for_the_channel() -> None:
    certificate = new_certificate(HOST, NOW)
    shake_hands(certificate, certificate.certificate, HOST)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(certificate, certificate.certificate, "kubernetes.default.svc")
    with pytest.raises(ssl.SSLCertVerificationError, match="self-signed"):
        shake_hands(certificate, new_certificate(HOST, NOW).certificate, HOST)


def test_operators_share_one_certificate_until_it_is_about_to_expire() -> None:
    secrets = Secrets()
    first = load(secrets)
    assert (load(secrets), secrets.writes) == (first, 1)
    assert load(secrets, NOW + LIFE - LEAST_VALIDITY - timedelta(days=1)) == first
    assert load(secrets, NOW + LIFE - LEAST_VALIDITY + timedelta(days=1)) != first


@pytest.mark.parametrize("text", ["", "bm9uc2Vuc2U=", "not base64", "/w=="])
def test_invalid_data_in_the_secret_is_replaced(text: str) -> None:
    secrets = Secrets({"tls.crt": text, "tls.key": text})
    assert load(secrets).serves(HOST, NOW)
    assert secrets.writes == 1


def test_a_certificate_with_another_key_or_host_is_not_used() -> None:
    one, other = new_certificate(HOST, NOW), new_certificate(HOST, NOW)
    assert not Certificate(one.certificate, other.key).serves(HOST, NOW)
    assert not one.serves("elsewhere.svc", NOW)
