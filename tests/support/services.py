"""Fixtures of real services, which are stopped after the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from faultline.system.settings import ROOT, Settings
from tests.support.installation import Installation, make_installation
from tests.support.needs import needed
from tests.support.postgresql import Cluster, new_cluster
from tests.support.spark_session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    """A new installation without services; all its processes are stopped afterwards."""
    made = make_installation(tmp_path)
    yield made
    made.run("down")


@pytest.fixture(scope="session")
def shared_installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An installation shared by all tests, since a start takes a minute; stopped after the last test."""
    made = make_installation(tmp_path_factory.mktemp("installation"))
    yield made
    made.run("down")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A running PostgreSQL."""
    with new_cluster() as made:
        yield made


@pytest.fixture(scope="session")
def memcached() -> str:
    """Path of memcached. Request it before slow fixtures, so that a test without memcached is skipped early."""
    return needed("memcached")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark session, shared by all tests of this process."""
    session = local_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings of an empty installation."""
    return Settings(ROOT, tmp_path / "home", tmp_path / "results")
