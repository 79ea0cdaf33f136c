"""A certificate authority for tests."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, in PEM form."""

    certificate: str
    key: str


class Authority:
    """A certificate authority for addresses of this machine."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "faultline test authority")])
        now = datetime.now(UTC)
        made = (
            _builder(self._name, self._name, self._key, now - timedelta(days=1), now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = made.public_bytes(Encoding.PEM).decode()

    def signed(self, host: str = HOST, *, expired: bool = False, password: str | None = None) -> Pair:
        """Return a certificate for an address, valid until tomorrow, or until yesterday if `expired`."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        end = datetime.now(UTC) + timedelta(days=-1 if expired else 1)
        made = (
            _builder(name, self._name, key, end - timedelta(days=10), end)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host)), x509.DNSName("localhost")]),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        encryption: KeySerializationEncryption = NoEncryption()
        if password is not None:
            encryption = BestAvailableEncryption(password.encode())
        text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()
        return Pair(made.public_bytes(Encoding.PEM).decode(), text)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, begin: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )
