"""Translation of librdkafka's settings to those of Kafka's Java clients, which Spark uses.

Pure functions. Options contain no secret, since Spark writes options into its plans: passwords go to a JAAS file and a
client key to a PEM file, each readable by its owner only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from faultline.system.errors import ConfigError
from faultline.system.text import nearest_name

CA, KEYSTORE = "ca.pem", "keystore.pem"
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
# Keys with the same name and meaning.
SHARED_KEYS = frozenset({
    "client.id", "metadata.max.age.ms", "reconnect.backoff.ms", "reconnect.backoff.max.ms", "connections.max.idle.ms",
    "socket.connection.setup.timeout.ms", "client.dns.lookup",
})  # fmt: skip
# Keys of librdkafka only, without relevance to authentication.
LIBRDKAFKA_KEYS = frozenset({
    "log_level", "debug", "broker.address.family", "socket.keepalive.enable", "socket.nagle.disable",
    "socket.timeout.ms", "statistics.interval.ms", "topic.metadata.refresh.interval.ms", "broker.address.ttl",
})  # fmt: skip
# librdkafka's names of shared keys.
ALIASES = {"sasl.mechanisms": "sasl.mechanism"}
TRANSLATED_KEYS = frozenset({
    "security.protocol", "sasl.mechanism", "sasl.username", "sasl.password", "ssl.ca.pem", "ssl.certificate.pem",
    "ssl.key.pem", "ssl.key.password", "ssl.endpoint.identification.algorithm", "enable.ssl.certificate.verification",
})  # fmt: skip
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True)
class JavaKafka:
    """Settings of a Java client.

    `options`: names and values, with `{folder}` for the folder of `files` (content by name). `jaas`: content of the
    JAAS file; None without a password login.
    """

    options: Mapping[str, str]
    jaas: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)


def translate(given: Mapping[str, str]) -> JavaKafka:
    """Translate librdkafka's settings without the address, with certificate files as content (`ssl.ca.pem`).

    Raises ConfigError, starting with the key, if there is no translation.
    """
    known = {ALIASES.get(key, key): value for key, value in given.items()}
    for key in sorted(known.keys() - TRANSLATED_KEYS - SHARED_KEYS - LIBRDKAFKA_KEYS):
        near = nearest_name(key, TRANSLATED_KEYS | SHARED_KEYS | ALIASES.keys(), cutoff=0.85)
        remedy = f"did you mean {near}?" if near else "fix: remove it"
        raise ConfigError(f"{key}: not supported by Kafka's Java client; {remedy}")
    protocol = known.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise ConfigError(f"security.protocol: got {protocol}; expected one of {', '.join(PROTOCOLS)}")
    options = {key: known[key] for key in sorted(SHARED_KEYS & known.keys())}
    files: dict[str, str] = {}
    jaas = None
    if protocol != "PLAINTEXT":
        options["security.protocol"] = protocol
    if protocol.startswith("SASL"):
        mechanism, jaas = _password_login(known)
        options["sasl.mechanism"] = mechanism
    if protocol.endswith("SSL"):
        tls_options, files = _certificates(known)
        options |= tls_options
    return JavaKafka(options, jaas, files)


def _password_login(known: Mapping[str, str]) -> tuple[str, str]:
    """Return the mechanism and the JAAS file's content."""
    mechanism = known.get("sasl.mechanism", "")
    if mechanism not in LOGIN_MODULES:
        raise ConfigError(f"sasl.mechanism: got {mechanism or 'nothing'}; expected one of {', '.join(LOGIN_MODULES)}")
    for key in ("sasl.username", "sasl.password"):
        if not known.get(key):
            raise ConfigError(f"{key}: missing; required by {mechanism}")
    user, password = (quote_jaas(known[key], key) for key in ("sasl.username", "sasl.password"))
    return (
        mechanism,
        f"KafkaClient {{\n  {LOGIN_MODULES[mechanism]} required username={user} password={password};\n}};\n",
    )


def quote_jaas(text: str, key: str) -> str:
    """Return a quoted JAAS value. Raises ConfigError, naming the `key`, if Java would misread it."""
    if not text.isprintable() or "${" in text:
        raise ConfigError(f"{key}: contains a line break or ${{, not allowed in a JAAS file; fix: choose another")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _certificates(known: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the TLS options and the files that they name."""
    if known.get("enable.ssl.certificate.verification", "true").lower() != "true":
        raise ConfigError("enable.ssl.certificate.verification: expected true; fix: set ssl.ca.pem")
    options, files = {}, {}
    algorithm = known.get("ssl.endpoint.identification.algorithm")
    if algorithm is not None:
        options["ssl.endpoint.identification.algorithm"] = "" if algorithm.lower() == "none" else algorithm
    if "ssl.ca.pem" in known:
        files[CA] = _certificate_blocks(known["ssl.ca.pem"], "ssl.ca.pem")
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": f"{{folder}}/{CA}"}
    has_certificate, has_key = "ssl.certificate.pem" in known, "ssl.key.pem" in known
    if has_certificate != has_key:
        raise ConfigError(
            f"ssl.{'key' if has_certificate else 'certificate'}.pem: missing; expected both certificate and key, or "
            "neither"
        )
    if has_certificate:
        key = decrypt_key(known["ssl.key.pem"], known.get("ssl.key.password"))
        files[KEYSTORE] = key + _certificate_blocks(known["ssl.certificate.pem"], "ssl.certificate.pem")
        options |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": f"{{folder}}/{KEYSTORE}"}
    return options, files


def _certificate_blocks(text: str, key: str) -> str:
    """Return the certificates of a PEM file, without other text."""
    found = [match.group() for match in _CERTIFICATE.finditer(text)]
    if not found:
        raise ConfigError(f"{key}: contains no certificate; expected PEM (-----BEGIN CERTIFICATE-----)")
    return "".join(f"{one}\n" for one in found)


def decrypt_key(text: str, password: str | None) -> str:
    """Return a private key as unencrypted PKCS #8: Spark's options would expose a key password."""
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )

    try:
        key = load_pem_private_key(text.encode(), None if not password else password.encode())
    except TypeError:  # a password for an unencrypted key, or none for an encrypted one
        problem = "is not encrypted, but a password is set" if password else "is encrypted, but no password is set"
        raise ConfigError(f"ssl.key.password: the key {problem}") from None
    except ValueError:
        raise ConfigError("ssl.key.pem: unreadable; expected a PEM key, and its ssl.key.password") from None
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
