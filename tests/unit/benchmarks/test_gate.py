"""The benchmark of the gate: what it draws, and the figures that it gives."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import gate as subject
from benchmarks.gate import PAIRS, SCATTERS, Scatter, run
from faultline.orchestration.nights import nightly


def test_it_draws_what_a_night_measures() -> None:
    assert PAIRS == nightly.PAIRS and len(nightly.DEFAULT_SET) == subject.CONFIGURATIONS


@pytest.mark.parametrize("name", SCATTERS)
def test_drawn_pairs_scatter_as_neighbours_did(name: str) -> None:
    scatter, rng = SCATTERS[name], np.random.default_rng(1)
    drawn = scatter.pairs("a", 20_000, 0.0, rng)
    real = float(np.sqrt(np.mean(np.square(scatter.neighbours))))
    middle = (np.array(drawn.low) + np.array(drawn.high)) / 2
    assert float(middle.std()) == pytest.approx(real, rel=0.08) and abs(float(middle.mean())) < 0.02
    slowed = scatter.pairs("a", 20_000, 0.2, rng)
    moved = float(np.mean(slowed.low) - np.mean(drawn.low))
    assert moved == pytest.approx(np.log1p(0.2 * scatter.reach), abs=4 * real / 100)


def test_quiet_figures_are_seen_at_once_and_nothing_is_red_where_nothing_is(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = Scatter("latency_ms.p50", (-0.001, 0.0, 0.001), 1.0)
    rng = np.random.default_rng(2)
    assert subject._red_by(quiet, 2, 0.1, 7, rng) == (True, 1)
    monkeypatch.setattr(subject, "SCATTERS", {"quiet": quiet})
    monkeypatch.setattr(subject, "SEASON", 10)
    figures = run(lambda line: None, quick=True)
    assert figures["quiet_5_two"]["value"] == 1.0 and figures["quiet_20_week"]["n"] == subject.QUICK_SLOWED
    assert figures["quiet_false_seasons_1"]["value"] == 0.0
