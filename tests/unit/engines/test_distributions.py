"""Registered Spark builds: validation, storage, and the submission of experiments on them."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from faultline.engines.spark import distributions as own
from faultline.engines.spark.distributions import (
    Distribution,
    distribution,
    distributions,
    inspect_distribution,
    register,
)
from faultline.engines.spark.engine import Spark
from faultline.engines.spark.settings import spark_environment, workload_settings
from faultline.experiment.attempt import Attempt
from faultline.experiment.config import parse_configuration
from faultline.installation.services import data_services
from faultline.installation.supervision import _claim_ports
from faultline.system.errors import ConfigError
from faultline.system.settings import DEFAULT_PORTS, ROOT, Settings, free_port
from tests.support.refusals import refused

VERSION = "4.2.0"
WHOLE: dict[str, Any] = {
    "name": "mine", "spark_home": "/spark", "version": VERSION, "sha256": "0", "python": "python", "conf": {},
    "has_connector": True, "java_home": None, "ports": dict.fromkeys(own.PORTS, 40_000),
}  # fmt: skip


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    # Port checks bind the port briefly, so avoid the ports of other installations.
    return Settings(ROOT, tmp_path / "home", tmp_path / "results", {name: free_port() for name in DEFAULT_PORTS})


def spark(folder: Path, version: str = VERSION, *, scala: str = "2.13", connector: bool = False) -> Path:
    """Create a folder with the layout of a Spark distribution."""
    for name in ("bin", "jars", "python/pyspark", "python/lib"):
        (folder / name).mkdir(parents=True)
    (folder / "bin" / "spark-submit").touch()
    (folder / "jars" / f"spark-core_{scala}-{version}.jar").write_text("core")
    (folder / "python" / "lib" / "py4j-1-src.zip").touch()
    if connector:
        (folder / "jars" / f"spark-sql-kafka-0-10_2.13-{version}.jar").touch()
    return folder


def made(settings: Settings, home: Path, name: str = "mine", **more: str) -> Distribution:
    found = inspect_distribution(settings, name, home, None, more, VERSION)
    register(settings, found)
    return found


def test_registered_builds_are_stored(settings: Settings, tmp_path: Path) -> None:
    first = made(settings, spark(tmp_path / "a"), **{"spark.x": "1"})
    second = made(settings, spark(tmp_path / "b", "4.1.3", connector=True), "other")
    assert distributions(settings) == {"mine": first, "other": second}
    assert distribution(settings, None) is None and distribution(settings, "other") == second
    assert len({*first.ports.values(), *second.ports.values()}) == 12, "each has its own ports"
    assert made(settings, tmp_path / "a", **{"spark.x": "2"}).ports == first.ports, "and keeps them"
    own.unregister(settings, "mine")
    assert distributions(settings) == {"other": second}
    with pytest.raises(ConfigError, match="NAME: .*'mine'"):
        own.unregister(settings, "mine")


def test_a_missing_or_changed_build_is_rejected(settings: Settings, tmp_path: Path) -> None:
    one = made(settings, spark(tmp_path / "a"))
    own.require_unchanged(one)
    (one.spark_home / "jars" / "patched.jar").touch()
    with pytest.raises(ConfigError, match="spark_build: jars"):
        own.require_unchanged(one)
    one.spark_home.rename(tmp_path / "b")
    with pytest.raises(ConfigError, match="spark_build: mine"):
        own.require_unchanged(one)


def test_invalid_builds_are_rejected_with_the_option(settings: Settings, tmp_path: Path) -> None:
    plain = spark(tmp_path / "plain")
    without = spark(tmp_path / "without")
    (without / "python" / "pyspark").rmdir()
    cases = [
        ("Mine", plain, None, "NAME: .*'Mine'"),
        ("installed", plain, None, "NAME: .*'installed'"),
        ("a", tmp_path, None, "--spark-home: .*bin/spark-submit"),
        ("a", spark(tmp_path / "old", "3.5.1"), None, "--spark-home: .*3.5.1"),
        ("a", spark(tmp_path / "scala", scala="2.12"), None, "--spark-home: .*Scala 2.12"),
        ("a", spark(tmp_path / "next", "4.3.0-SNAPSHOT"), None, "--spark-home: .*connector"),
        ("a", without, None, "--spark-home: .*python/pyspark"),
        ("a", plain, tmp_path / "nojava", "--java: .*bin/java"),
    ]
    for name, home, java, message in cases:
        with pytest.raises(ConfigError, match=message):
            inspect_distribution(settings, name, home, java, {}, VERSION)
    assert distributions(settings) == {}


BROKEN = ({"ports": None}, {"ports": {**WHOLE["ports"], "spark_master": "x"}}, {"conf": []}, {"colour": "red"})


@pytest.mark.parametrize(
    "text", [[], {"mine": 3}, {"mine": {"name": "mine"}}, "{", *({"mine": {**WHOLE, **one}} for one in BROKEN)]
)
def test_a_broken_list_fails_only_its_users(settings: Settings, text: Any) -> None:
    settings.home.mkdir()
    (settings.home / own.FILE).write_text(text if isinstance(text, str) else json.dumps(text))
    engine, plain, output = Spark(), parse_configuration({}), list[str]()
    assert engine.endpoints(settings, plain) == settings.endpoints and engine.alternate_build(settings, plain) is None
    assert len(engine.restart_delays(settings)) == 2 and len(data_services(settings, Path("/java"), "i")) == 4
    _claim_ports(settings, {}, output.append)
    assert any(f"{settings.home / own.FILE}: " in line for line in output)
    for asks in (
        lambda: engine.endpoints(settings, parse_configuration({"spark_build": "mine"})),
        lambda: own.unregister(settings, "mine"),
    ):
        with refused(f"{settings.home / own.FILE}: "):
            asks()


def test_a_busy_port_is_replaced(settings: Settings, tmp_path: Path) -> None:
    one, other = made(settings, spark(tmp_path / "a")), made(settings, spark(tmp_path / "b"), "other")
    output = list[str]()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", one.ports["spark_master"]))
        usual = _claim_ports(settings, {}, output.append).ports
    now = distributions(settings)
    assert now["mine"].ports["spark_master"] != one.ports["spark_master"]
    # Another process may take a further port meanwhile, which is reported as well.
    for before, after in ((one, now["mine"]), (other, now["other"])):
        for role, port in before.ports.items():
            line = f"{role}@{before.name}: using port {after.ports[role]} ({port} is busy)"
            assert (after.ports[role] != port) is (line in output)
    assert usual.keys() == settings.ports.keys() == json.loads((settings.home / "ports.json").read_text()).keys()
    every = [*usual.values(), *now["mine"].ports.values(), *now["other"].ports.values()]
    assert len(set(every)) == len(every)


def test_a_wheel_runs_with_the_python_of_its_environment(settings: Settings, tmp_path: Path) -> None:
    home = spark(tmp_path / "venv" / "lib" / "site-packages" / "pyspark")
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    assert made(settings, home).python == str(tmp_path / "venv" / "bin" / "python")
    assert made(settings, spark(tmp_path / "dist"), "dist").python == sys.executable


def test_spark_build_selects_the_build(settings: Settings, tmp_path: Path) -> None:
    made(settings, spark(tmp_path / "a"))
    plain, named = parse_configuration({}), parse_configuration({"spark_build": "mine"})
    assert parse_configuration({"spark_build": "installed"}) == plain and plain.config_id != named.config_id
    engine, usual = Spark(), settings.endpoints
    found = engine.endpoints(settings, named)
    assert engine.endpoints(settings, plain) == usual
    assert found.engine != usual.engine and found.engine_ui != usual.engine_ui and found.kafka == usual.kafka
    with pytest.raises(ConfigError, match="spark_build: .*'mina'; did you mean mine"):
        engine.endpoints(settings, parse_configuration({"spark_build": "mina"}))
    workers = {f"spark-worker-{number}{build}" for number in (1, 2) for build in ("", "@mine")}
    assert {path.stem for path in engine.restart_delays(settings).values()} == workers


def test_submission_uses_home_python_and_settings_of_the_build(settings: Settings, tmp_path: Path) -> None:
    one = made(settings, spark(tmp_path / "a", connector=True), **{"spark.x": "1", "spark.sql.shuffle.partitions": "9"})
    environment = spark_environment(settings, Path("/java"), own=one)
    assert environment["SPARK_HOME"] == str(tmp_path / "a") and environment["JAVA_HOME"] == "/java"
    assert environment["PYTHONPATH"].split(":")[1:] == [
        f"{tmp_path}/a/python",
        f"{tmp_path}/a/python/lib/py4j-1-src.zip",
    ]
    config = parse_configuration({"spark_build": "mine"})
    conf = workload_settings(settings, Attempt(tmp_path / "attempt"), config, 1, own=one)
    assert conf["spark.x"] == "1" and conf["spark.sql.shuffle.partitions"] == "2", "the experiment takes precedence"
    assert "spark.driver.extraClassPath" not in conf, "its connector is among its own jars"
    assert "spark.driver.extraClassPath" in workload_settings(settings, Attempt(tmp_path / "attempt"), config, 1)


def test_each_build_has_its_own_master_and_workers(settings: Settings, tmp_path: Path) -> None:
    one = made(settings, spark(tmp_path / "a"))
    services = {service.name: service for service in data_services(settings, Path("/java"), "i")}
    added = {name for name in services if "@" in name}
    assert added == {"spark-master@mine", "spark-worker-1@mine", "spark-worker-2@mine"} and len(services) == 7
    for name in added:
        assert services[name].environment["SPARK_HOME"] == str(one.spark_home)
        assert services[name].command[0] == str(one.spark_home / "bin" / "spark-class")
    assert services["spark-worker-1@mine"].command[-1] == one.endpoints(settings.endpoints).engine


def test_settings_of_a_build_are_read_from_a_file(tmp_path: Path) -> None:
    file, broken = tmp_path / "defaults.conf", tmp_path / "broken.conf"
    file.write_text("# mine\nspark.a  1\nspark.b=two words\n\n")
    assert own.read_conf(file) == {"spark.a": "1", "spark.b": "two words"}
    broken.write_text("spark.a 1\nspark.b\n")
    for path, detail in ((broken, "line 2: missing value of spark.b"), (tmp_path / "none", str(tmp_path / "none"))):
        with refused("--conf: ", detail):
            own.read_conf(path)
