"""Synthetic attempts as fixtures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.synthetic import CONTROL, KILL


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    return KILL.write(tmp_path)


@pytest.fixture
def control(tmp_path: Path) -> Path:
    return CONTROL.write(tmp_path)
