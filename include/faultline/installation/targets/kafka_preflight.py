"""Preflight checks of a target's broker, with a temporary topic."""

from __future__ import annotations

import importlib
import re
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from faultline.installation.targets.java_kafka import KEYSTORE
from faultline.installation.targets.machines import PREFIX, PROBE, ClockOffsetBound, clock_bound, combined_clock_bound
from faultline.system.errors import ConfigError, FaultlineError, InfrastructureError
from faultline.system.kafka import kafka_client
from faultline.system.text import one_line, pluralize
from faultline.system.waiting import wait_until

# Topic and consumer group of the target lock.
LOCK_TOPIC = f"{PREFIX}turn"
CONNECT_S, LOGIN_S, REQUEST_S, PROPAGATION_S = 5.0, 15.0, 15.0, 10.0
# Records written to bound the broker's clock offset; the record with the fastest round trip gives the tightest bound.
PROBE_RECORDS = 20
# TLS alerts about a missing or refused client certificate.
_CLIENT_CERTIFICATE_ALERT = re.compile(
    r"alert.(.*certificate|unknown.ca|decrypt.error|handshake.failure)", re.IGNORECASE
)
# librdkafka interprets the first four bytes as a length.
_NOT_A_BROKER = re.compile(r"invalid response size", re.IGNORECASE)


@dataclass(frozen=True)
class TargetBroker:
    """Broker of a target. `connection`: the id of its Connection, for error messages."""

    bootstrap: str
    logins: Path
    connection: str

    def settings(self, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return kafka_client(self.bootstrap, {"log_level": 0, **(more or {})}, secrets=self.logins)

    def refuse(self, why: str) -> ConfigError:
        return ConfigError(f"Connection {self.connection}: {why}")


def check_connection(broker: TargetBroker) -> str:
    """Connect to each server. Raises InfrastructureError without an answer, ConfigError for refused certificates."""
    login, trouble, answered = broker.settings(), "", []
    tls = str(login.get("security.protocol", "")).upper().endswith("SSL")
    context = _context(broker, login) if tls else None
    for server in (one.strip() for one in broker.bootstrap.split(",")):
        host, _, port = server.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S) as plain:
                if context is not None:
                    _tls_handshake(broker, plain, host.strip("[]"), context)
            answered.append(server)
        except OSError as error:
            trouble = f"{server} failed: {error.strerror or one_line(error)}"
    if not answered:
        raise InfrastructureError(
            f"Connection {broker.connection}: extra: bootstrap.servers: {trouble}; fix: start it, or correct it"
        )
    return f"{', '.join(answered)} reachable"


def _tls_handshake(broker: TargetBroker, plain: socket.socket, host: str, context: ssl.SSLContext) -> None:
    """Perform a TLS handshake; OpenSSL reports the reasons that librdkafka omits."""
    try:
        with context.wrap_socket(plain, server_hostname=host):
            pass
    except ssl.SSLCertVerificationError as error:
        raise broker.refuse(
            f"extra: ssl.ca.pem: certificate of {host} refused ({error.verify_message}); fix: renew it, or set the "
            "authority that signed it"
        ) from None
    except ssl.SSLError as error:
        why = error.reason or str(error)
        if _CLIENT_CERTIFICATE_ALERT.search(why):
            raise _refused_as_client(broker, host, why) from None
        raise broker.refuse(f"extra: security.protocol: TLS handshake with {host} failed: {why}") from None


def _refused_as_client(broker: TargetBroker, host: str, why: str) -> ConfigError:
    return broker.refuse(
        f"extra: ssl.certificate.pem: missing, or refused by {host} ({why}); expected one of a trusted authority, "
        "and its ssl.key.pem"
    )


def _context(broker: TargetBroker, login: Mapping[str, str]) -> ssl.SSLContext:
    """Return the TLS context. Raises ConfigError for unusable certificates of the Connection."""
    try:
        context = ssl.create_default_context(cadata=login.get("ssl.ca.pem"))
    except (ssl.SSLError, ValueError) as error:
        raise broker.refuse(f"extra: ssl.ca.pem: unreadable ({one_line(error)}); expected complete PEM") from None
    context.check_hostname = login.get("ssl.endpoint.identification.algorithm", "https") != "none"
    if "ssl.certificate.pem" in login:
        check_client_certificate(broker, login["ssl.certificate.pem"])
        try:
            # The combined file that Spark reads too.
            context.load_cert_chain(broker.logins / KEYSTORE)
        except ssl.SSLError as error:
            raise broker.refuse(
                f"extra: ssl.key.pem: does not match ssl.certificate.pem ({error.reason or error}); expected one pair"
            ) from None
    return context


def check_client_certificate(broker: TargetBroker, text: str) -> None:
    """Raise ConfigError for a client certificate that is unreadable, expired or not yet valid."""
    from cryptography import x509

    try:
        chain = x509.load_pem_x509_certificates(text.encode())
    except ValueError:
        raise broker.refuse("extra: ssl.certificate.pem: unreadable; expected complete PEM") from None
    now = datetime.now(UTC)
    for one in chain:
        if not one.not_valid_before_utc <= now <= one.not_valid_after_utc:
            raise broker.refuse(
                f"extra: ssl.certificate.pem: valid from {one.not_valid_before_utc:%Y-%m-%d} to "
                f"{one.not_valid_after_utc:%Y-%m-%d}; fix: renew it"
            )


def check_login(broker: TargetBroker) -> str:
    """Log in. Raises ConfigError for refused credentials or settings, InfrastructureError for any other failure."""
    from confluent_kafka import KafkaError, KafkaException, Producer

    errors: list[Any] = []
    try:
        client = Producer(broker.settings({"error_cb": errors.append}))
    except KafkaException as error:
        raise broker.refuse(f"extra: {one_line(error.args[0].str())}") from None
    deadline = time.monotonic() + LOGIN_S
    while True:
        try:
            brokers = client.list_topics(timeout=1.0).brokers
            return f"login accepted, {pluralize(len(brokers), 'broker')}"
        except KafkaException as error:
            client.poll(0)
            last = error.args[0]
        for one in errors:
            if one.code() == KafkaError._AUTHENTICATION:
                raise broker.refuse(
                    f"extra: sasl.password: the login is refused ({_error_text(one.str())}); fix: correct it"
                )
            # TLS 1.3 alerts follow the handshake; librdkafka reports them as receive failures.
            if _CLIENT_CERTIFICATE_ALERT.search(one.str()):
                raise _refused_as_client(broker, "the broker", _error_text(one.str()))
            if one.code() == KafkaError._SSL:
                raise broker.refuse(f"extra: ssl.ca.pem: {_error_text(one.str())}; fix: correct the certificates")
        if time.monotonic() > deadline:
            last_error = next((one.str() for one in reversed(errors)), last.str())
            if _NOT_A_BROKER.search(last_error):
                raise broker.refuse(
                    "extra: bootstrap.servers: got a server without Kafka's protocol; fix: correct the port, or "
                    "security.protocol"
                )
            raise InfrastructureError(
                f"Connection {broker.connection}: broker: no answer ({_error_text(last_error)}); "
                "fix: see the broker's log"
            )


def _error_text(text: str) -> str:
    """Return librdkafka's error without address and duration."""
    return one_line(text).split("]: ")[-1].split(": ", 1)[-1].split(" (after")[0]


def check_rights(broker: TargetBroker) -> ClockOffsetBound:
    """Create, describe, fill, read and delete a topic with one partition per server; return the clock bound.

    Raises ConfigError naming a missing right, or InfrastructureError.
    """
    admin: Any = importlib.import_module("confluent_kafka.admin")
    client, topic = admin.AdminClient(broker.settings()), f"{PROBE}{secrets.token_hex(6)}"
    with _translate_refusal(broker, "list", topic):
        servers = len(client.list_topics(timeout=REQUEST_S).brokers)
    settings = {"message.timestamp.type": "LogAppendTime"}
    _create(broker, client, admin.NewTopic(topic, num_partitions=servers, replication_factor=-1, config=settings))
    try:
        with _translate_refusal(broker, "describe", topic):
            _describe(client, admin.ConfigResource(admin.ConfigResource.Type.TOPIC, topic))
        sent = {partition: _write_records(broker, topic, partition) for partition in range(servers)}
        stamped = _read_timestamps(broker, topic, servers)
    except BaseException:
        _delete_quietly(client, topic)
        raise
    with _translate_refusal(broker, "delete", topic):
        client.delete_topics([topic], request_timeout=REQUEST_S)[topic].result()

    def is_gone() -> bool:
        with _translate_refusal(broker, "list", topic):
            return topic not in client.list_topics(timeout=REQUEST_S).topics

    # The broker lists a deleted topic for a moment; the next check would take it for a foreign one.
    wait_until(is_gone, timeout_s=REQUEST_S, every_s=0.1, what=f"Connection {broker.connection}: the end of {topic}")
    return combined_clock_bound(_clock(sent[partition], stamped[partition]) for partition in sent)


def _create(broker: TargetBroker, client: Any, new: Any) -> None:
    try:
        with _translate_refusal(broker, "create", new.topic):
            client.create_topics([new], request_timeout=REQUEST_S)[new.topic].result()
    except ConfigError:
        raise  # refused: no topic was created
    except BaseException:
        # The topic may exist although the answer was lost.
        _delete_quietly(client, new.topic)
        raise


def _delete_quietly(client: Any, topic: str) -> None:
    """Delete a topic, ignoring errors; the caller raises the original one."""
    client.delete_topics([topic], request_timeout=REQUEST_S)[topic].exception()


def _describe(client: Any, resource: Any) -> None:
    """Describe a new topic, with retries, since brokers learn of the topic with a delay. Raises KafkaException."""
    unknown = retry_if_exception(_is_unknown)
    retrying = Retrying(retry=unknown, stop=stop_after_delay(PROPAGATION_S), wait=wait_fixed(0.1), reraise=True)
    retrying(lambda: client.describe_configs([resource], request_timeout=REQUEST_S)[resource].result())


def _is_unknown(error: BaseException) -> bool:
    from confluent_kafka import KafkaError, KafkaException

    return isinstance(error, KafkaException) and error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


@contextmanager
def _translate_refusal(broker: TargetBroker, right: str, topic: str) -> Iterator[None]:
    """Translate a KafkaException of the block into a FaultlineError."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        raise _refused(broker, right, topic, error.args[0]) from None


def _refused(broker: TargetBroker, right: str, topic: str, error: Any) -> FaultlineError:
    from confluent_kafka import KafkaError

    why = one_line(error.str()).rstrip(".")
    denied = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
    if error.code() in denied:
        return broker.refuse(
            f"missing right to {right} topics ({why}); fix: grant the Connection's user CREATE, DESCRIBE, DELETE, READ "
            f"and WRITE on topics prefixed {PREFIX}"
        )
    if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
        return ConfigError(f"topic {topic}: exists already (unchanged); fix: retry")
    return InfrastructureError(
        f"Connection {broker.connection}: {right} {topic} failed: {why}; fix: see the broker's log"
    )


def _write_records(broker: TargetBroker, topic: str, partition: int) -> list[tuple[float, float]]:
    """Return the send and acknowledgement times per record, in seconds of this machine's clock, by offset."""
    from confluent_kafka import Producer

    failed: list[Any] = []
    producer = Producer(broker.settings({"enable.idempotence": True, "linger.ms": 0, "message.timeout.ms": 10_000}))
    times = []
    for number in range(PROBE_RECORDS):
        before = time.time()
        producer.produce(
            topic, str(number).encode(), partition=partition, on_delivery=lambda error, _: failed.append(error)
        )
        unacknowledged = producer.flush(REQUEST_S)
        times.append((before, time.time()))
        if unacknowledged or failed[-1] is not None:
            if unacknowledged:
                raise InfrastructureError(
                    f"Connection {broker.connection}: writing failed: no acknowledgement; fix: see the broker's log"
                )
            raise _refused(broker, "write", topic, failed[-1])
    return times


def _read_timestamps(broker: TargetBroker, topic: str, partitions: int) -> list[list[float]]:
    """Return the broker's timestamps of each partition, in seconds, by offset."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(broker.settings({"group.id": topic, "enable.auto.commit": False}))
    found: list[list[float]] = [[] for _ in range(partitions)]
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        deadline = time.monotonic() + REQUEST_S
        while any(len(one) < PROBE_RECORDS for one in found):
            if time.monotonic() > deadline:
                raise InfrastructureError(
                    f"Connection {broker.connection}: reading failed: timeout; fix: see the broker's log"
                )
            message = consumer.poll(1.0)
            error = None if message is None else message.error()
            if message is not None and error is None:
                found[message.partition() or 0].append(message.timestamp()[1] / 1000)
            elif error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise _refused(broker, "read", topic, error)
    finally:
        consumer.close()
    return found


def _clock(sent: list[tuple[float, float]], stamped: list[float]) -> ClockOffsetBound:
    """Return the clock bound of one server; its timestamps are whole milliseconds."""
    samples = zip(sent, stamped, strict=True)
    return clock_bound(((before * 1000, after * 1000, at * 1000) for (before, after), at in samples), coarse_ms=1.0)


def check_foreign_topics(broker: TargetBroker, is_own: Callable[[str], bool]) -> str:
    """Return a text on topics with the project's prefix that other installations made. Raises InfrastructureError."""
    from confluent_kafka import KafkaException, Producer

    try:
        names = Producer(broker.settings()).list_topics(timeout=REQUEST_S).topics
    except KafkaException as error:
        raise InfrastructureError(
            f"Connection {broker.connection}: {error.args[0].str()}; fix: see the broker's log"
        ) from None
    others = sorted(name for name in names if name.startswith(PREFIX) and name != LOCK_TOPIC and not is_own(name))
    if not others:
        return f"no foreign topic with the prefix {PREFIX}"
    return f"{pluralize(len(others), 'foreign topic')} with the prefix {PREFIX} left unchanged, such as {others[0]}"
