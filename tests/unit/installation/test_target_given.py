"""What `target add` is given is refused before anything is made, by option or Connection, key and remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from faultline.installation.targets.given import Given, said_by
from faultline.installation.targets.said import Said
from faultline.system.errors import ConfigError
from faultline.system.files import write_private
from faultline.system.target import Target
from tests.support.certificates import Authority

LAB = Target("lab", hosts=("worker-a",))
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
    for name in ("key", "known"):
        (folder / name).touch(0o600)
    return {"host": "10.0.0.5", "user": "bench", "key_file": str(folder / "key"), "known_hosts": str(folder / "known"),
            **more}  # fmt: skip


def test_options_become_connections(write: Write, tmp_path: Path) -> None:
    (tmp_path / "ssh").mkdir()
    hosts = write({"worker-a": a_host(tmp_path / "ssh", port=2222)})
    more = write({"secret": "s", "ui": "http://m:1", "conf": {"spark.network.crypto.enabled": "true"}})
    given = Given(write(KAFKA), MASTER, more, "/shared", hosts=hosts)
    assert list(given.listed_hosts) == ["worker-a"]
    found = {conn_id: said_by(conn_id, values) for conn_id, values in given.connections(LAB).items()}
    assert list(found) == list(LAB.connections)
    assert found[LAB.kafka].extra == KAFKA and found[LAB.storage].extra == {"path": "/shared"}
    engine, host = found[LAB.spark], found["faultline_host_worker-a"]
    assert (engine.host, engine.password) == (MASTER, "s") and set(engine.extra) == {"ui", "conf"}
    assert (host.host, host.port, host.login) == ("10.0.0.5", 2222, "bench") and host.extra["python"] == "python3"


def test_what_is_left_out_comes_from_elsewhere() -> None:
    assert Given().connections(LAB) == {}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"kafka": {}}, "--kafka: bootstrap.servers: missing"),
        ({"kafka": {**KAFKA, "group.id": "x"}}, "--kafka: group.id: Kafka's client in Spark"),
        ({"kafka": {**KAFKA, "sasl.usernme": "u"}}, "--kafka: sasl.usernme: .*; did you mean sasl.username"),
        ({"kafka": []}, "--kafka: .* holds no JSON object"),
        ({"spark": "master:7077"}, "--spark: host: master:7077 is no master"),
        ({"spark": "yarn"}, "--spark: driver-host: missing"),
        ({"spark": MASTER, "spark_file": {"secert": "x"}}, "--spark-file: secert: is not known; did you mean secret"),
        ({"spark": MASTER, "spark_file": {"secret": 5}}, "--spark-file: secret: is no text"),
        ({"spark": MASTER, "spark_file": {"secret": ""}}, "--spark-file: secret: is no text, or empty"),
        ({"spark": MASTER, "spark_file": {"ui": "m:1"}}, "--spark: ui: 'm:1' is no address of a page"),
        ({"spark_file": {}}, "--spark-file: says more of --spark, which is missing"),
        ({"storage": "s3a://bucket/x"}, "--storage: path: s3a is refused"),
        ({"storage": "shared"}, "--storage: path: 'shared' is no path of a folder"),
        ({"storage_web": "http://n:1"}, "--storage-web: says more of --storage, which is missing"),
        ({"hosts": {"a": {"host": "h"}}}, "--host-file: a.user: missing"),
        ({"hosts": {"a": {"hots": "h"}}}, "--host-file: a.hots: is not known; did you mean host"),
        ({"hosts": {"a": "h"}}, "--host-file: a.host: missing"),
        ({"kafka": {**KAFKA, "security.protocol": "TLS"}}, "--kafka: security.protocol: TLS"),
    ],
)
def test_what_cannot_be_used_is_refused(write: Write, options: dict[str, Any], why: str) -> None:
    told = {name: write(value) if not isinstance(value, str) else value for name, value in options.items()}
    with pytest.raises(ConfigError, match=f"^{why}") as refused:
        Given(**told).connections(LAB)
    assert "\n" not in str(refused.value)


def test_paths_are_meant_from_here(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ca.pem").write_text(Authority().pem)
    for name in ("key", "known"):
        (tmp_path / name).touch(0o600)
    protocol = {"security.protocol": "SSL", "ssl.ca.location": "ca.pem"}
    host = {"host": "h", "user": "u", "key_file": "key", "known_hosts": "known"}
    found = Given(write({**KAFKA, **protocol}), hosts=write({"worker-a": host})).connections(LAB)
    assert json.loads(found[LAB.kafka]["extra"])["ssl.ca.location"] == str(tmp_path / "ca.pem")
    told = json.loads(found["faultline_host_worker-a"]["extra"])
    assert (told["key_file"], told["known_hosts"]) == (str(tmp_path / "key"), str(tmp_path / "known"))


def test_files_that_others_may_read_or_that_are_none_are_refused(write: Write, tmp_path: Path) -> None:
    open_to_all = write(KAFKA)
    open_to_all.chmod(0o644)
    with pytest.raises(ConfigError, match=r"^--kafka: \S+: has mode 0644, and others may not see it; chmod 0600"):
        Given(kafka=open_to_all).connections(LAB)
    with pytest.raises(ConfigError, match=r"^--kafka: \S+/none: No such file or directory; give a JSON file$"):
        Given(kafka=tmp_path / "none").connections(LAB)
    (tmp_path / "text").write_text("{")
    with pytest.raises(ConfigError, match=r"^--kafka: \S+ is no JSON \(.*\); mend it$"):
        Given(kafka=tmp_path / "text").connections(LAB)


SAID = st.builds(
    Said,
    st.just("k"),
    st.sampled_from(("kafka", "spark")),
    st.sampled_from((None, "a", "b")),
    st.sampled_from((None, 1, 2)),
    st.none(),
    st.sampled_from((None, "x", "y")),
    st.dictionaries(st.sampled_from("uvw"), st.sampled_from(("1", "2"))),
)


@drawn(SAID, SAID)
def test_two_connections_differ_in_what_one_says_otherwise(one: Said, other: Said) -> None:
    assert (one.differs(other) == []) == (one == other)
    assert replace(one, login="").differs(replace(one, login=None)) == []
    assert one.differs(other) == other.differs(one) and one.differs(replace(one)) == []


def test_keys_that_differ_are_named_without_their_values() -> None:
    one = Said("k", "kafka", password="p", extra={"a": "1", "b": "2"})
    assert one.differs(replace(one, password="q", extra={"a": "1", "c": "3"})) == ["password", "extra: b", "extra: c"]
