"""Certificates of one attempt's Flink cluster: one for its internal connections, one for its REST interface.

Both are self-signed and trusted by their own store only, so that no other process can join the cluster or use its REST
interface. Made here, because `keytool` takes seconds.
"""

from __future__ import annotations

import datetime
import ipaddress
import secrets
from collections.abc import Mapping
from pathlib import Path

VALID_DAYS = 30
INTERNAL, REST = "internal", "rest"


def make_stores(folder: Path) -> dict[str, str]:
    """Write key and trust stores with a random password; return Flink's settings for mutual TLS.

    `rest.pem` holds certificate and key for Faultline's own REST client.
    """
    password = secrets.token_urlsafe(24)
    for name in (INTERNAL, REST):
        _make_store(folder, name, password.encode())
    return {**_settings(folder, INTERNAL, password), **_settings(folder, REST, password)}


def rest_certificate(folder: Path) -> Path:
    """Return the file with certificate and key of the REST interface."""
    return folder / f"{REST}.pem"


def _settings(folder: Path, name: str, password: str) -> dict[str, str]:
    prefix = f"security.ssl.{name}"
    authentication: Mapping[str, str] = {f"{prefix}.authentication-enabled": "true"} if name == REST else {}
    return {
        f"{prefix}.enabled": "true",
        f"{prefix}.keystore": str(folder / f"{name}.p12"),
        f"{prefix}.keystore-password": password,
        f"{prefix}.key-password": password,
        f"{prefix}.keystore-type": "PKCS12",
        f"{prefix}.truststore": str(folder / f"{name}-trust.p12"),
        f"{prefix}.truststore-password": password,
        f"{prefix}.truststore-type": "PKCS12",
        **authentication,
    }


def _make_store(folder: Path, name: str, password: bytes) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.serialization import pkcs12
    from cryptography.x509.oid import NameOID

    # Flink offers only cipher suites for RSA keys.
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"faultline-flink-{name}")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    encryption = serialization.BestAvailableEncryption(password)
    store = pkcs12.serialize_key_and_certificates(name.encode(), key, certificate, None, encryption)
    trusted = [pkcs12.PKCS12Certificate(certificate, name.encode())]
    pem = certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for file, content in (
        (folder / f"{name}.p12", store),
        (folder / f"{name}-trust.p12", pkcs12.serialize_java_truststore(trusted, encryption)),
        (folder / f"{name}.pem", pem),
    ):
        file.touch(mode=0o600)
        file.write_bytes(content)
