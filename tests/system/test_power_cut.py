"""A sweep with two power losses, which continues each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.power_loss.disk import own_disk
from benchmarks.power_loss.power_cut import plan_cuts, run_cuts
from faultline.system.errors import ConfigError
from faultline.system.settings import load_settings

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(2400)]


def test_a_sweep_with_two_power_losses_measures_each_cell_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        with own_disk(tmp_path / "tried", 16):
            pass
    except ConfigError as error:
        pytest.skip(str(error))
    home = tmp_path / "home"
    home.mkdir()
    (home / "jars").symlink_to(load_settings().jars)
    monkeypatch.setenv("FAULTLINE_HOME", str(home))
    lines: list[str] = []
    # Raises for lost, repeated, damaged or leftover data.
    found = run_cuts(plan_cuts(2), "cuts.jsonl", lines.append)
    assert found["cuts"].value == 2 and found["killed"].low > 10
    assert found["cells_once"].value == found["cells"].value >= 4
    assert sum(": running, " in line for line in lines) >= 2
    assert not (home / "bench" / "power_cut").is_mount()
