"""Preflight checks of a target's broker: certificates, login, topics and clock."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from hypothesis import given
from hypothesis import strategies as st

from faultline.installation.targets import kafka_preflight
from faultline.installation.targets.java_kafka import (
    CA,
    KEYSTORE,
    LIBRDKAFKA_KEYS,
    LOGIN_MODULES,
    SHARED_KEYS,
    TRANSLATED_KEYS,
    quote_jaas,
    translate,
)
from faultline.installation.targets.kafka_preflight import TargetBroker, _clock, check_connection, check_login
from faultline.installation.targets.machines import ClockOffsetBound
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.secrets import HARNESS, login_file
from tests.support.acceptor import LOCAL, accepting
from tests.support.certificates import Authority, Pair
from tests.support.refusals import refused


@contextmanager
def tls_server(
    folder: Path, own: Pair, clients: Authority | None = None, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
) -> Iterator[int]:
    """Port of a TLS server that accepts every client, or only those signed by `authority`."""
    (folder / "own.pem").write_text(own.key + own.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "own.pem")
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=clients.pem)
        context.maximum_version = newest

    def play(came: socket.socket) -> None:
        try:
            context.wrap_socket(came, server_side=True).close()
        except OSError:
            came.close()

    with accepting(play) as port:
        yield port


def broker(folder: Path, port: int, **login: str) -> TargetBroker:
    login_file(folder, HARNESS).write_text(json.dumps(login))
    login_file(folder, HARNESS).chmod(0o600)
    (folder / "endpoints.json").touch()
    return TargetBroker(f"{LOCAL}:{port}", folder, "faultline_kafka")


@pytest.mark.parametrize(
    ("expired", "known", "why"),
    [
        (False, True, None),
        (True, True, r"certificate has expired\)"),
        (False, False, r"(certificate signature failure|unable to get local issuer certificate)\)"),
    ],
)
def test_an_untrusted_certificate_is_reported_with_its_reason(
    tmp_path: Path, expired: bool, known: bool, why: str | None
) -> None:
    authority = Authority()
    given = {"security.protocol": "SASL_SSL", "ssl.ca.pem": (authority if known else Authority()).pem}
    with tls_server(tmp_path, authority.signed(expired=expired)) as port:
        there = broker(tmp_path, port, **given)
        message = rf"^Connection faultline_kafka: extra: ssl\.ca\.pem: .*{why}"
        with pytest.raises(ConfigError, match=message) if why else nullcontext():
            assert check_connection(there) == f"{LOCAL}:{port} reachable"


def test_a_broker_without_tls_or_unreachable_is_reported(tmp_path: Path) -> None:

    def answer(came: socket.socket) -> None:
        came.recv(1)
        came.sendall(b"no TLS here, be sure of that")
        came.close()

    with accepting(answer) as port:
        with pytest.raises(ConfigError, match=r"^Connection faultline_kafka: extra: security\.protocol: "):
            check_connection(broker(tmp_path, port, **{"security.protocol": "SSL", "ssl.ca.pem": Authority().pem}))
    # A reserved port without a listener.
    with socket.socket() as unused:
        unused.bind((LOCAL, 0))
        with refused("Connection faultline_kafka: extra: bootstrap.servers: ", " refused", kind=InfrastructureError):
            check_connection(broker(tmp_path, unused.getsockname()[1]))


def with_own(folder: Path, port: int, authority: Authority, own: Pair) -> TargetBroker:
    """Write the login of a client with a certificate like `write_target`."""
    (folder / KEYSTORE).write_text(own.key + own.certificate)
    given = {"ssl.ca.pem": authority.pem, "ssl.certificate.pem": own.certificate, "ssl.key.pem": own.key}
    return broker(folder, port, **{"security.protocol": "SSL", **given})


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_certificate_is_sent_and_its_rejection_reported(tmp_path: Path, newest: ssl.TLSVersion) -> None:
    """TLS 1.3 rejects certificates after the handshake, so the login fails."""
    authority, strangers, own = Authority(), Authority(), tmp_path / "own"
    own.mkdir()
    with tls_server(tmp_path, authority.signed(), clients=authority, newest=newest) as port:
        assert check_connection(with_own(own, port, authority, authority.signed())) == f"{LOCAL}:{port} reachable"
        given = {"security.protocol": "SSL", "ssl.ca.pem": authority.pem}
        for make in (lambda: with_own(own, port, authority, strangers.signed()), lambda: broker(own, port, **given)):
            there = make()
            if newest is ssl.TLSVersion.TLSv1_3:
                assert check_connection(there)
            with pytest.raises(ConfigError, match=r"^Connection faultline_kafka: extra: ssl\.certificate\.pem: "):
                (check_login if newest is ssl.TLSVersion.TLSv1_3 else check_connection)(there)


def damaged(pem: str) -> str:
    """Return the text without its middle."""
    lines = pem.splitlines()
    return "\n".join([lines[0], "no!base64", *lines[-1:]]) + "\n"


def test_unusable_settings_are_named_by_key_before_any_connection(tmp_path: Path) -> None:
    authority = Authority()
    own, other = authority.signed(), authority.signed()
    for pair, ca, why in (
        (own, damaged(authority.pem), r"ssl\.ca\.pem: "),
        (Pair(damaged(own.certificate), own.key), authority.pem, r"ssl\.certificate\.pem: "),
        (Pair(own.certificate, other.key), authority.pem, r"ssl\.key\.pem: "),
        (authority.signed(expired=True), authority.pem, r"ssl\.certificate\.pem: "),
    ):
        there = with_own(tmp_path, 1, authority, pair)
        login = {**json.loads(login_file(tmp_path, HARNESS).read_text()), "ssl.ca.pem": ca}
        login_file(tmp_path, HARNESS).write_text(json.dumps(login))
        with pytest.raises(ConfigError, match=rf"^Connection faultline_kafka: extra: {why}") as refused:
            check_connection(there)
        assert "\n" not in str(refused.value)


class Cluster:
    """Admin client of a cluster with `servers` brokers.

    `answers`: results of each request by its name, in order; the last one repeats.
    """

    def __init__(self, servers: int = 1, **answers: list[int]) -> None:
        self.servers, self.answers, self.topics, self.listed = servers, answers, dict[str, int](), False

    def _answer(self, what: str) -> Future[None]:
        future: Future[None] = Future()
        left = self.answers.get(what, [KafkaError.NO_ERROR])
        if (answer := left[0] if len(left) == 1 else left.pop(0)) == KafkaError.NO_ERROR:
            future.set_result(None)
        else:
            future.set_exception(KafkaException(KafkaError(answer)))
        return future

    def create_topics(self, new: list[Any], request_timeout: float) -> dict[str, Future[None]]:
        self.topics |= {one.topic: one.num_partitions for one in new}
        return {one.topic: self._answer("create") for one in new}

    def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, Future[None]]:
        return {one: self._answer("describe") for one in resources}

    def delete_topics(self, names: list[str], request_timeout: float) -> dict[str, Future[None]]:
        for name in names:
            del self.topics[name]
        return {name: self._answer("delete") for name in names}

    def list_topics(self, timeout: float) -> SimpleNamespace:
        # It still answers the first query.
        if self.listed:
            self._answer("list").result()
        self.listed = True
        return SimpleNamespace(brokers=range(self.servers), topics=dict(self.topics))


UNKNOWN, DENIED = KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize(
    ("answers", "wait_s", "is_there"),
    [([UNKNOWN, UNKNOWN, KafkaError.NO_ERROR], 60, True), ([UNKNOWN], 0, False), ([DENIED], 60, False)],
)
def test_a_topic_that_a_broker_does_not_know_yet_is_queried_again(
    answers: list[int], wait_s: float, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_preflight, "PROPAGATION_S", wait_s)
    with nullcontext() if is_there else pytest.raises(KafkaException):
        kafka_preflight._describe(Cluster(describe=answers), "topic")


def asked_of(cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ClockOffsetBound:
    """Return the clock bound of servers that are 0, 10, 20, … ms ahead of this machine."""
    monkeypatch.setattr("confluent_kafka.admin.AdminClient", lambda settings: cluster)
    monkeypatch.setattr(kafka_preflight, "_write_records", lambda *_: [(1.0, 1.001)])
    monkeypatch.setattr(
        kafka_preflight, "_read_timestamps", lambda *asked: [[1.0 + 0.01 * number] for number in range(asked[-1])]
    )
    return kafka_preflight.check_rights(broker(folder, 1))


def test_the_clock_bound_covers_every_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for servers, ahead_ms in ((1, 0), (3, 10)):
        cluster = Cluster(servers)
        assert asked_of(cluster, tmp_path, monkeypatch) == ClockOffsetBound(
            pytest.approx(ahead_ms), pytest.approx(ahead_ms + 1)
        )
        assert cluster.topics == {}


@pytest.mark.parametrize("what", ["create", "describe", "delete", "list"])
def test_a_broker_that_stops_meanwhile_is_reported_and_keeps_no_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    cluster = Cluster(**{what: [KafkaError._TIMED_OUT]})
    with pytest.raises(InfrastructureError, match=f"^Connection faultline_kafka: {what} faultline-probe-"):
        asked_of(cluster, tmp_path, monkeypatch)
    assert cluster.topics == {}


def test_records_go_to_each_server_and_come_back_with_their_times(tmp_path: Path) -> None:
    # Three mock brokers of librdkafka.
    played = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 3, "log_level": 0})
    servers = [f"{one.host}:{one.port}" for one in played.list_topics(timeout=120).brokers.values()]
    there = replace(broker(tmp_path, 1), bootstrap=",".join(servers))
    sent = [kafka_preflight._write_records(there, "t", number) for number in range(3)]
    given = kafka_preflight._read_timestamps(there, "t", 3)
    assert [len(one) for one in given] == [kafka_preflight.PROBE_RECORDS] * 3
    for before, at in zip(sent, given, strict=True):
        clock = _clock(before, at)
        assert abs(clock.ahead_ms) <= clock.uncertain_ms + 1, "they are this process"


def test_the_fastest_record_bounds_the_clock() -> None:
    # The broker's clock is 40 ms ahead; the second record took 2 ms, the first half a second.
    found = _clock([(10.0, 10.5), (11.0, 11.002)], [10.49, 11.041])
    assert found == ClockOffsetBound(pytest.approx(40.5), pytest.approx(1.5))


def test_an_existing_topic_is_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(create=[KafkaError.TOPIC_ALREADY_EXISTS])
    with pytest.raises(ConfigError, match="^topic faultline-probe-"):
        asked_of(cluster, tmp_path, monkeypatch)
    assert len(cluster.topics) == 1


# ---- librdkafka's settings are translated for Java whole, or refused by name; no option holds a secret ----

PRINTABLE = st.text(st.characters(exclude_categories="CZ"), min_size=1).filter(lambda text: "${" not in text)


def as_java_reads(text: str) -> str:
    """Parse a quoted word like java.io.StreamTokenizer, which reads JAAS files."""
    assert text[0] == text[-1] == '"'
    inner, found, escaped = text[1:-1], "", False
    for letter in inner:
        if escaped or letter != "\\":
            assert escaped or letter != '"', "the word ends early"
            found, escaped = found + letter, False
        else:
            escaped = True
    assert not escaped
    return found


@given(PRINTABLE)
def test_a_password_comes_to_java_as_it_was_given(password: str) -> None:
    assert as_java_reads(quote_jaas(password, "sasl.password")) == password


@pytest.mark.parametrize("password", ["two\nlines", "a ${user.home} in it", "\x00"])
def test_what_a_jaas_file_cannot_hold_is_refused(password: str) -> None:
    with pytest.raises(ConfigError, match=r"^sasl\.password: "):
        quote_jaas(password, "sasl.password")


@given(
    user=PRINTABLE,
    password=st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=12, max_size=40),
    mechanism=st.sampled_from(sorted(LOGIN_MODULES)),
    protocol=st.sampled_from(["SASL_PLAINTEXT", "SASL_SSL", "sasl_ssl"]),
    more=st.dictionaries(st.sampled_from(sorted(SHARED_KEYS | LIBRDKAFKA_KEYS)), st.just("7")),
)
def test_a_login_with_a_password_is_whole_and_no_option_holds_it(
    user: str, password: str, mechanism: str, protocol: str, more: dict[str, str]
) -> None:
    login = {"sasl.mechanisms": mechanism, "sasl.username": user, "sasl.password": password}
    made = translate({"security.protocol": protocol, **login, **more})
    assert {"security.protocol": protocol.upper(), "sasl.mechanism": mechanism}.items() <= made.options.items()
    assert made.jaas is not None and LOGIN_MODULES[mechanism] in made.jaas and f'password="{password}"' in made.jaas
    assert password not in json.dumps(dict(made.options))
    assert {name: "7" for name in more.keys() & SHARED_KEYS}.items() <= made.options.items()
    assert not made.options.keys() & LIBRDKAFKA_KEYS


KNOWN = {*TRANSLATED_KEYS, *SHARED_KEYS, *LIBRDKAFKA_KEYS, "sasl.mechanisms"}


@given(st.text(min_size=1, max_size=30).filter(lambda key: key not in KNOWN))
def test_a_key_without_a_translation_is_refused_by_its_name(key: str) -> None:
    with pytest.raises(ConfigError) as error:
        translate({key: "1"})
    assert str(error.value).startswith(f"{key}: ") and "; " in str(error.value)


def test_a_certificate_and_its_key_become_one_file_that_java_reads_without_a_password() -> None:
    authority = Authority()
    own = authority.signed(password="of the key")
    pair = {"certificate.pem": own.certificate, "key.pem": own.key, "key.password": "of the key"}
    given = {"ca.pem": f"some words\n{authority.pem}", **pair, "endpoint.identification.algorithm": "none"}
    made = translate({"security.protocol": "SSL", **{f"ssl.{name}": value for name, value in given.items()}})
    stores = {"truststore.type": "PEM", "truststore.location": f"{{folder}}/{CA}", "keystore.type": "PEM",
              "keystore.location": f"{{folder}}/{KEYSTORE}", "endpoint.identification.algorithm": ""}  # fmt: skip
    assert made.jaas is None
    assert made.options == {"security.protocol": "SSL", **{f"ssl.{name}": value for name, value in stores.items()}}
    assert made.files[CA] == authority.pem
    assert made.files[KEYSTORE].startswith("-----BEGIN PRIVATE KEY-----") and own.certificate in made.files[KEYSTORE]
    assert load_pem_private_key(made.files[KEYSTORE].encode(), None)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sasl.usernme": "u"}, "sasl.usernme: "),
        ({"security.protocol": "TLS"}, "security.protocol: "),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "sasl.mechanism: got GSSAPI"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism: "),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u"}, "sasl.password: missing"),
        ({"security.protocol": "SSL", "ssl.ca.pem": "none"}, "ssl.ca.pem: "),
        ({"security.protocol": "SSL", "ssl.key.pem": "none"}, "ssl.certificate.pem: missing"),
        ({"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"}, "enable.ssl."),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_the_key_and_the_remedy(values: dict[str, str], message: str) -> None:
    with refused(message):
        translate(values)


@pytest.mark.parametrize(("password", "message"), [(None, "ssl.key.password: "), ("no", "ssl.key.pem: ")])
def test_a_key_that_cannot_be_opened_is_refused(password: str | None, message: str) -> None:
    own = Authority().signed(password="right")
    given = {"security.protocol": "SSL", "ssl.certificate.pem": own.certificate, "ssl.key.pem": own.key}
    with pytest.raises(ConfigError, match=f"^{message}"):
        translate(given if password is None else {**given, "ssl.key.password": password})
