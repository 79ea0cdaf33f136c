"""Which archive of Spark's classes a JVM is told to start from."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from faultline.base.attempt import Attempt
from faultline.base.settings import Settings
from faultline.cluster import class_data
from faultline.cluster.class_data import archive_option, archive_path
from faultline.cluster.java import Java
from faultline.engines.spark.settings import batch_settings, workload_settings
from faultline.experiment.config import parse_configuration

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
    assert archive_option(settings) == ""
    assert "Shared" not in batch_settings(settings, archive=archive_option(settings))["spark.driver.extraJavaOptions"]
    path = make(settings)
    assert archive_option(settings) == f'"-XX:SharedArchiveFile={path}"'
    told = batch_settings(settings, archive=archive_option(settings))
    assert archive_option(settings) in told["spark.driver.extraJavaOptions"]


@pytest.mark.parametrize("fault", ["none", "executor", "driver"])
def test_where_something_is_broken_processes_start_as_everybodys_do(settings: Settings, fault: str) -> None:
    make(settings)
    config = parse_configuration({"fault": fault})
    attempt = Attempt(settings.attempts / "20261121T061500Z-3fa9c1")
    found = workload_settings(settings, attempt, config, 4040, archive=archive_option(settings))
    for role in ("driver", "executor"):
        assert f'"-Djava.io.tmpdir={attempt.scratch}"' in found[f"spark.{role}.extraJavaOptions"]
        assert ("SharedArchiveFile" in found[f"spark.{role}.extraJavaOptions"]) == (fault == "none")
