"""Whether a target's broker can be measured on: a look at it with a topic of one's own, which goes again."""

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

# The topic, and the group, by which experiments take turns.
LOCK_TOPIC = f"{PREFIX}turn"
CONNECT_S, LOGIN_S, REQUEST_S, PROPAGATION_S = 5.0, 15.0, 15.0, 10.0
# Records whose times tell how far a server's clock is off: the fastest one tells most.
PROBE_RECORDS = 20
# What a server says to whom it wants another certificate of, or any.
_CLIENT_CERTIFICATE_ALERT = re.compile(
    r"alert.(.*certificate|unknown.ca|decrypt.error|handshake.failure)", re.IGNORECASE
)
# It reads four bytes of whatever comes as a length.
_NOT_A_BROKER = re.compile(r"invalid response size", re.IGNORECASE)


@dataclass(frozen=True)
class TargetBroker:
    """One target's. `connection`: the id of the Connection that a user would mend."""

    bootstrap: str
    logins: Path
    connection: str

    def settings(self, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return kafka_client(self.bootstrap, {"log_level": 0, **(more or {})}, secrets=self.logins)

    def refuse(self, why: str) -> ConfigError:
        return ConfigError(f"Connection {self.connection}: {why}")


def check_connection(broker: TargetBroker) -> str:
    """Raises InfrastructureError when no server answers, ConfigError for certificates that are not taken."""
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
            trouble = f"{server} does not answer ({error.strerror or one_line(error)})"
    if not answered:
        raise InfrastructureError(
            f"Connection {broker.connection}: extra: bootstrap.servers: {trouble}; start it, or mend the address"
        )
    return f"{', '.join(answered)} answers"


def _tls_handshake(broker: TargetBroker, plain: socket.socket, host: str, context: ssl.SSLContext) -> None:
    """librdkafka only says that a certificate could not be verified; OpenSSL knows why."""
    try:
        with context.wrap_socket(plain, server_hostname=host):
            pass
    except ssl.SSLCertVerificationError as error:
        raise broker.refuse(
            f"extra: ssl.ca.pem: the certificate of {host} is refused ({error.verify_message}); renew the certificate, "
            "or give the authority that signed it"
        ) from None
    except ssl.SSLError as error:
        why = error.reason or str(error)
        if _CLIENT_CERTIFICATE_ALERT.search(why):
            raise _refused_as_client(broker, host, why) from None
        raise broker.refuse(f"extra: security.protocol: {host} does not speak TLS as asked ({why}); mend it") from None


def _refused_as_client(broker: TargetBroker, host: str, why: str) -> ConfigError:
    return broker.refuse(
        f"extra: ssl.certificate.pem: {host} does not accept it, or asks for one ({why}); give one of an authority "
        "that it trusts, and its ssl.key.pem"
    )


def _context(broker: TargetBroker, login: Mapping[str, str]) -> ssl.SSLContext:
    """Raises ConfigError for certificates of the Connection that cannot be used."""
    try:
        context = ssl.create_default_context(cadata=login.get("ssl.ca.pem"))
    except (ssl.SSLError, ValueError) as error:
        raise broker.refuse(f"extra: ssl.ca.pem: cannot be read ({one_line(error)}); give it whole") from None
    context.check_hostname = login.get("ssl.endpoint.identification.algorithm", "https") != "none"
    if "ssl.certificate.pem" in login:
        check_client_certificate(broker, login["ssl.certificate.pem"])
        try:
            # Both of them, as Spark reads them, too.
            context.load_cert_chain(broker.logins / KEYSTORE)
        except ssl.SSLError as error:
            raise broker.refuse(
                f"extra: ssl.key.pem: is not that of ssl.certificate.pem ({error.reason or error}); give both of one "
                "pair"
            ) from None
    return context


def check_client_certificate(broker: TargetBroker, text: str) -> None:
    """Raises ConfigError for a client's certificate that cannot be read, or whose time is over, or has not come."""
    from cryptography import x509

    try:
        chain = x509.load_pem_x509_certificates(text.encode())
    except ValueError:
        raise broker.refuse("extra: ssl.certificate.pem: cannot be read; give it whole, in PEM form") from None
    now = datetime.now(UTC)
    for one in chain:
        if not one.not_valid_before_utc <= now <= one.not_valid_after_utc:
            raise broker.refuse(
                f"extra: ssl.certificate.pem: holds from {one.not_valid_before_utc:%Y-%m-%d} to "
                f"{one.not_valid_after_utc:%Y-%m-%d}; renew it"
            )


def check_login(broker: TargetBroker) -> str:
    """Raises ConfigError for a login that is refused, or a setting that there is not; InfrastructureError."""
    from confluent_kafka import KafkaError, KafkaException, Producer

    errors: list[Any] = []
    try:
        client = Producer(broker.settings({"error_cb": errors.append}))
    except KafkaException as error:
        raise broker.refuse(f"extra: {one_line(error.args[0].str())}; mend it") from None
    deadline = time.monotonic() + LOGIN_S
    while True:
        try:
            brokers = client.list_topics(timeout=1.0).brokers
            return f"the login is accepted, {pluralize(len(brokers), 'broker')}"
        except KafkaException as error:
            client.poll(0)
            last = error.args[0]
        for one in errors:
            if one.code() == KafkaError._AUTHENTICATION:
                raise broker.refuse(
                    f"extra: sasl.password: the login is refused ({_error_text(one.str())}); fix user or password"
                )
            # TLS 1.3 tells after the handshake, which librdkafka takes for any failure to receive.
            if _CLIENT_CERTIFICATE_ALERT.search(one.str()):
                raise _refused_as_client(broker, "the broker", _error_text(one.str()))
            if one.code() == KafkaError._SSL:
                raise broker.refuse(f"extra: ssl.ca.pem: {_error_text(one.str())}; mend the certificates")
        if time.monotonic() > deadline:
            last_error = next((one.str() for one in reversed(errors)), last.str())
            if _NOT_A_BROKER.search(last_error):
                raise broker.refuse(
                    "extra: bootstrap.servers: what answers there does not speak Kafka's protocol; give a broker's "
                    "port, or mend security.protocol"
                )
            raise InfrastructureError(
                f"Connection {broker.connection}: broker: no answer ({_error_text(last_error)}); look at its log"
            )


def _error_text(text: str) -> str:
    """Without the address that librdkafka puts before, and how long it took."""
    return one_line(text).split("]: ")[-1].split(": ", 1)[-1].split(" (after")[0]


def check_rights(broker: TargetBroker) -> ClockOffsetBound:
    """Makes, describes, fills, reads and deletes a topic, which has a partition for each server: each gives the times
    of its own. Raises ConfigError naming the right that is missing, InfrastructureError."""
    admin: Any = importlib.import_module("confluent_kafka.admin")
    client, topic = admin.AdminClient(broker.settings()), f"{PROBE}{secrets.token_hex(6)}"
    with _translate_refusal(broker, "list", topic):
        servers = len(client.list_topics(timeout=REQUEST_S).brokers)
    settings = {"message.timestamp.type": "LogAppendTime"}
    _create(broker, client, admin.NewTopic(topic, num_partitions=servers, replication_factor=-1, config=settings))
    try:
        with _translate_refusal(broker, "describe", topic):
            _describe(client, admin.ConfigResource(admin.ConfigResource.Type.TOPIC, topic))
        sent = {number: _write_records(broker, topic, number) for number in range(servers)}
        given = _read_timestamps(broker, topic, servers)
    except BaseException:
        _delete_quietly(client, topic)
        raise
    with _translate_refusal(broker, "delete", topic):
        client.delete_topics([topic], request_timeout=REQUEST_S)[topic].result()

    def is_gone() -> bool:
        with _translate_refusal(broker, "list", topic):
            return topic not in client.list_topics(timeout=REQUEST_S).topics

    # The broker goes on showing it for a moment, and would seem to have one of somebody else's.
    wait_until(is_gone, timeout_s=REQUEST_S, every_s=0.1, what=f"Connection {broker.connection}: the end of {topic}")
    return combined_clock_bound(_clock(sent[number], given[number]) for number in sent)


def _create(broker: TargetBroker, client: Any, new: Any) -> None:
    try:
        with _translate_refusal(broker, "create", new.topic):
            client.create_topics([new], request_timeout=REQUEST_S)[new.topic].result()
    except ConfigError:
        raise  # It says no: nothing was made, or somebody else's is there.
    except BaseException:
        # It may be made all the same, and only the answer lost.
        _delete_quietly(client, new.topic)
        raise


def _delete_quietly(client: Any, topic: str) -> None:
    """Deletes it if that can be; why not is last_error by what came before."""
    client.delete_topics([topic], request_timeout=REQUEST_S)[topic].exception()


def _describe(client: Any, resource: Any) -> None:
    """The controller makes a topic, and each broker hears of it a moment later. Raises KafkaException."""
    unknown = retry_if_exception(_is_unknown)
    retrying = Retrying(retry=unknown, stop=stop_after_delay(PROPAGATION_S), wait=wait_fixed(0.1), reraise=True)
    retrying(lambda: client.describe_configs([resource], request_timeout=REQUEST_S)[resource].result())


def _is_unknown(error: BaseException) -> bool:
    from confluent_kafka import KafkaError, KafkaException

    return isinstance(error, KafkaException) and error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


@contextmanager
def _translate_refusal(broker: TargetBroker, right: str, topic: str) -> Iterator[None]:
    """What the broker refuses, in words."""
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
            f"its user may not {right} topics ({why}); let it create, describe, delete, read and write topics whose "
            f"names begin with {PREFIX}"
        )
    if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
        return ConfigError(f"topic {topic}: is there, and somebody else's; it stays as it is, try again")
    return InfrastructureError(f"Connection {broker.connection}: could not {right} {topic} ({why}); look at its log")


def _write_records(broker: TargetBroker, topic: str, partition: int) -> list[tuple[float, float]]:
    """When each record was sent and acknowledged, in seconds of this machine's clock, by offset."""
    from confluent_kafka import Producer

    failed: list[Any] = []
    producer = Producer(broker.settings({"enable.idempotence": True, "linger.ms": 0, "message.timeout.ms": 10_000}))
    times = []
    for number in range(PROBE_RECORDS):
        before = time.time()
        producer.produce(
            topic, str(number).encode(), partition=partition, on_delivery=lambda error, _: failed.append(error)
        )
        left = producer.flush(REQUEST_S)
        times.append((before, time.time()))
        if left or failed[-1] is not None:
            if left:
                raise InfrastructureError(f"Connection {broker.connection}: a record is not acknowledged; look there")
            raise _refused(broker, "write", topic, failed[-1])
    return times


def _read_timestamps(broker: TargetBroker, topic: str, partitions: int) -> list[list[float]]:
    """The time that each record of a partition was given, in seconds, by offset."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(broker.settings({"group.id": topic, "enable.auto.commit": False}))
    found: list[list[float]] = [[] for _ in range(partitions)]
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        deadline = time.monotonic() + REQUEST_S
        while any(len(one) < PROBE_RECORDS for one in found):
            if time.monotonic() > deadline:
                raise InfrastructureError(
                    f"Connection {broker.connection}: what was written cannot be read; look at its log"
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


def _clock(sent: list[tuple[float, float]], given: list[float]) -> ClockOffsetBound:
    """The broker counts whole milliseconds."""
    looks = zip(sent, given, strict=True)
    return clock_bound(((before * 1000, after * 1000, at * 1000) for (before, after), at in looks), coarse_ms=1.0)


def check_foreign_topics(broker: TargetBroker, is_own: Callable[[str], bool]) -> str:
    """What of the topics with our names is not ours. Raises InfrastructureError."""
    from confluent_kafka import KafkaException, Producer

    try:
        names = Producer(broker.settings()).list_topics(timeout=REQUEST_S).topics
    except KafkaException as error:
        raise InfrastructureError(f"Connection {broker.connection}: {error.args[0].str()}; look at its log") from None
    others = sorted(name for name in names if name.startswith(PREFIX) and name != LOCK_TOPIC and not is_own(name))
    if not others:
        return f"no topic of anybody else's begins with {PREFIX}"
    return f"{pluralize(len(others), 'topic')} of others begin with {PREFIX}, such as {others[0]}; they are left alone"
