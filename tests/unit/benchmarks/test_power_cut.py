"""Plan, counts and refusals of `bench power_cut`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.crash import LONGEST_WAIT_S
from benchmarks.power_loss.disk import own_disk
from benchmarks.power_loss.power_cut import CUTS, figures, plan_cuts
from faultline.system.errors import ConfigError


def test_the_plan_spreads_thirty_cuts_over_an_experiment_and_is_the_same_each_time() -> None:
    cuts = plan_cuts()
    assert cuts == plan_cuts() and [cut.number for cut in cuts] == list(range(CUTS))
    # An even distribution has values in each third.
    thirds = [sum(int(cut.wait_s * 3 / LONGEST_WAIT_S) == third for cut in cuts) for third in range(3)]
    assert sum(thirds) == CUTS and min(thirds) >= 5


@given(number=st.integers(0, 60), more=st.integers(0, 30), seed=st.integers())
def test_fewer_cuts_are_the_first_of_more(number: int, more: int, seed: int) -> None:
    assert plan_cuts(number, seed) == plan_cuts(number + more, seed)[:number]


def cut(**facts: Any) -> dict[str, Any]:
    none = ("records_damaged", "databases_damaged", "tables_damaged", "index_differences", "unsaid")
    return {"killed": 40, "records": 2, "up_s": 20.0, "goes_on_s": 50.0, **{name: [] for name in none}, **facts}


def test_figures_are_sums_over_cuts_and_medians_of_seconds() -> None:
    outcome = {"planned": 4, "once": 3, "lost": 1, "double": 0, "remeasured": 0, "attempts": 6}
    sweeps = [{"outcome": outcome, "triggers": 1, "seconds": 10.0, "state": state} for state in ("success", "failed")]
    cuts = [cut(), cut(goes_on_s=70.0, unsaid=["x"]), cut(goes_on_s=55.0, records_damaged=["a", "b"])]
    found = figures(sweeps, cuts)
    values = {name: figure.value for name, figure in found.items()}
    assert (values["cuts"], values["killed"], values["records_kept"]) == (3, 120, 6)
    assert (values["lost_records"], values["red_sweeps"], values["unsaid"], values["records_damaged"]) == (2, 1, 1, 2)
    assert (found["goes_on_s"].low, values["goes_on_s"], found["goes_on_s"].high) == (50.0, 55.0, 70.0)
    assert "up_s" not in figures(sweeps, [])


def test_who_is_not_root_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.power_loss.disk.os.geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="^power_cut: root required"), own_disk(tmp_path / "disk", 32):
        pass
    assert not list(tmp_path.iterdir())


def test_a_refused_mount_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, does in (
        ("mkfs.ext4", 'touch "$4"'),
        ("mount", "case $1 in -o) echo mount: permission denied. >&2; exit 32; esac"),
    ):
        (tools / name).write_text(f"#!/bin/sh\n{does}\n")
        (tools / name).chmod(0o755)
    monkeypatch.setattr("benchmarks.power_loss.disk.os.geteuid", lambda: 0)
    monkeypatch.setattr("benchmarks.power_loss.disk._CLONE_NEWNS", 0)  # which needs no right
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    with pytest.raises(ConfigError, match="mount: permission denied.; fix: run it as root") as raised:
        with own_disk(tmp_path / "disk", 32):
            pass
    assert "\n" not in str(raised.value)
