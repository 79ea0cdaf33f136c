"""Benchmark of the gate: measured noise, and verdicts equal to the gate's."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.gate_error_rate import CONFIGURATIONS, NOISE_MODELS, PAIRS, judge_runs, p_worse, run
from faultline.comparison.compare import metrics_named
from faultline.comparison.regression_gate.verdict import SUSPICIOUS, GateStatus, PairedRun, Pairs, judge_gate, p_above
from faultline.orchestration.nightly import dag_factory


@pytest.mark.parametrize("name", NOISE_MODELS)
def test_pairs_scatter_as_neighbours_do_and_by_no_more(name: str) -> None:
    scatter = NOISE_MODELS[name]
    drawn = scatter.pairs((20_000,), 0.0, np.random.default_rng(1))
    assert np.std(drawn) == pytest.approx(np.sqrt(np.mean(np.square(scatter.neighbours))), rel=0.1)
    more = scatter.pairs((20_000,), 0.2, np.random.default_rng(1)) - drawn
    assert more == pytest.approx(np.log1p(0.2 * scatter.reach))


def test_runs_are_judged_like_the_gate() -> None:
    (metric,) = metrics_named(["latency_ms.p50"])
    seasons = NOISE_MODELS["p50"].pairs((12, 3, 2, 15), 0.06, np.random.default_rng(2))
    suspects, red = judge_runs(seasons)
    assert 0 < red.sum() < red.size
    for season, doubted, shut in zip(seasons, suspects, red, strict=True):
        nights = [
            PairedRun(f"2026-01-0{day}", "b1", "b0", tuple(
                Pairs(name, name, metric, tuple(one), tuple(one), 15) for name, one in zip("ab", cells, strict=True)
            )) for day, cells in enumerate(season, start=1)
        ]  # fmt: skip
        for day in range(3):
            verdict = judge_gate(nights[: day + 1])
            assert any(one.status in SUSPICIOUS for one in verdict.cells) == doubted[day]
            assert bool(verdict.of(GateStatus.WORSE)) == shut[day]
        assert p_worse(season[0, 0]) == pytest.approx(p_above(season[0, 0].tolist()))


def test_draws_match_the_default_nightly_set() -> None:
    assert PAIRS == dag_factory.PAIRS and len(dag_factory.DEFAULT_SET) == CONFIGURATIONS


def test_a_season_is_seldom_red_by_mistake() -> None:
    figures = run(lambda text: None, True)
    assert figures["p50_false_seasons_2"].value <= 0.2 and figures["p50_20_two"].value > 0.9
