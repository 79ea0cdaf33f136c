"""librdkafka's settings as Kafka's clients in Java want them, which is how Spark reads and writes.

Pure: contents in, contents out. Options hold no secret, since Spark writes options into its plans: passwords go to a
JAAS file, a client's key to a PEM file, each for its owner only.
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
# Called alike, and meaning the same.
SHARED_KEYS = frozenset({
    "client.id", "metadata.max.age.ms", "reconnect.backoff.ms", "reconnect.backoff.max.ms", "connections.max.idle.ms",
    "socket.connection.setup.timeout.ms", "client.dns.lookup",
})  # fmt: skip
# Of librdkafka alone; none of them says who may come, or how.
LIBRDKAFKA_KEYS = frozenset({
    "log_level", "debug", "broker.address.family", "socket.keepalive.enable", "socket.nagle.disable",
    "socket.timeout.ms", "statistics.interval.ms", "topic.metadata.refresh.interval.ms", "broker.address.ttl",
})  # fmt: skip
# Its own words for the same things.
ALIASES = {"sasl.mechanisms": "sasl.mechanism"}
TRANSLATED_KEYS = frozenset({
    "security.protocol", "sasl.mechanism", "sasl.username", "sasl.password", "ssl.ca.pem", "ssl.certificate.pem",
    "ssl.key.pem", "ssl.key.password", "ssl.endpoint.identification.algorithm", "enable.ssl.certificate.verification",
})  # fmt: skip
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True)
class JavaKafka:
    """`options`: names and values, `{folder}` standing for where `files` (content by name) will lie. `jaas`: the text
    of a JAAS file; None where nobody logs in with a password."""

    options: Mapping[str, str]
    jaas: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)


def translate(given: Mapping[str, str]) -> JavaKafka:
    """`given`: librdkafka's settings but for the address, files of certificates as their content (`ssl.ca.pem`).

    Raises ConfigError, beginning with the key, for what has no translation.
    """
    known = {ALIASES.get(key, key): value for key, value in given.items()}
    for key in sorted(known.keys() - TRANSLATED_KEYS - SHARED_KEYS - LIBRDKAFKA_KEYS):
        near = nearest_name(key, TRANSLATED_KEYS | SHARED_KEYS | ALIASES.keys(), cutoff=0.85)
        remedy = f"did you mean {near}?" if near else "leave it out"
        raise ConfigError(f"{key}: Kafka's client in Spark has nothing like it; {remedy}")
    protocol = known.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise ConfigError(f"security.protocol: {protocol} is not known; use {', '.join(PROTOCOLS)}")
    options = {key: known[key] for key in sorted(SHARED_KEYS & known.keys())}
    files: dict[str, str] = {}
    jaas = None
    if protocol != "PLAINTEXT":
        options["security.protocol"] = protocol
    if protocol.startswith("SASL"):
        mechanism, jaas = _password_login(known)
        options["sasl.mechanism"] = mechanism
    if protocol.endswith("SSL"):
        more, files = _certificates(known)
        options |= more
    return JavaKafka(options, jaas, files)


def _password_login(known: Mapping[str, str]) -> tuple[str, str]:
    """Mechanism and JAAS file."""
    mechanism = known.get("sasl.mechanism", "")
    if mechanism not in LOGIN_MODULES:
        raise ConfigError(
            f"sasl.mechanism: {mechanism or 'nothing'} cannot be used with Spark here; use {', '.join(LOGIN_MODULES)}"
        )
    for key in ("sasl.username", "sasl.password"):
        if not known.get(key):
            raise ConfigError(f"{key}: missing, and {mechanism} needs it; give it")
    user, password = (quote_jaas(known[key], key) for key in ("sasl.username", "sasl.password"))
    return (
        mechanism,
        f"KafkaClient {{\n  {LOGIN_MODULES[mechanism]} required username={user} password={password};\n}};\n",
    )


def quote_jaas(text: str, key: str) -> str:
    """A value of a JAAS file. Raises ConfigError, naming the `key`, for what Java would read as something else."""
    if not text.isprintable() or "${" in text:
        raise ConfigError(f"{key}: holds a line break or ${{, which a JAAS file cannot; choose another")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _certificates(known: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Options, and the files that they name."""
    if known.get("enable.ssl.certificate.verification", "true").lower() != "true":
        raise ConfigError(
            "enable.ssl.certificate.verification: Spark always looks at the broker's certificate; give its ssl.ca.pem"
        )
    options, files = {}, {}
    identified = known.get("ssl.endpoint.identification.algorithm")
    if identified is not None:
        options["ssl.endpoint.identification.algorithm"] = "" if identified.lower() == "none" else identified
    if "ssl.ca.pem" in known:
        files[CA] = _certificate_blocks(known["ssl.ca.pem"], "ssl.ca.pem")
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": f"{{folder}}/{CA}"}
    one, other = "ssl.certificate.pem" in known, "ssl.key.pem" in known
    if one != other:
        raise ConfigError(f"ssl.{'key' if one else 'certificate'}.pem: missing beside the other; give both, or neither")
    if one:
        key = decrypt_key(known["ssl.key.pem"], known.get("ssl.key.password"))
        files[KEYSTORE] = key + _certificate_blocks(known["ssl.certificate.pem"], "ssl.certificate.pem")
        options |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": f"{{folder}}/{KEYSTORE}"}
    return options, files


def _certificate_blocks(text: str, key: str) -> str:
    """The certificates in a PEM file, without what stands between them."""
    found = [match.group() for match in _CERTIFICATE.finditer(text)]
    if not found:
        raise ConfigError(
            f"{key}: holds no CERTIFICATE in PEM form; give one that begins with -----BEGIN CERTIFICATE-----"
        )
    return "".join(f"{one}\n" for one in found)


def decrypt_key(text: str, password: str | None) -> str:
    """A private key as Kafka reads it, which is PKCS #8 without a password: Spark would be told that in its options."""
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )

    try:
        key = load_pem_private_key(text.encode(), None if not password else password.encode())
    except TypeError:  # one without a password that was given one, or the other way round
        which = "has no password, and one is given" if password else "has a password, and none is given"
        raise ConfigError(f"ssl.key.password: the key {which}; mend it") from None
    except ValueError:
        raise ConfigError("ssl.key.pem: cannot be read; give a key in PEM form, and its ssl.key.password") from None
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
