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
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from faultline.base.endpoints import Endpoints
from faultline.base.errors import ConfigError, InfrastructureError
from faultline.base.secrets import HARNESS, login_file
from faultline.base.settings import Settings
from faultline.base.target import Target, keep
from faultline.cluster.targets import kafka, rules, spark, storage
from faultline.cluster.targets.clock import Clock
from faultline.cluster.targets.kafka import Broker, _clock, own_certificate_holds, reached
from faultline.cluster.targets.rules import check_target, not_measured, require_storage, require_victims
from faultline.experiment.config import parse_configuration
from tests.support.certificates import Authority, Pair

LOCAL = "127.0.0.1"


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
def tls_server(folder: Path, own: Pair) -> Iterator[int]:
    """Shakes hands with whoever comes; gives its port."""
    (folder / "own.pem").write_text(own.key + own.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "own.pem")
    with socket.create_server((LOCAL, 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    came, _ = listening.accept()
                except OSError:
                    return
                try:
                    context.wrap_socket(came, server_side=True).close()
                except OSError:
                    came.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(5)


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


def test_a_certificate_of_ones_own_that_is_over_is_told(tmp_path: Path) -> None:
    authority = Authority()
    own_certificate_holds(broker(tmp_path, 1, **{"ssl.certificate.pem": authority.signed().certificate}))
    with pytest.raises(ConfigError, match=r"ssl\.certificate\.pem: holds from .*; renew it$"):
        own_certificate_holds(
            broker(tmp_path, 1, **{"ssl.certificate.pem": authority.signed(expired=True).certificate})
        )


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


def test_the_fastest_record_tells_the_clock() -> None:
    # The broker's clock is 40 ms ahead; the second record took 2 ms, the first half a second.
    found = _clock([(10.0, 10.5), (11.0, 11.002)], [10.49, 11.041])
    assert found == Clock(pytest.approx(40.5), pytest.approx(1.5))


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
