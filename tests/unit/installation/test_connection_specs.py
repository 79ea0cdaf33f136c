"""Connections of a target: accepted completely, or refused by Connection and key."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from faultline.engines.spark.settings import properties_file
from faultline.installation.targets.connection_specs import (
    ConnectionSpec,
    check_spec,
    digest,
    parse_kafka,
    parse_spark,
    parse_storage,
)
from faultline.installation.targets.credential_files import write_target
from faultline.installation.targets.target_options import TargetOptions, spec_of
from faultline.orchestration import connections
from faultline.system.endpoints import Endpoints
from faultline.system.errors import ConfigError
from faultline.system.files import write_private
from faultline.system.kafka import kafka_client, kafka_options
from faultline.system.secrets import HARNESS, WORKLOAD, jaas_file
from faultline.system.settings import Settings
from faultline.system.target_registry import (
    Target,
    describe_addresses,
    endpoints_at,
    find_target,
    load_targets,
    make_target,
    register,
    target_folder,
    unregister,
)
from tests.support.certificates import Authority
from tests.support.refusals import refused

PASSWORD, SECRET = 'pa"ss\\word', "of the \\cluster"
LAB = Target("lab")


def specs(storage: str = "/shared", **kafka: Any) -> dict[str, ConnectionSpec]:
    login = {
        "bootstrap.servers": "127.0.0.1:9093,127.0.0.1:9094", "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "bench", "sasl.password": PASSWORD,
    }  # fmt: skip
    return {
        LAB.kafka: ConnectionSpec(LAB.kafka, "kafka", extra={**login, **kafka}),
        LAB.spark: ConnectionSpec(
            LAB.spark, "spark", "spark://127.0.0.1", 7077, password=SECRET,
            extra={"conf": {"spark.network.crypto.enabled": "true"}},
        ),
        LAB.storage: ConnectionSpec(LAB.storage, "fs", extra={"path": storage}),
    }  # fmt: skip


def test_logins_lie_in_files_of_this_user_and_nowhere_else(settings: Settings, tmp_path: Path) -> None:
    authority = tmp_path / "ca.crt"
    authority.write_text(Authority().pem)
    register(settings, LAB)
    endpoints = write_target(settings, LAB, specs(**{"ssl.ca.location": str(authority)}))
    there, folder = settings.for_target(endpoints), target_folder(settings, "lab")

    assert (endpoints.engine, endpoints.engine_ui) == ("spark://127.0.0.1:7077", "http://127.0.0.1:8080")
    assert (endpoints.here, endpoints.storage, endpoints.target) == ("127.0.0.1", "/shared", "lab")
    assert there.endpoints == endpoints and there.logins == folder and settings.endpoints.target == "embedded"
    client = kafka_client(endpoints.kafka, secrets=there.logins, user=WORKLOAD)
    assert client["sasl.password"] == PASSWORD and client["ssl.ca.pem"] == authority.read_text()
    assert '"pa\\"ss\\\\word"' in jaas_file(folder, HARNESS).read_text()
    assert "spark.authenticate.secret=of the \\\\cluster\n" in properties_file(there).read_text()
    options = kafka_options(there)
    assert options["kafka.ssl.truststore.location"] == str(folder / "ca.pem")
    # What is written into an experiment's files.
    for text in (json.dumps(options), json.dumps(endpoints.as_mapping())):
        assert PASSWORD not in text and json.dumps(PASSWORD) not in text and SECRET not in text
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for file in folder.iterdir():
        text = file.read_text()
        if any(secret in text for secret in (PASSWORD, json.dumps(PASSWORD)[1:-1], SECRET.replace("\\", "\\\\"))):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert endpoints_at(settings, "lab") == endpoints
    assert Endpoints.from_mapping(json.loads(json.dumps(endpoints.as_mapping()))) == endpoints


def test_a_client_that_knows_only_the_address_logs_in(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    register(settings, LAB)
    bootstrap = write_target(settings, LAB, specs()).kafka
    monkeypatch.setenv("FAULTLINE_HOME", str(settings.home))
    assert kafka_client(bootstrap)["sasl.username"] == "bench"
    assert kafka_client("127.0.0.1:1") == {"bootstrap.servers": "127.0.0.1:1"}


def test_an_address_has_one_login_here(settings: Settings) -> None:
    other = make_target("other", first=False)
    register(settings, LAB)
    register(settings, other)
    write_target(settings, LAB, specs())
    again = {new: replace(one, id=new) for new, one in zip(other.connections, specs().values(), strict=True)}
    with pytest.raises(ConfigError, match="^Connection faultline_kafka_other: .*faultline_kafka"):
        write_target(settings, other, again)
    # The same Connection is the same login.
    write_target(settings, replace(other, kafka=LAB.kafka), {**again, LAB.kafka: specs()[LAB.kafka]})


def test_what_was_written_stays_when_a_connection_is_wrong(settings: Settings) -> None:
    assert digest(specs()) == digest(specs()) != digest(specs(**{"sasl.password": "another"})), "a change is noticed"
    register(settings, LAB)
    write_target(settings, LAB, specs())
    before = {file.name: file.read_text() for file in target_folder(settings, "lab").iterdir()}
    with refused("Connection faultline_kafka: extra: group.id: "):
        write_target(settings, LAB, specs(**{"group.id": "x", "sasl.password": "another"}))
    assert {file.name: file.read_text() for file in target_folder(settings, "lab").iterdir()} == before


def kafka_extra(**extra: Any) -> ConnectionSpec:
    return ConnectionSpec("k", "kafka", extra={key.replace("_", "."): value for key, value in extra.items()})


def master(password: str = "", **extra: Any) -> ConnectionSpec:
    return ConnectionSpec("k", "spark", "spark://127.0.0.1", 7077, password=password, extra=extra)


def path(path: str, **extra: str) -> ConnectionSpec:
    return ConnectionSpec("k", "fs", extra={"path": path, **extra})


@pytest.mark.parametrize(
    ("read", "one", "key"),
    [
        (parse_kafka, kafka_extra(), "extra: bootstrap.servers: missing"),
        (parse_kafka, kafka_extra(bootstrap_server="a:1"), "extra: bootstrap.servers: missing"),
        (parse_kafka, kafka_extra(bootstrap_servers="broker"), "extra: bootstrap.servers: got 'broker'"),
        (parse_kafka, kafka_extra(bootstrap_servers="a:1", ssl_ca_location="/no/file"), "extra: ssl.ca.location: "),
        (parse_spark, ConnectionSpec("k", "spark", "local[2]"), "host: got local[2]"),
        (parse_spark, ConnectionSpec("k", "spark", "yarn"), "extra: driver-host: missing"),
        (parse_spark, ConnectionSpec("k", "spark", "spark://no-such-host.invalid", 7077), "host: no-such-host"),
        (parse_spark, master(**{"deploy-mode": "cluster"}), "extra: deploy-mode: "),
        (parse_spark, master(password="two\nlines"), "password: "),
        (parse_spark, master(conf=["spark.x"]), "extra: conf: "),
        (parse_spark, master(conf={"x": "y"}), "extra: conf: got x"),
        (parse_spark, master(conf={"spark.authenticate.secret": "x"}), "extra: conf: spark.authenticate.secret"),
        (parse_spark, master(conf={"spark.master": "local[2]"}), "extra: conf: spark.master"),
        (parse_spark, master(conf={"spark.network.crypto.enabled": "true"}), "password: missing"),
        (parse_spark, master(ui="master:8081"), "extra: ui: got 'master:8081'"),
        (parse_spark, master(**{"driver-host": "no such host"}), "extra: driver-host: got 'no such host'"),
        (parse_spark, master(**{"driver-host": "::1"}), "extra: driver-host: got '::1'"),
        (parse_storage, path("s3a://bucket/x"), "extra: path: got s3a"),
        (parse_storage, path("gs://bucket/x"), "extra: path: got gs"),
        (parse_storage, path("hdfs://x"), "extra: path: got 'hdfs://x'"),
        (parse_storage, path("hdfs://x:1/a b"), "extra: path: got 'hdfs://x:1/a b'"),
        (parse_storage, path("hdfs://x:1/a", web="x:2"), "extra: web: got 'x:2'"),
        (parse_storage, path("shared"), "extra: path: got 'shared'"),
        (parse_storage, path("/"), "extra: path: got '/'"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_names_connection_key_and_remedy(
    read: Callable[[ConnectionSpec], Any], one: ConnectionSpec, key: str
) -> None:
    with refused(f"Connection k: {key}", "; "):
        read(one)


def test_a_storage_in_hdfs_is_read_by_its_page() -> None:
    assert parse_storage(path("hdfs://n:8020/shared/lab/")) == ("hdfs://n:8020/shared/lab", "http://n:9870")
    assert parse_storage(path("hdfs://n:8020/x", web="http://page:1/")) == ("hdfs://n:8020/x", "http://page:1")
    assert parse_storage(path("file:///shared/")) == ("/shared", "")


def test_masters_are_read_as_the_provider_of_spark_reads_them() -> None:
    variants = [
        ConnectionSpec("k", "spark", "spark://127.0.0.1:7077"),
        ConnectionSpec("k", "spark", "127.0.0.1", 7077),
        master(),
    ]
    assert {parse_spark(one).master for one in variants} == {"spark://127.0.0.1:7077"}
    yarn = parse_spark(ConnectionSpec("k", "spark", "yarn", extra={"driver-host": "10.0.0.9"}))
    assert (yarn.master, yarn.ui, yarn.here) == ("yarn", "", "10.0.0.9")


def test_secrets_go_with_what_they_belonged_to(settings: Settings, tmp_path: Path) -> None:
    known, folder, own = tmp_path / "known_hosts", target_folder(settings, "lab"), Authority().signed()
    known.touch(0o600)
    given = {"private_key": "KEY", "known_hosts": str(known)}
    ids = [f"faultline_host_{name}" for name in "ab"]
    keys = {one: ConnectionSpec(one, "ssh", "h", 2222, "u", extra=given) for one in ids}
    pair = {"ssl.ca.pem": Authority().pem, "ssl.certificate.pem": own.certificate, "ssl.key.pem": own.key}
    secret = ["ca.pem", "host_a.key", "host_b.key", "keystore.pem"]

    def left(*hosts: str, **login: str) -> list[str]:
        there = write_target(settings, replace(LAB, hosts=hosts), {**specs(**login), **keys}).hosts
        for host in there.values():
            file = Path(host["key_file"])
            assert file.read_text() == "KEY\n" and stat.S_IMODE(file.stat().st_mode) == 0o600
            assert host["port"] == 2222 and "private_key" not in host
        return [name for name in secret if (folder / name).exists()]

    register(settings, LAB)
    assert left("a", "b", **pair) == secret
    assert left("a", **pair) == ["ca.pem", "host_a.key", "keystore.pem"]
    assert left("a", **{"ssl.ca.pem": pair["ssl.ca.pem"]}) == ["ca.pem", "host_a.key"]
    assert left() == []
    assert (folder / "harness.json").exists()


def test_a_missing_connection_is_reported_with_its_remedy(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = replace(LAB, hosts=("a",))
    for gone, remedy in (
        ("faultline_kafka", r"`\./faultline target add lab --kafka FILE`"),
        ("faultline_host_a", r"add it with --host-file"),
    ):
        found = {one: None if one == gone else ConnectionSpec(one) for one in lab.connections}
        monkeypatch.setattr(
            connections, "query_connections", lambda *_, found=found: connections.ConnectionReply(found)
        )
        with pytest.raises(ConfigError, match=f"^Connection {gone}: missing; .*fix: {remedy}"):
            connections.import_target(settings, lab)


def test_targets_are_known_by_their_files(settings: Settings) -> None:
    assert load_targets(settings) == {} and find_target(settings, "embedded") is None
    register(settings, LAB)
    register(settings, make_target("two", ("a", "b"), first=False))
    assert list(load_targets(settings)) == ["lab", "two"] and find_target(settings, "lab") == LAB
    assert load_targets(settings)["two"].connections == (
        "faultline_kafka_two", "faultline_spark_two", "faultline_storage_two", "faultline_host_a", "faultline_host_b",
    )  # fmt: skip
    for act, message in (
        (lambda: find_target(settings, "lap"), "target: 'lap'"),
        (lambda: endpoints_at(settings, "lab"), "target: lab was not checked yet"),
        (lambda: make_target("lab", ("A",)), "--host: got 'A'"),
        *((partial(make_target, name), "NAME: ") for name in ("embedded", "Lab", "", "a/b", "a-b")),
    ):
        with refused(message):
            act()
    assert make_target("lab", ("worker-a",)).host("worker-a") == "faultline_host_worker-a"


def test_a_target_is_unregistered_completely(settings: Settings) -> None:
    register(settings, LAB)
    assert describe_addresses(settings, LAB) == "not checked yet"
    write_target(settings, LAB, specs())
    assert describe_addresses(settings, LAB) == "127.0.0.1:9093,127.0.0.1:9094  spark://127.0.0.1:7077  /shared"
    register(settings, make_target("other"))
    unregister(settings, LAB)
    assert list(load_targets(settings)) == ["other"] and not target_folder(settings, "lab").exists()
    unregister(settings, LAB)


def test_a_check_of_connections_writes_nothing(settings: Settings) -> None:
    check_spec(LAB, {**specs(), LAB.spark: ConnectionSpec(LAB.spark, "spark", "spark://no-such-host.invalid", 7077)})
    with refused("Connection faultline_kafka: extra: group.id: "):
        check_spec(LAB, specs(**{"group.id": "x"}))
    host = ConnectionSpec(
        "faultline_host_a", "ssh", "h", 22, "u", extra={"key_file": "/no/key", "known_hosts": "/no/known"}
    )
    with pytest.raises(ConfigError, match="^Connection faultline_host_a.key_file: got /no/key"):
        check_spec(LAB, {host.id: host})
    assert not settings.home.exists()


# ---- The options of `target add` ----

WITH_HOST = replace(LAB, hosts=("worker-a",))
KAFKA = {"bootstrap.servers": "127.0.0.1:9092"}
MASTER = "spark://no-such-host.invalid:7077"

Write = Callable[[object], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def one(value: object) -> Path:
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        write_private(file, json.dumps(value))
        return file

    return one


def a_host(folder: Path, **more: Any) -> dict[str, Any]:
    """Write a host's files to the folder and return its options with relative paths."""
    for name in ("key", "known"):
        (folder / name).touch(0o600)
    return {"host": "10.0.0.5", "user": "bench", "key_file": "key", "known_hosts": "known", **more}


def test_options_become_connections_and_what_is_left_out_comes_from_elsewhere(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert TargetOptions().connections(WITH_HOST) == {}
    (tmp_path / "ssh").mkdir()
    monkeypatch.chdir(tmp_path / "ssh")
    hosts = write({"worker-a": a_host(tmp_path / "ssh", port=2222)})
    more = write({"secret": "s", "ui": "http://m:1", "conf": {"spark.network.crypto.enabled": "true"}})
    given = TargetOptions(write(KAFKA), MASTER, more, "/shared", hosts=hosts)
    assert list(given.listed_hosts) == ["worker-a"]
    found = {conn_id: spec_of(conn_id, values) for conn_id, values in given.connections(WITH_HOST).items()}
    assert list(found) == list(WITH_HOST.connections)
    assert found[WITH_HOST.kafka].extra == KAFKA and found[WITH_HOST.storage].extra == {"path": "/shared"}
    engine, host = found[WITH_HOST.spark], found["faultline_host_worker-a"]
    assert (engine.host, engine.password) == (MASTER, "s") and set(engine.extra) == {"ui", "conf"}
    assert (host.host, host.port, host.login) == ("10.0.0.5", 2222, "bench") and host.extra["python"] == "python3"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"kafka": {}}, "--kafka: bootstrap.servers: missing"),
        ({"kafka": {**KAFKA, "sasl.usernme": "u"}}, "--kafka: sasl.usernme: .*; did you mean sasl.username"),
        ({"kafka": []}, "--kafka: .*expected a JSON object"),
        ({"spark": "master:7077"}, "--spark: host: got master:7077"),
        ({"spark": MASTER, "spark_file": {"secert": "x"}}, "--spark-file: secert: .*secret"),
        ({"spark": MASTER, "spark_file": {"secret": 5}}, "--spark-file: secret: "),
        ({"spark": MASTER, "spark_file": {"secret": ""}}, "--spark-file: secret: "),
        ({"spark": MASTER, "spark_file": {"ui": "m:1"}}, "--spark: ui: got 'm:1'"),
        ({"spark_file": {}}, "--spark-file: "),
        ({"storage": "s3a://bucket/x"}, "--storage: path: got s3a"),
        ({"storage_web": "http://n:1"}, "--storage-web: "),
        ({"hosts": {"a": {"host": "h"}}}, "--host-file: a.user: missing"),
        ({"hosts": {"a": {"hots": "h"}}}, "--host-file: a.hots: .*host"),
        ({"hosts": {"a": "h"}}, "--host-file: a.host: missing"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused(write: Write, options: dict[str, Any], why: str) -> None:
    texts = {name: write(value) if not isinstance(value, str) else value for name, value in options.items()}
    with pytest.raises(ConfigError, match=f"^{why}") as refused:
        TargetOptions(**texts).connections(WITH_HOST)
    assert "\n" not in str(refused.value)


def test_paths_are_meant_from_here(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ca.pem").write_text(Authority().pem)
    protocol, hosts = {"security.protocol": "SSL", "ssl.ca.location": "ca.pem"}, write({"worker-a": a_host(tmp_path)})
    found = TargetOptions(write({**KAFKA, **protocol}), hosts=hosts).connections(WITH_HOST)
    assert json.loads(found[WITH_HOST.kafka]["extra"])["ssl.ca.location"] == str(tmp_path / "ca.pem")
    extra = json.loads(found["faultline_host_worker-a"]["extra"])
    assert (extra["key_file"], extra["known_hosts"]) == (str(tmp_path / "key"), str(tmp_path / "known"))


def test_files_that_others_may_read_or_that_are_none_are_refused(write: Write, tmp_path: Path) -> None:
    open_to_all, text = write(KAFKA), tmp_path / "text"
    open_to_all.chmod(0o644)
    text.write_text("{")
    for file, why in (
        (open_to_all, ": got mode 0644; expected no access for others; fix: chmod 0600"),
        (tmp_path / "none", " (No such file"),
        (text, " ("),
    ):
        with refused("--kafka: ", f"{file}{why}"):
            TargetOptions(kafka=file).connections(WITH_HOST)


CHOICES = ("k",), ("kafka", "spark"), (None, "a", "b"), (None, 1, 2), (None,), (None, "x", "y")
EXTRA = st.dictionaries(st.sampled_from("uvw"), st.sampled_from(("1", "2")))
SPECS = st.builds(ConnectionSpec, *map(st.sampled_from, CHOICES), EXTRA)


@drawn(SPECS, SPECS)
def test_different_fields_of_two_connections_are_named(one: ConnectionSpec, other: ConnectionSpec) -> None:
    assert (one.differing_keys(other) == []) == (one == other)
    assert replace(one, login="").differing_keys(replace(one, login=None)) == []
    assert one.differing_keys(other) == other.differing_keys(one) and one.differing_keys(replace(one)) == []

    # Keys are named without their values.
    one = ConnectionSpec("k", "kafka", password="p", extra={"a": "1", "b": "2"})
    assert one.differing_keys(replace(one, password="q", extra={"a": "1", "c": "3"})) == [
        "password",
        "extra: b",
        "extra: c",
    ]
