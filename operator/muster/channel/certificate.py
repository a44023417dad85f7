"""The self-signed certificate of the coordination channel, which the operator keeps in a Secret.

Pods get the certificate when they are created, so every leader must use the same one. The chart creates the Secret empty, so the operator
needs no right to create Secrets or to read others.
"""

from __future__ import annotations

import base64
import binascii
import ssl
import tempfile
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from muster.kubernetes.api_paths import collection, member
from muster.kubernetes.api_server import Requests

LIFE = timedelta(days=3650)
LEAST_VALIDITY = timedelta(days=365)
"""The least validity that is left at a start. Below it, the operator creates a new certificate. Pods with the old one cannot report until
they are replaced."""
_CLOCKS_DIFFER = timedelta(hours=1)


@dataclass(frozen=True)
class Certificate:
    """A certificate and its private key, as PEM."""

    certificate: str
    key: str

    def context(self) -> ssl.SSLContext:
        """The TLS context of a server."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as both:  # OpenSSL reads only files; only this user may read this one
            both.write(self.key + self.certificate)
            both.flush()
            context.load_cert_chain(both.name)
        return context

    def serves(self, host: str, now: datetime) -> bool:
        """Whether the certificate is valid for this host, and for at least LEAST_VALIDITY."""
        try:
            parsed = x509.load_pem_x509_certificate(self.certificate.encode())
            names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
            self.context()
        except (ValueError, x509.ExtensionNotFound, OSError):  # another client has written other data
            return False
        return host in names and parsed.not_valid_after_utc - now > LEAST_VALIDITY


def new_certificate(host: str, now: datetime) -> Certificate:
    """A new self-signed certificate for this host."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "muster coordination")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "crl_sign", "encipher_only", "decipher_only")
    usage = x509.KeyUsage(digital_signature=True, key_cert_sign=True, **dict.fromkeys(others, False))
    builder = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + LIFE)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Certificate(builder.sign(key, hashes.SHA256()).public_bytes(pem).decode(), private.decode())


async def load_or_create(requests: Requests, namespace: str, *, secret: str, host: str, now: datetime) -> Certificate:
    """The certificate in the Secret. If that is not valid, creates a new one and writes it to the Secret.

    Raises ClusterError, for example if the Secret is missing, and ConflictError if another client has just written it.
    """
    path = member(collection("v1", "secrets", namespace=namespace), secret)
    stored = await requests.request("GET", path)
    data = stored.get("data") or {}
    certificate = Certificate(_decoded(data.get("tls.crt", "")), _decoded(data.get("tls.key", "")))
    if certificate.serves(host, now):
        return certificate
    new = new_certificate(host, now)
    encoded = {"tls.crt": new.certificate, "tls.key": new.key}
    stored["data"] = {**data, **{name: base64.b64encode(text.encode()).decode() for name, text in encoded.items()}}
    await requests.request("PUT", path, body=stored)
    return new


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
