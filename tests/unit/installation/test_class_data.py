"""Which archive of Spark's classes a JVM is told to start from."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from faultline.engines.running import Runtime
from faultline.engines.spark.compilers import to_spark
from faultline.engines.spark.engine import Spark
from faultline.engines.spark.settings import batch_settings, workload_settings
from faultline.experiment.attempt import Attempt
from faultline.experiment.config import parse_configuration
from faultline.installation import class_data
from faultline.installation.class_data import archive_here, archive_path
from faultline.installation.java import Java
from faultline.system.settings import Settings

JAVA = Java(Path("/opt/java 17"), Path("/opt/java 17/bin/java"), "17.0.15", has_module=True)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """An installation with one jar, whose environment lies in a folder with a space."""
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    (jars / "one.jar").write_text("classes")
    monkeypatch.setattr(class_data, "spark_home", lambda: tmp_path / "spark")
    monkeypatch.setattr(class_data, "find_java", lambda cache: JAVA)
    monkeypatch.setattr("sys.prefix", str(tmp_path / "an environment"))
    return Settings(tmp_path, tmp_path / "home", tmp_path / "results")


def make(settings: Settings) -> Path:
    path = archive_path(settings, JAVA)
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def test_an_archive_belongs_to_one_java_and_one_set_of_jars(settings: Settings, tmp_path: Path) -> None:
    first = archive_path(settings, JAVA)
    assert archive_path(settings, JAVA) == first
    assert archive_path(settings, replace(JAVA, version="17.0.16")) != first
    assert archive_path(replace(settings, home=tmp_path / "elsewhere"), JAVA) == first
    os.utime(tmp_path / "spark" / "jars" / "one.jar", (1, 1))
    assert archive_path(settings, JAVA) != first


def test_a_jvm_is_told_of_an_archive_only_when_there_is_one(settings: Settings) -> None:
    assert archive_here(settings) is None
    assert "Shared" not in batch_settings(settings, archive=archive_here(settings))["spark.driver.extraJavaOptions"]
    path = make(settings)
    assert archive_here(settings) == path
    told = batch_settings(settings, archive=archive_here(settings))
    assert f'"-XX:SharedArchiveFile={path}"' in told["spark.driver.extraJavaOptions"]


@pytest.mark.parametrize("fault", ["none", "executor", "driver"])
def test_until_the_gate_all_start_alike_and_after_it_as_everybodys_do(settings: Settings, fault: str) -> None:
    """Executors have one command line for the whole run: what it names is turned when the run has begun."""
    attempt = Attempt(settings.attempts / "20261121T061500Z-3fa9c1")
    attempt.scratch.mkdir(parents=True)
    runtime = Runtime(JAVA.home, make(settings))
    config = parse_configuration({"fault": fault})
    found = workload_settings(settings, attempt, config, 4040, archive=to_spark(attempt, runtime))
    link = attempt.scratch / "classes.jsa"
    for role in ("driver", "executor"):
        options = found[f"spark.{role}.extraJavaOptions"]
        assert f'"-Djava.io.tmpdir={attempt.scratch}"' in options and f'"-XX:SharedArchiveFile={link}"' in options
    assert os.readlink(link) == str(runtime.class_data)
    Spark().begun(SimpleNamespace(attempt=attempt), runtime)  # type: ignore[arg-type]
    assert os.readlink(link) == "/opt/java 17/lib/server/classes.jsa"
    to_spark(attempt, runtime)
    assert os.readlink(link) == str(runtime.class_data), "a step that is begun again begins anew"


def test_without_an_archive_nothing_is_said_of_one(settings: Settings) -> None:
    attempt, runtime = Attempt(settings.attempts / "20261121T061500Z-3fa9c1"), Runtime(JAVA.home)
    assert to_spark(attempt, runtime) is None
    Spark().begun(SimpleNamespace(attempt=attempt), runtime)  # type: ignore[arg-type]
    config = parse_configuration({"fault": "none"})
    assert "Shared" not in str(workload_settings(settings, attempt, config, 4040, archive=to_spark(attempt, runtime)))
    assert not attempt.scratch.exists()


def test_the_connector_is_on_the_class_path_where_it_really_lies(settings: Settings, tmp_path: Path) -> None:
    shared = tmp_path / "shared" / "spark-kafka"
    shared.mkdir(parents=True)
    for name in ("kafka-clients.jar", "a.jar"):
        (shared / name).touch()
    settings.home.mkdir()
    settings.jars.symlink_to(tmp_path / "shared", target_is_directory=True)
    told = batch_settings(settings)
    assert told["spark.driver.extraClassPath"] == f"{shared / 'a.jar'}:{shared / 'kafka-clients.jar'}"
    assert told["spark.executor.extraClassPath"] == told["spark.driver.extraClassPath"]
    first = archive_path(settings, JAVA)
    (shared / "a.jar").write_text("other classes")
    assert archive_path(settings, JAVA) != first
