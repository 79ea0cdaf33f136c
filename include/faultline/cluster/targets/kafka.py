"""Whether a target's broker can be measured on: a look at it with a topic of one's own, which goes again."""

from __future__ import annotations

import importlib
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

from faultline.base.errors import ConfigError, FaultlineError, InfrastructureError
from faultline.base.kafka_login import kafka_client
from faultline.base.text import counted, one_line
from faultline.base.waiting import wait_until
from faultline.cluster.targets.clock import Clock, clock_of

PREFIX = "faultline-"
PROBE = f"{PREFIX}probe-"
# The topic, and the group, by which experiments take turns.
TURN = f"{PREFIX}turn"
CONNECT_S, LOGIN_S, ASK_S, HEARD_S = 5.0, 15.0, 15.0, 10.0
# Records whose times tell how far the broker's clock is off: the fastest one tells most.
ASKED_TIMES = 5


@dataclass(frozen=True)
class Broker:
    """One target's. `connection`: the id of the Connection that a user would mend."""

    bootstrap: str
    logins: Path
    connection: str

    def settings(self, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return kafka_client(self.bootstrap, {"log_level": 0, **(more or {})}, secrets=self.logins)

    def refuse(self, why: str) -> ConfigError:
        return ConfigError(f"Connection {self.connection}: {why}")


def reached(broker: Broker) -> str:
    """Raises InfrastructureError when no server answers, ConfigError for one whose certificate cannot be trusted."""
    login, trouble, answered = broker.settings(), "", []
    for server in (one.strip() for one in broker.bootstrap.split(",")):
        host, _, port = server.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S) as plain:
                if str(login.get("security.protocol", "")).upper().endswith("SSL"):
                    _shake_hands(broker, plain, host.strip("[]"), login)
            answered.append(server)
        except OSError as error:
            trouble = f"{server} does not answer ({error.strerror or one_line(error)})"
    if not answered:
        raise InfrastructureError(
            f"Connection {broker.connection}: extra: bootstrap.servers: {trouble}; start it, or mend the address"
        )
    return f"{', '.join(answered)} answers"


def _shake_hands(broker: Broker, plain: socket.socket, host: str, login: Mapping[str, str]) -> None:
    """librdkafka only says that a certificate could not be verified; OpenSSL knows why."""
    context = ssl.create_default_context(cadata=login.get("ssl.ca.pem"))
    context.check_hostname = login.get("ssl.endpoint.identification.algorithm", "https") != "none"
    try:
        with context.wrap_socket(plain, server_hostname=host):
            pass
    except ssl.SSLCertVerificationError as error:
        raise broker.refuse(
            f"extra: ssl.ca.pem: the certificate of {host} is refused ({error.verify_message}); renew the certificate, "
            "or give the authority that signed it"
        ) from None
    except ssl.SSLError as error:
        raise broker.refuse(
            f"extra: security.protocol: {host} does not speak TLS as asked ({error.reason or error}); mend it"
        ) from None


def own_certificate_holds(broker: Broker) -> None:
    """Raises ConfigError for a client's certificate whose time is over, or has not come."""
    text = broker.settings().get("ssl.certificate.pem")
    if text is None:
        return
    from cryptography import x509

    now = datetime.now(UTC)
    for one in x509.load_pem_x509_certificates(text.encode()):
        if not one.not_valid_before_utc <= now <= one.not_valid_after_utc:
            raise broker.refuse(
                f"extra: ssl.certificate.pem: holds from {one.not_valid_before_utc:%Y-%m-%d} to "
                f"{one.not_valid_after_utc:%Y-%m-%d}; renew it"
            )


def logged_in(broker: Broker) -> str:
    """Raises ConfigError for a login that is refused, or a setting that there is not; InfrastructureError."""
    from confluent_kafka import KafkaError, KafkaException, Producer

    own_certificate_holds(broker)
    errors: list[Any] = []
    try:
        client = Producer(broker.settings({"error_cb": errors.append}))
    except KafkaException as error:
        raise broker.refuse(f"extra: {one_line(error.args[0].str())}; mend it") from None
    deadline = time.monotonic() + LOGIN_S
    while True:
        try:
            brokers = client.list_topics(timeout=1.0).brokers
            return f"the login is accepted, {counted(len(brokers), 'broker')}"
        except KafkaException as error:
            client.poll(0)
            last = error.args[0]
        for one in errors:
            if one.code() == KafkaError._AUTHENTICATION:
                raise broker.refuse(
                    f"extra: sasl.password: the broker refuses the login ({_plain(one.str())}); mend user or password"
                )
            if one.code() == KafkaError._SSL:
                raise broker.refuse(f"extra: ssl.ca.pem: {_plain(one.str())}; mend the certificates")
        if time.monotonic() > deadline:
            told = next((one.str() for one in reversed(errors)), last.str())
            raise InfrastructureError(
                f"Connection {broker.connection}: the broker gives no answer ({_plain(told)}); look at its log"
            )


def _plain(text: str) -> str:
    """Without the address that librdkafka puts before, and how long it took."""
    return one_line(text).split("]: ")[-1].split(": ", 1)[-1].split(" (after")[0]


def worked(broker: Broker) -> Clock:
    """Makes, describes, fills, reads and deletes a topic. Raises ConfigError naming the right that is missing."""
    admin: Any = importlib.import_module("confluent_kafka.admin")
    client, topic = admin.AdminClient(broker.settings()), f"{PROBE}{secrets.token_hex(6)}"
    settings = {"message.timestamp.type": "LogAppendTime"}
    new = admin.NewTopic(topic, num_partitions=1, replication_factor=-1, config=settings)
    with _as_right(broker, "create", topic):
        client.create_topics([new], request_timeout=ASK_S)[topic].result()
    try:
        with _as_right(broker, "describe", topic):
            _describe(client, admin.ConfigResource(admin.ConfigResource.Type.TOPIC, topic))
        sent = _written(broker, topic)
        clock = _clock(sent, _read(broker, topic))
    except BaseException:
        client.delete_topics([topic], request_timeout=ASK_S)[topic].exception()
        raise
    with _as_right(broker, "delete", topic):
        client.delete_topics([topic], request_timeout=ASK_S)[topic].result()
    # The broker goes on showing it for a moment, and would seem to have one of somebody else's.
    wait_until(
        lambda: topic not in client.list_topics(timeout=ASK_S).topics,
        timeout_s=ASK_S,
        every_s=0.1,
        what=f"Connection {broker.connection}: the end of {topic}",
    )
    return clock


def _describe(client: Any, resource: Any) -> None:
    """The controller makes a topic, and each broker hears of it a moment later. Raises KafkaException."""
    unheard = retry_if_exception(_is_unknown)
    retrying = Retrying(retry=unheard, stop=stop_after_delay(HEARD_S), wait=wait_fixed(0.1), reraise=True)
    retrying(lambda: client.describe_configs([resource], request_timeout=ASK_S)[resource].result())


def _is_unknown(error: BaseException) -> bool:
    from confluent_kafka import KafkaError, KafkaException

    return isinstance(error, KafkaException) and error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


@contextmanager
def _as_right(broker: Broker, right: str, topic: str) -> Iterator[None]:
    """What the broker refuses, in words."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        raise _refused(broker, right, topic, error.args[0]) from None


def _refused(broker: Broker, right: str, topic: str, error: Any) -> FaultlineError:
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


def _written(broker: Broker, topic: str) -> list[tuple[float, float]]:
    """When each record was sent and acknowledged, in seconds of this machine's clock, by offset."""
    from confluent_kafka import Producer

    failed: list[Any] = []
    producer = Producer(broker.settings({"enable.idempotence": True, "linger.ms": 0, "message.timeout.ms": 10_000}))
    times = []
    for number in range(ASKED_TIMES):
        before = time.time()
        producer.produce(topic, str(number).encode(), on_delivery=lambda error, _: failed.append(error))
        left = producer.flush(ASK_S)
        times.append((before, time.time()))
        if left or failed[-1] is not None:
            if left:
                raise InfrastructureError(f"Connection {broker.connection}: a record is not acknowledged; look there")
            raise _refused(broker, "write", topic, failed[-1])
    return times


def _read(broker: Broker, topic: str) -> list[float]:
    """The time that the broker gave each record, in seconds, by offset."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(broker.settings({"group.id": topic, "enable.auto.commit": False}))
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[float] = []
        deadline = time.monotonic() + ASK_S
        while len(found) < ASKED_TIMES and time.monotonic() < deadline:
            message = consumer.poll(1.0)
            error = None if message is None else message.error()
            if message is not None and error is None:
                found.append(message.timestamp()[1] / 1000)
            elif error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise _refused(broker, "read", topic, error)
    finally:
        consumer.close()
    if len(found) < ASKED_TIMES:
        raise InfrastructureError(f"Connection {broker.connection}: what was written cannot be read; look at its log")
    return found


def _clock(sent: list[tuple[float, float]], given: list[float]) -> Clock:
    """The broker counts whole milliseconds."""
    looks = zip(sent, given, strict=True)
    return clock_of(((before * 1000, after * 1000, at * 1000) for (before, after), at in looks), coarse_ms=1.0)


def others_topics(broker: Broker, is_own: Callable[[str], bool]) -> str:
    """What of the topics with our names is not ours. Raises InfrastructureError."""
    from confluent_kafka import KafkaException, Producer

    try:
        names = Producer(broker.settings()).list_topics(timeout=ASK_S).topics
    except KafkaException as error:
        raise InfrastructureError(f"Connection {broker.connection}: {error.args[0].str()}; look at its log") from None
    others = sorted(name for name in names if name.startswith(PREFIX) and name != TURN and not is_own(name))
    if not others:
        return f"no topic of anybody else's begins with {PREFIX}"
    return f"{counted(len(others), 'topic')} of others begin with {PREFIX}, such as {others[0]}; they are left alone"
