"""Fixtures of the component layer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import artefacts as artefacts
from tests.support.browser import browser as browser
from tests.support.machines import Machines, machines_at


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    home = tmp_path_factory.mktemp("home")
    with machines_at(home) as made:
        yield made
    links, mounts = os.listdir("/sys/class/net"), Path("/proc/mounts").read_text()
    assert made.settings.placement.bridge not in links and str(home) not in mounts
    assert not list(Path("/sys/fs/cgroup").glob(f"*/{made.settings.placement.bridge}-*"))
