"""What stops an experiment on a target is named before one starts: certificates, secrets, versions, hosts, storage."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from faultline.base.endpoints import Endpoints
from faultline.base.errors import ConfigError, FaultlineError, InfrastructureError
from faultline.base.secrets import HARNESS, login_file
from faultline.base.settings import Settings
from faultline.base.target import Target, folder_of, keep, write_endpoints
from faultline.cluster.targets import kafka, look, rules, spark, storage
from faultline.cluster.targets.clock import Clock
from faultline.cluster.targets.java_kafka import KEYSTORE
from faultline.cluster.targets.kafka import Broker, _clock, reached
from faultline.cluster.targets.rules import check_target, not_measured, require_storage, require_victims
from faultline.experiment.config import parse_configuration
from tests.support.acceptor import LOCAL, accepting
from tests.support.certificates import Authority, Pair


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    made = Settings(tmp_path, tmp_path / "home", tmp_path / "results")
    keep(made, Target("lab"))
    return made


def endpoints(page: str = "http://127.0.0.1:1", **more: Any) -> Endpoints:
    return Endpoints(
        kafka=f"{LOCAL}:1", kafka_detoured="", kafka_detour="", engine="spark://127.0.0.1:7077", engine_ui=page,
        airflow="", target="lab", **more,
    )  # fmt: skip


@contextmanager
def tls_server(folder: Path, own: Pair, clients: Authority | None = None) -> Iterator[int]:
    """Shakes hands with whoever comes, or only with whom that authority signed; gives its port."""
    (folder / "own.pem").write_text(own.key + own.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "own.pem")
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=clients.pem)
        # Later versions look at a client's after the handshake.
        context.maximum_version = ssl.TLSVersion.TLSv1_2

    def play(came: socket.socket) -> None:
        try:
            context.wrap_socket(came, server_side=True).close()
        except OSError:
            came.close()

    with accepting(play) as port:
        yield port


def broker(folder: Path, port: int, **login: str) -> Broker:
    login_file(folder, HARNESS).write_text(json.dumps(login))
    login_file(folder, HARNESS).chmod(0o600)
    (folder / "endpoints.json").touch()
    return Broker(f"{LOCAL}:{port}", folder, "faultline_kafka")


@pytest.mark.parametrize(
    ("expired", "known", "why"),
    [
        (False, True, None),
        (True, True, r"certificate has expired\); renew the certificate"),
        (False, False, r"(certificate signature failure|unable to get local issuer certificate)\); renew the "),
    ],
)
def test_a_certificate_that_cannot_be_trusted_is_told_with_its_reason(
    tmp_path: Path, expired: bool, known: bool, why: str | None
) -> None:
    authority = Authority()
    given = {"security.protocol": "SASL_SSL", "ssl.ca.pem": (authority if known else Authority()).pem}
    with tls_server(tmp_path, authority.signed(expired=expired)) as port:
        there = broker(tmp_path, port, **given)
        if why is None:
            assert reached(there) == f"{LOCAL}:{port} answers"
        else:
            with pytest.raises(ConfigError, match=rf"^Connection faultline_kafka: extra: ssl\.ca\.pem: .*{why}"):
                reached(there)


def test_a_broker_that_does_not_speak_tls_or_is_away_is_told(tmp_path: Path) -> None:
    with socket.create_server((LOCAL, 0)) as listening:
        port = listening.getsockname()[1]

        def answer() -> None:
            came, _ = listening.accept()
            came.recv(1)
            came.sendall(b"no TLS here, be sure of that")
            came.close()

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(ConfigError, match=r"^Connection faultline_kafka: extra: security\.protocol: "):
            reached(broker(tmp_path, port, **{"security.protocol": "SSL", "ssl.ca.pem": Authority().pem}))
    with pytest.raises(
        InfrastructureError, match=r"^Connection faultline_kafka: extra: bootstrap\.servers: .* refused"
    ):
        reached(broker(tmp_path, port))


def with_own(folder: Path, port: int, authority: Authority, own: Pair) -> Broker:
    """As `write_target` leaves the login of who has a certificate."""
    (folder / KEYSTORE).write_text(own.key + own.certificate)
    given = {"ssl.ca.pem": authority.pem, "ssl.certificate.pem": own.certificate, "ssl.key.pem": own.key}
    return broker(folder, port, **{"security.protocol": "SSL", **given})


def test_a_certificate_of_ones_own_is_shown_and_one_that_is_refused_told(tmp_path: Path) -> None:
    authority = Authority()
    strangers, own = Authority(), tmp_path / "own"
    own.mkdir()
    with tls_server(tmp_path, authority.signed(), clients=authority) as port:
        assert reached(with_own(own, port, authority, authority.signed())) == f"{LOCAL}:{port} answers"
        given = {"security.protocol": "SSL", "ssl.ca.pem": authority.pem}
        for make in (lambda: with_own(own, port, authority, strangers.signed()), lambda: broker(own, port, **given)):
            with pytest.raises(ConfigError, match=r"^Connection faultline_kafka: extra: ssl\.certificate\.pem: .* do"):
                reached(make())


def damaged(pem: str) -> str:
    """One whose middle was lost."""
    lines = pem.splitlines()
    return "\n".join([lines[0], "no!base64", *lines[-1:]]) + "\n"


def test_what_cannot_be_read_or_used_is_told_by_its_key_before_anybody_is_asked(tmp_path: Path) -> None:
    authority = Authority()
    own, other = authority.signed(), authority.signed()
    for pair, ca, why in (
        (own, damaged(authority.pem), r"ssl\.ca\.pem: cannot be read \(.*\); give it whole$"),
        (
            Pair(damaged(own.certificate), own.key),
            authority.pem,
            r"ssl\.certificate\.pem: cannot be read; give",
        ),
        (Pair(own.certificate, other.key), authority.pem, r"ssl\.key\.pem: is not that of ssl\.certificate\.pem \("),
        (authority.signed(expired=True), authority.pem, r"ssl\.certificate\.pem: holds from .*; renew it$"),
    ):
        there = with_own(tmp_path, 1, authority, pair)
        login = {**json.loads(login_file(tmp_path, HARNESS).read_text()), "ssl.ca.pem": ca}
        login_file(tmp_path, HARNESS).write_text(json.dumps(login))
        with pytest.raises(ConfigError, match=rf"^Connection faultline_kafka: extra: {why}") as refused:
            reached(there)
        assert "\n" not in str(refused.value)


class Brokers:
    """Of a cluster, as its admin client sees them; `answers`: what each look at a topic comes to."""

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)

    def describe_configs(self, resources: list[str], request_timeout: float) -> dict[str, Future[None]]:
        told: Future[None] = Future()
        answer = self.answers.pop(0)
        if answer == KafkaError.NO_ERROR:
            told.set_result(None)
        else:
            told.set_exception(KafkaException(KafkaError(answer)))
        return {resources[0]: told}


def test_a_topic_of_which_a_broker_has_not_heard_yet_is_asked_for_again() -> None:
    brokers = Brokers(KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.NO_ERROR)
    kafka._describe(brokers, "topic")
    assert brokers.answers == []


@pytest.mark.parametrize("answer", [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED])
def test_a_topic_that_stays_away_or_is_refused_is_told(answer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "HEARD_S", 0)
    brokers = Brokers(answer, answer, KafkaError.NO_ERROR)
    with pytest.raises(KafkaException):
        kafka._describe(brokers, "topic")
    assert KafkaError.NO_ERROR in brokers.answers


class Cluster:
    """Of so many servers, as its admin client sees it. `trouble`: what each request comes to, by its name, when it has
    been done."""

    def __init__(self, servers: int = 1, **trouble: int) -> None:
        self.servers, self.trouble, self.topics, self.listed = servers, trouble, dict[str, int](), False

    def _told(self, what: str) -> Future[None]:
        told: Future[None] = Future()
        if what in self.trouble:
            told.set_exception(KafkaException(KafkaError(self.trouble[what])))
        else:
            told.set_result(None)
        return told

    def create_topics(self, new: list[Any], request_timeout: float) -> dict[str, Future[None]]:
        self.topics |= {one.topic: one.num_partitions for one in new}
        return {one.topic: self._told("create") for one in new}

    def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, Future[None]]:
        return {one: self._told("describe") for one in resources}

    def delete_topics(self, names: list[str], request_timeout: float) -> dict[str, Future[None]]:
        for name in names:
            del self.topics[name]
        return {name: self._told("delete") for name in names}

    def list_topics(self, timeout: float) -> SimpleNamespace:
        # It still answers when it is asked first.
        if self.listed and "list" in self.trouble:
            raise KafkaException(KafkaError(self.trouble["list"]))
        self.listed = True
        return SimpleNamespace(brokers=range(self.servers), topics=dict(self.topics))


def asked_of(cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """What records tell of servers each of which is 10 ms ahead of the one before, the first of this machine."""
    monkeypatch.setattr("confluent_kafka.admin.AdminClient", lambda settings: cluster)
    monkeypatch.setattr(kafka, "_written", lambda *_: [(1.0, 1.001)])
    monkeypatch.setattr(kafka, "_read", lambda *asked: [[1.0 + 0.01 * number] for number in range(asked[-1])])
    return kafka.worked(broker(folder, 1))


def test_each_server_tells_its_clock_and_all_of_them_are_within_what_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster()
    assert asked_of(cluster, tmp_path, monkeypatch) == Clock(pytest.approx(0), pytest.approx(1))
    assert asked_of(Cluster(servers=3), tmp_path, monkeypatch) == Clock(pytest.approx(10), pytest.approx(11))
    assert cluster.topics == {}


@pytest.mark.parametrize("what", ["create", "describe", "delete", "list"])
def test_a_broker_that_goes_meanwhile_keeps_no_topic_and_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    cluster = Cluster(**{what: KafkaError._TIMED_OUT})
    with pytest.raises(InfrastructureError, match=f"^Connection faultline_kafka: could not {what} faultline-probe-"):
        asked_of(cluster, tmp_path, monkeypatch)
    assert cluster.topics == {}


def test_records_go_to_each_server_and_come_back_with_their_times(tmp_path: Path) -> None:
    # Three servers that librdkafka plays itself.
    played = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 3, "log_level": 0})
    servers = [f"{one.host}:{one.port}" for one in played.list_topics(timeout=10).brokers.values()]
    there = replace(broker(tmp_path, 1), bootstrap=",".join(servers))
    sent = [kafka._written(there, "t", number) for number in range(3)]
    given = kafka._read(there, "t", 3)
    assert [len(one) for one in given] == [kafka.ASKED_TIMES] * 3
    for before, at in zip(sent, given, strict=True):
        clock = _clock(before, at)
        assert abs(clock.ahead_ms) <= clock.uncertain_ms + 1, "they are this process"


def test_a_topic_that_is_there_already_is_somebody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(create=KafkaError.TOPIC_ALREADY_EXISTS)
    with pytest.raises(ConfigError, match="is there, and somebody else's; it stays as it is"):
        asked_of(cluster, tmp_path, monkeypatch)
    assert len(cluster.topics) == 1


def test_the_fastest_record_tells_the_clock() -> None:
    # The broker's clock is 40 ms ahead; the second record took 2 ms, the first half a second.
    found = _clock([(10.0, 10.5), (11.0, 11.002)], [10.49, 11.041])
    assert found == Clock(pytest.approx(40.5), pytest.approx(1.5))


LOOKS = {
    "kafka": "kafka.reached", "kafka login": "kafka.logged_in", "kafka rights": "kafka.worked",
    "kafka topics": "kafka.others_topics", "storage": "storage.looked_at", "host a": "ssh.greeted",
    "spark": "spark.alive", "spark version": "spark.versions", "spark login and storage": "spark.probed",
}  # fmt: skip
AT_ONCE = ["kafka", "kafka login", "storage", "host a", "spark", "spark version"]


def test_what_takes_long_is_looked_at_when_something_changed_and_the_rest_each_time(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, looked, wrong = Target("lab", hosts=("a",)), list[str](), dict[str, FaultlineError]()
    keep(settings, lab)
    folder = folder_of(settings, "lab")
    folder.mkdir()
    write_endpoints(settings, endpoints(logins=str(folder), hosts={"a": {"host": "10.0.0.7", "port": 22}}))
    (folder / look.SAID).write_text("as it was")
    monkeypatch.setattr(look, "find_java", lambda _: SimpleNamespace(home=Path("/java")))
    for what, function in LOOKS.items():

        def told(*_: object, what: str = what) -> dict[str, Any]:
            looked.append(what)
            if what in wrong:
                raise wrong[what]
            return {}

        monkeypatch.setattr(f"faultline.cluster.targets.{function}", told)

    def looks() -> list[str]:
        looked.clear()
        look.require_well(settings, lab, lambda _: None)
        return list(looked)

    assert looks() == list(LOOKS)
    assert looks() == AT_ONCE
    for what in AT_ONCE:
        wrong[what] = ConfigError(f"of {what}")
        with pytest.raises(ConfigError, match=f"^of {what}$"):
            looks()
        wrong.clear()
    monkeypatch.setattr(look, "version", lambda _: "4.9.9")
    assert looks() == list(LOOKS), "the Spark that is installed here is another"
    assert looks() == AT_ONCE
    (folder / look.SAID).write_text("another password")
    assert looks() == list(LOOKS)


@contextmanager
def pages(**contents: str) -> Iterator[str]:
    """A server of these pages, by path; gives its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = contents.get(self.path.strip("/"))
            self.send_response(200 if content is not None else 404)
            self.end_headers()
            self.wfile.write((content or "").encode())

        def log_message(self, *_: object) -> None: ...

    with HTTPServer((LOCAL, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://{LOCAL}:{server.server_port}"
        server.shutdown()


def page_of(version: str) -> str:
    return f'<h3><a href="/">logo</a>\n<span class="version me-3">{version}</span> Spark Master</h3>'


def test_a_worker_of_another_version_is_named(settings: Settings) -> None:
    with pages(master=page_of("4.2.0"), old=page_of("4.1.1"), same=page_of("4.2.0")) as address:
        there = settings.at(endpoints(f"{address}/master"))

        def state(*names: str) -> dict[str, Any]:
            return {"workers": [
                {"state": "ALIVE", "host": "10.0.0.7", "port": number, "webuiaddress": f"{address}/{name}"}
                for number, name in enumerate(names)
            ] + [{"state": "DEAD", "host": "10.0.0.8", "port": 9, "webuiaddress": f"{address}/old"}]}  # fmt: skip

        assert spark.versions(there, "faultline_spark", state("same"), "4.2.0") == "Spark 4.2.0 on 2 pages"
        with pytest.raises(
            ConfigError, match=r"^Connection faultline_spark: the worker 10\.0\.0\.7:1 is Spark 4\.1\.1"
        ):
            spark.versions(there, "faultline_spark", state("same", "old"), "4.2.0")
        assert spark.versions(there, "faultline_spark", state("none"), "4.2.0").endswith(
            "no page of the worker 10.0.0.7:0 says its version"
        )


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("WARN Failed to connect to master h:7077\nCaused by: javax.security.sasl.SaslException: DIGEST-MD5: digest "
         "response format violation. Mismatched response.", "Connection s: password: the cluster does not accept"),
        ("Caused by: javax.crypto.AEADBadTagException: Tag mismatch!", "Connection s: password: the cluster does not"),
        ("java.io.InvalidClassException: org.apache.spark.rpc.netty.RpcEndpointVerifier; local class incompatible",
         "Connection s: its Spark is another version"),
        ("ERROR StandaloneSchedulerBackend: All masters are unresponsive! Giving up.", "Connection s: the master does"),
        ("WARN TaskSchedulerImpl: Initial job has not accepted any resources; check", "Connection s: workers have no"),
    ],
)  # fmt: skip
def test_what_a_driver_logs_becomes_one_line(line: str, why: str) -> None:
    trouble = spark.trouble_in(f"INFO started\n{line}\n", "s")
    assert trouble is not None and str(trouble).startswith(why) and "\n" not in str(trouble)


def test_a_driver_that_works_is_in_no_trouble() -> None:
    assert spark.trouble_in("INFO SecurityManager: authentication enabled; ui acls disabled\n", "s") is None


def executor(**more: Any) -> dict[str, Any]:
    return {"host": "w1", "python": "3.11.2", "user": 0, "sees": True, "wrote": None, "unreadable": [], **more}


def test_storage_that_executors_do_not_share_is_told_by_host() -> None:
    spark.told_by([executor(), executor(host="w2")], "s", "t", Path("/shared"))
    with pytest.raises(
        ConfigError, match=r"^Connection t: extra: path: executors on w2 .* cannot use /shared: do not s"
    ):
        spark.told_by([executor(), executor(host="w2", sees=False)], "s", "t", Path("/shared"))
    with pytest.raises(ConfigError, match=r"cannot use /shared: Permission denied; "):
        spark.told_by([executor(wrote="Permission denied")], "s", "t", Path("/shared"))
    with pytest.raises(
        ConfigError, match=r"^Connection s: executors on w1 \(user 0\) cannot read /x\.jar; run workers"
    ):
        spark.told_by([executor(unreadable=["/x.jar"])], "s", "t", Path("/shared"))


def test_a_storage_whose_clock_is_off_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = replace(endpoints(), storage=str(tmp_path))
    assert storage.looked_at(told, "t").startswith(f"{tmp_path} can be written, its clock is ")
    assert list(tmp_path.iterdir()) == []
    now = storage.time.time
    monkeypatch.setattr(storage.time, "time", lambda: now() - 60)
    with pytest.raises(ConfigError, match=r"^Connection t: extra: path: the clock of .* is \+60\d\d\d ms off this"):
        storage.looked_at(told, "t")
    assert list(tmp_path.iterdir()) == []


def test_programs_that_open_their_checkpoint_need_a_folder() -> None:
    hdfs = replace(endpoints(), storage="hdfs://n:1/x")
    for workload, fault in (("nexmark", "none"), ("topology", "none")):
        asked = parse_configuration({"target": "lab", "workload": workload, "fault": fault})
        require_storage(endpoints(), asked)
        with pytest.raises(ConfigError, match=f"^workload: {workload} reads its own checkpoint"):
            require_storage(hdfs, asked)
    require_storage(hdfs, parse_configuration({"target": "lab"}))


def test_only_what_can_be_reached_may_be_a_victim(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = [{"state": "ALIVE", "host": LOCAL}, {"state": "ALIVE", "host": "10.0.0.7"}]
    monkeypatch.setattr(rules, "master_state", lambda _: {"workers": workers})
    kill, control = parse_configuration({"target": "lab"}), parse_configuration({"target": "lab", "fault": "none"})
    with pytest.raises(ConfigError, match=r"^fault: executors of lab run on 10\.0\.0\.7 as well, which no Connection"):
        require_victims(endpoints(), kill)
    require_victims(endpoints(), control)
    require_victims(endpoints(), parse_configuration({"target": "lab", "fault": "driver"}))
    require_victims(endpoints(hosts={"a": {"host": "10.0.0.7"}}), kill)
    missing = not_measured(endpoints())
    assert set(missing) == {f"{one}.{role}" for one in ("cpu_cores", "rss_mb")
                            for role in ("kafka", "executors", "python_workers")}  # fmt: skip
    assert "10.0.0.7" in missing["cpu_cores.executors"]
    assert set(not_measured(endpoints(hosts={"a": {"host": "10.0.0.7"}}))) == {"cpu_cores.kafka", "rss_mb.kafka"}
    with pytest.raises(ConfigError, match=r"^fault: where executors of lab run is not known beforehand; "):
        require_victims(endpoints(""), kill)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"target": "lap"}, "target: no target is called 'lap'; did you mean lab"),
        ({"fault": "kafka"}, "fault: a kafka of lab is no victim: its process does not bear the mark"),
        ({"fault": "worker"}, "fault: a worker of lab is no victim"),
        ({"fault": "any"}, "fault: a worker of lab is no victim"),
        ({"commit_mode": "none"}, "commit_mode: none keeps state on this machine's RAM disk"),
        ({"fault_plan": {"faults": [{"victim": "kafka", "action": "delay", "at_s": 40, "duration_s": 5,
                                     "delay_ms": 100}]}}, "fault_action: delay needs a broker or hosts that `up`"),
        ({"workload": "program", "application": "/a.py", "fault": "none"}, "workload: program comes to the broker th"),
        ({"workload": "topology", "parallelism": "1-2-2-1", "mechanisms": "all", "topology": {"queue": "memcached"}},
         "workload: topology needs a memcached beside it, which listens for the embedded"),
    ],
)  # fmt: skip
def test_what_a_target_cannot_have_is_refused_by_its_key(settings: Settings, values: dict[str, Any], why: str) -> None:
    check_target(settings, parse_configuration({}))
    check_target(settings, parse_configuration({"target": "lab"}))
    with pytest.raises(ConfigError) as refused:
        check_target(settings, parse_configuration({"target": "lab", **values}))
    assert str(refused.value).startswith(why) and "\n" not in str(refused.value)


def test_where_an_experiment_ran_is_part_of_what_it_is() -> None:
    usual = parse_configuration({})
    assert parse_configuration({"target": "embedded"}).config_id == usual.config_id
    assert parse_configuration({"target": "lab"}).config_id != usual.config_id
