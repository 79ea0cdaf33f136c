"""External clusters: Connections, preflight checks, experiments, and one-line errors."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import select
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from faultline.installation.airflow import airflow_environment
from faultline.installation.java import find_java
from faultline.installation.kafka import delete_own_topics
from faultline.installation.targets import kafka_preflight, spark_preflight
from faultline.installation.targets.connection_specs import ConnectionSpec
from faultline.installation.targets.credential_files import write_target
from faultline.installation.targets.preflight import run_preflight
from faultline.installation.targets.target_lock import TargetLock
from faultline.system.endpoints import Endpoints
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.files import write_private
from faultline.system.settings import ROOT, Settings, load_settings
from faultline.system.target_registry import Target, register
from faultline.system.waiting import wait_until
from tests.support.certificates import Authority
from tests.support.external_cluster import (
    PASSWORDS,
    POWERLESS,
    SECRET,
    USER,
    ExternalKafka,
    ExternalSpark,
    conf,
    external_kafka,
    external_spark,
    spark_with_version,
)
from tests.support.installation import Installation
from tests.support.secret_search import holding

pytestmark = pytest.mark.timeout(900)
LAB = Target("lab")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExternalKafka]:
    with external_kafka(tmp_path_factory.mktemp("others") / "kafka") as made:
        yield made


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExternalSpark]:
    with external_spark(tmp_path_factory.mktemp("others") / "spark") as made:
        yield made


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    # With a space, which Spark settings must support.
    made = replace(load_settings(), home=tmp_path / "a home", results=tmp_path / "results")
    made.home.mkdir()
    (made.home / "jars").symlink_to(load_settings().jars, target_is_directory=True)
    (tmp_path / "shared").mkdir()
    return made


def registered(
    settings: Settings, login: dict[str, str], engine: ExternalSpark | None = None, **spark: Any
) -> Settings:
    """Register the target and return its settings."""
    engine = engine or ExternalSpark("spark://127.0.0.1:1", "http://127.0.0.1:1")
    extra = {"ui": engine.ui, "conf": conf()}
    specs = [
        ConnectionSpec(LAB.kafka, "kafka", extra=login),
        replace(ConnectionSpec(LAB.spark, "spark", engine.master, password=SECRET, extra=extra), **spark),
        ConnectionSpec(LAB.storage, "fs", extra={"path": str(settings.home.parent / "shared")}),
    ]
    register(settings, LAB)
    endpoints: Endpoints = write_target(settings, LAB, {one.id: one for one in specs})
    return settings.for_target(endpoints)


def broker_of(there: Settings) -> kafka_preflight.TargetBroker:
    return kafka_preflight.TargetBroker(there.endpoints.kafka, there.logins, LAB.kafka)


def topics_of(there: Settings) -> set[str]:
    admin: Any = importlib.import_module("confluent_kafka.admin")
    names = admin.AdminClient(broker_of(there).settings()).list_topics(timeout=120).topics
    # Internal topics of the broker.
    return {name for name in names if not name.startswith("__")}


def test_a_broker_with_tls_and_a_password_passes_the_checks(settings: Settings, broker: ExternalKafka) -> None:
    there = registered(settings, broker.login())
    before = topics_of(there)
    one = broker_of(there)
    assert kafka_preflight.check_connection(one) == f"{broker.bootstrap} reachable"
    assert kafka_preflight.check_login(one) == "login accepted, 1 broker"
    clock = kafka_preflight.check_rights(one)
    # Both are clocks of this machine.
    assert abs(clock.ahead_ms) <= clock.uncertain_ms + 1
    assert kafka_preflight.check_foreign_topics(one, lambda _: False) == "no foreign topic with the prefix faultline-"
    assert topics_of(there) == before


@pytest.mark.parametrize(
    ("user", "more", "why"),
    [
        (USER, {"sasl.password": "wrong"}, r"extra: sasl\.password: .*credentials"),
        (USER, {"ssl.ca.pem": Authority().pem}, r"extra: ssl\.ca\.pem: certificate of 127\.0\.0\.1 refused"),
        (POWERLESS, {}, r"missing right to create topics \("),
        (USER, {"client.idd": "x"}, r"extra: client\.idd: "),
    ],
)
def test_a_refusal_of_the_broker_is_one_line(
    settings: Settings, broker: ExternalKafka, user: str, more: dict[str, str], why: str
) -> None:
    with pytest.raises(ConfigError, match=f"^Connection faultline_kafka: {why}"):
        one = broker_of(registered(settings, broker.login(user, **more)))
        kafka_preflight.check_connection(one)
        kafka_preflight.check_login(one)
        kafka_preflight.check_rights(one)


@pytest.mark.thorough
def test_a_port_without_a_broker_is_reported(settings: Settings) -> None:
    class Page(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1024)
            self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Page) as page:
        threading.Thread(target=page.serve_forever, daemon=True).start()
        there = registered(settings, {"bootstrap.servers": f"127.0.0.1:{page.server_address[1]}"})
        with pytest.raises(ConfigError, match=r"extra: bootstrap\.servers: got a server"):
            kafka_preflight.check_login(broker_of(there))
        page.shutdown()


# Holds the target lock until its end, and reports when it has it.
HOLDER = """
import pickle, select, sys
from faultline.installation.targets.target_lock import TargetLock
broker, what = pickle.loads(bytes.fromhex(sys.argv[1]))
turn = TargetLock(broker, what, session_s=6.0)
turn.take(wait_s=60.0)
print("has it", flush=True)
while not select.select([sys.stdin], [], [], 0.2)[0]:
    turn.refresh()
turn.release()
"""


@contextmanager
def holding_target(broker: kafka_preflight.TargetBroker, what: str) -> Iterator[subprocess.Popen[bytes]]:
    request = pickle.dumps((broker, what)).hex()
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", HOLDER, request], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'include'}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.thorough
def test_the_target_lock_is_released_by_a_killed_experiment(settings: Settings, broker: ExternalKafka) -> None:
    one = broker_of(registered(settings, broker.login()))
    with holding_target(one, "first") as first:
        assert first.stdout is not None and first.stdout.readline() == b"has it\n"
        assert str(TargetLock(one, "").holder()).startswith("first of ")
        late = TargetLock(one, "late", session_s=6.0)
        try:
            with pytest.raises(InfrastructureError, match=r"^target: held by first of \S+@\S+ \("):
                late.take(wait_s=8.0)
            first.kill()
            late.take(wait_s=60.0)
        finally:
            late.release()
    assert TargetLock(one, "").holder() is None
    with holding_target(one, "one") as early, holding_target(one, "other") as other:
        assert early.stdout is not None and other.stdout is not None
        # Only one of them has it, in any order.
        ready, _, _ = select.select([early.stdout, other.stdout], [], [], 60)
        assert len(ready) == 1
        second = other if ready[0] is early.stdout else early
        assert select.select([second.stdout], [], [], 5) == ([], [], [])
        (early if second is other else other).communicate(b"\n", timeout=120)
        assert select.select([second.stdout], [], [], 30)[0]


@pytest.mark.thorough
def test_an_expired_certificate_is_reported(settings: Settings, tmp_path: Path) -> None:
    authority = Authority()
    with external_kafka(tmp_path / "kafka", authority=authority, own=authority.signed(expired=True)) as broker:
        with pytest.raises(ConfigError, match=r"^Connection faultline_kafka: extra: ssl\.ca\.pem: .*expired"):
            kafka_preflight.check_connection(broker_of(registered(settings, broker.login())))


def test_foreign_topics_are_kept(settings: Settings, broker: ExternalKafka) -> None:
    there, admin = registered(settings, broker.login()), importlib.import_module("confluent_kafka.admin")
    name = "faultline-20261121T061500Z-3fa9c1-input"
    client = admin.AdminClient(broker_of(there).settings())
    client.create_topics([admin.NewTopic(name, num_partitions=1, replication_factor=1)])[name].result()
    assert name in kafka_preflight.check_foreign_topics(broker_of(there), lambda _: False)
    assert name in topics_of(there)
    delete_own_topics(there, [name])
    wait_until(lambda: name not in topics_of(there), timeout_s=120, what="the end of the topic")


def test_a_cluster_passes_all_checks_and_no_secret_is_left(
    settings: Settings, broker: ExternalKafka, engine: ExternalSpark
) -> None:
    there, lines = registered(settings, broker.login(), engine), list[str]()
    assert run_preflight(settings, LAB, lines.append) is None, lines
    assert [line.partition(":")[0] for line in lines] == [
        "kafka", "kafka login", "kafka rights", "kafka topics", "storage", "spark", "spark version",
        "spark login and storage",
    ]  # fmt: skip
    assert lines[-1].endswith(f"share {there.endpoints.storage}")
    assert list(Path(there.endpoints.storage).iterdir()) == []
    readable = [path for path in holding([*PASSWORDS.values(), SECRET], [settings.home]) if path.stat().st_mode & 0o077]
    assert readable == []


@pytest.mark.thorough
def test_a_wrong_secret_is_reported_within_a_minute(
    settings: Settings, broker: ExternalKafka, engine: ExternalSpark
) -> None:
    there = registered(settings, broker.login(), engine, password="another")
    with pytest.raises(ConfigError, match=r"^Connection faultline_spark: password: "):
        spark_preflight.run_probe(there, LAB.spark, LAB.storage, find_java().home, 1)
    # An aborted check leaves nothing, neither remote nor local.
    assert list(Path(there.endpoints.storage).iterdir()) == []
    assert not [one for one in there.logins.iterdir() if one.is_dir()] and (there.logins / spark_preflight.LOG).exists()


@pytest.mark.thorough
def test_a_missing_storage_is_reported(settings: Settings, broker: ExternalKafka, engine: ExternalSpark) -> None:
    there = registered(settings, broker.login(), engine)
    Path(there.endpoints.storage).rmdir()
    with pytest.raises(ConfigError, match=r"^Connection faultline_storage: extra: path: "):
        spark_preflight.run_probe(there, LAB.spark, LAB.storage, find_java().home, 1)


def test_an_unreachable_master_is_reported(settings: Settings, broker: ExternalKafka) -> None:
    with pytest.raises(InfrastructureError, match=r"^Connection faultline_spark: the master's page .* does not answer"):
        spark_preflight.check_master(registered(settings, broker.login()), LAB.spark)


def test_an_invalid_target_refuses_a_run(installation: Installation, broker: ExternalKafka, tmp_path: Path) -> None:
    # While another experiment runs, the request waits for it instead, and is refused later.
    installation.given["FAULTLINE_MACHINE"] = str(tmp_path)
    login = tmp_path / "kafka.json"
    write_private(login, json.dumps(broker.login(**{"sasl.password": "wrong"})))
    options = ("--kafka", str(login), "--spark", "spark://127.0.0.1:7077", "--storage", str(tmp_path / "shared"))
    assert installation.run("target", "add", "lab", *options).returncode == 0
    done = installation.run("run", "word_count", "target=lab")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "Connection faultline_kafka: extra: sasl.password: " in done.stderr.splitlines()[-1]
    assert not installation.settings.attempts.exists()
    assert not (installation.home / "supervisord.pid").exists(), "no services were started for it"


RECREATE = """
import sys
from airflow.models.connection import Connection
from airflow.utils.session import create_session
with create_session() as session:
    made = session.query(Connection).filter_by(conn_id=sys.argv[1]).one()
    session.delete(made)
    session.flush()
    session.add(Connection(conn_id=sys.argv[1], conn_type="spark", host="spark://127.0.0.1:7078"))
"""


def recreate_connection(installation: Installation, conn_id: str) -> None:
    """Delete a Connection and create it again, bypassing Faultline."""
    environment = {**os.environ, **airflow_environment(installation.settings)}
    subprocess.run([sys.executable, "-c", RECREATE, conn_id], env=environment, check=True, timeout=120)


def unreachable_options(tmp_path: Path) -> tuple[str, ...]:
    """Return the options of an unreachable target, Kafka's first."""
    login = tmp_path / "kafka.json"
    write_private(login, json.dumps({"bootstrap.servers": "127.0.0.1:1"}))
    return ("--kafka", str(login), "--spark", "spark://127.0.0.1:7077", "--storage", str(tmp_path / "shared"))


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_invalid_target_options_are_refused(installation: Installation, tmp_path: Path) -> None:
    """Uses Airflow's tables, without a cluster."""
    options = unreachable_options(tmp_path)
    nothing = installation.run("target", "add", "lab")
    assert nothing.returncode == 2 and "--kafka: missing" in nothing.stderr
    wrong = installation.run("target", "add", "lab", *options[:2], "--spark", "master:7077")
    assert wrong.returncode == 2 and "faultline: --spark: host: " in wrong.stderr
    assert "no target is registered" in installation.run("target", "list").stderr

    assert installation.run("target", "add", "lab", *options).stderr.count(": created") == 3

    # Connections that are shared, or not created by this command, are kept.
    second = installation.run("target", "add", "second", "--own-connections", "--share-kafka", "lab", *options[2:])
    assert second.returncode == 0 and second.stderr.count(": created") == 2, second.stderr
    removed = installation.run("target", "remove", "lab")
    assert removed.returncode == 0, removed.stderr
    assert "faultline_kafka: kept" in removed.stderr
    assert removed.stderr.count(": removed") == 2
    assert "'lab' is not registered" in installation.run("target", "remove", "lab").stderr
    # A Connection that was recreated by hand belongs to the user.
    recreate_connection(installation, "faultline_spark_second")
    last = installation.run("target", "remove", "second")
    assert last.returncode == 0 and last.stderr.count(": removed") == 2, last.stderr
    assert "faultline_spark_second: kept" in last.stderr


@pytest.mark.thorough
def test_a_registered_target_keeps_its_connections(installation: Installation, tmp_path: Path) -> None:
    options, other = unreachable_options(tmp_path), tmp_path / "other.json"
    write_private(other, json.dumps({"bootstrap.servers": "127.0.0.1:2"}))
    part = installation.run("target", "add", "lab", *options[:2])
    assert part.returncode == 2 and "target add lab --spark" in part.stderr, part.stderr
    assert installation.run("target", "add", "lab", *options).stderr.count(": created") == 2
    differs = installation.run("target", "add", "lab", *options[2:], "--kafka", str(other))
    assert differs.returncode == 2, differs.stderr
    assert "exists with other values (extra: bootstrap.servers)" in differs.stderr
    assert "./faultline target remove lab" in differs.stderr
    second = installation.run("target", "add", "second", "--own-connections", "--share-kafka", "lab", *options[2:])
    assert second.returncode == 0 and second.stderr.count(": created") == 2, second.stderr
    again = installation.run("target", "add", "second", *options[2:])
    assert again.returncode == 0 and "Connection faultline_spark_second: exists" in again.stderr, again.stderr
    moved = installation.run("target", "add", "lab", "--own-connections", *options)
    assert moved.returncode == 2 and "./faultline target remove lab" in moved.stderr, moved.stderr
    listed = installation.run("target", "list").stdout
    assert "second  not checked yet  faultline_kafka  faultline_spark_second" in listed
    dry = installation.run("run", "word_count", "target=second", "--dry-run")
    assert dry.returncode == 0 and "executor" in dry.stdout, dry.stderr


@pytest.mark.thorough
def test_a_worker_of_another_version_is_reported(settings: Settings, broker: ExternalKafka, tmp_path: Path) -> None:
    older = spark_with_version("4.0.3", tmp_path / "older")
    with external_spark(tmp_path / "spark", of_workers=older) as engine:
        registered(settings, broker.login(), engine)
        lines: list[str] = []
        assert run_preflight(settings, LAB, lines.append) is not None
    refused = next(line for line in lines if line.startswith("spark version: FAILED:"))
    assert "got Spark 4.0.3; expected" in refused and "\n" not in refused


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_an_experiment_runs_on_a_target(
    installation: Installation, broker: ExternalKafka, engine: ExternalSpark, tmp_path: Path
) -> None:
    login, more, shared = tmp_path / "kafka.json", tmp_path / "spark.json", tmp_path / "shared"
    write_private(login, json.dumps(broker.login()))
    write_private(more, json.dumps({"secret": SECRET, "ui": engine.ui, "conf": conf()}))
    shared.mkdir()
    options = ("--kafka", str(login), "--spark", engine.master, "--spark-file", str(more), "--storage", str(shared))
    added = installation.run("target", "add", "lab", *options)
    assert added.returncode == 0 and added.stderr.count(": created") == 3, added.stderr
    again = installation.run("target", "add", "lab", *options)
    assert again.returncode == 0 and again.stderr.count(": exists") == 3, again.stderr
    checked = installation.run("target", "check", "lab")
    assert checked.returncode == 0 and "FAILED:" not in checked.stdout, checked.stdout + checked.stderr

    refused = installation.run("run", "word_count", "target=lab", "fault=kafka")
    assert refused.returncode == 2 and "fault: kafka: " in refused.stderr

    done = installation.run("run", "word_count", "target=lab", "fault=executor")
    record = json.loads(done.stdout)
    assert record["status"] in ("valid", "unmet", "invalid"), record["reasons"]
    assert record["config"]["target"] == "lab"
    metrics = record["metrics"]
    assert metrics["audit"]["lost"] == metrics["audit"]["overcounted"] == metrics["audit"]["unexpected"] == 0
    assert metrics["cpu_cores"]["kafka"] is None and metrics["cpu_cores"]["executors"] > 0
    assert "lab" in metrics["not_measured"]["cpu_cores.kafka"]
    assert metrics["recovery"]["detection_s"] is not None
    clock = record["environment"]["latency_clock"]
    # Asked at start and end, of this machine's clock.
    assert clock["host"] == "kafka" and abs(clock["ahead_ms"]) <= clock["uncertain_ms"] + 1
    assert not list((shared / "faultline").iterdir())
    secrets = [*PASSWORDS.values(), SECRET, json.dumps(PASSWORDS[USER])[1:-1]]
    assert holding(secrets, [installation.results]) == set()
