"""Real services for tests, as fixtures; whatever a test started is ended after it."""

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
    """A fresh installation, nothing started; everything is ended afterwards."""
    made = make_installation(tmp_path)
    yield made
    made.run("down")


@pytest.fixture(scope="session")
def shared_installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """One installation for all tests that need no fresh one, since its start costs a minute; ended at the end."""
    made = make_installation(tmp_path_factory.mktemp("installation"))
    yield made
    made.run("down")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL that runs."""
    with new_cluster() as made:
        yield made


@pytest.fixture(scope="session")
def memcached() -> str:
    """The program, for tests that start it, or whose experiment does. Theirs is the first place among the fixtures."""
    return needed("memcached")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark, the same one for all tests that run queries in this process."""
    session = local_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Of an installation of which nothing is there yet."""
    return Settings(ROOT, tmp_path / "home", tmp_path / "results")
