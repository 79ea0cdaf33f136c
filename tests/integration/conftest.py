"""Real services for the integration tests; whatever a test started is ended after it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.installation import Installation, make_installation
from tests.integration.postgresql import Cluster, new_cluster


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    """A fresh installation, nothing started; everything is ended afterwards."""
    made = make_installation(tmp_path)
    yield made
    made.run("down")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL that runs."""
    with new_cluster() as made:
        yield made
