"""Candidates, Pareto front and recommendation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.comparison.candidates import ParetoChoice, choice_of, dominates, front_of
from faultline.comparison.config_points import axes_of, points_of
from faultline.comparison.effects import Effect, EffectVerdict, axis_effects
from faultline.comparison.recommendation import MIN_CONFIDENCE, Objective, Recommendation, recommend
from faultline.records.catalogue import CPU_TOTAL, MACRO
from faultline.records.index_entry import IndexEntry
from faultline.records.record import Record
from faultline.system.errors import ConfigError
from tests.unit.pages_store import record
from tests.unit.sample_records import RECOVERED
from tests.unit.swept_records import LIMITS, swept, with_cpu


def choice(records: Sequence[Record]) -> ParetoChoice:
    return choice_of(points_of([IndexEntry.of(one) for one in records]))


def advice(records: Sequence[Record], minimise: str = "cpu", **limits: float) -> Recommendation:
    return recommend(choice(records), Objective(minimise, limits))


def test_load_and_fault_are_given_and_what_one_sets_is_chosen() -> None:
    found = choice(swept())
    assert [one.name for one in found.candidates] == [f"checkpoint interval {n} s" for n in (2, 5, 10)]
    assert found.circumstances == ("state 1 MB", "state 8 MB")
    assert [axis.key for axis in found.circumstance_axes] == ["state_mb"]
    assert {len(one.points) for one in found.candidates} == {2}


def test_what_breaks_is_given_in_plain_words() -> None:
    found = choice([
        record(f"a-{fault}-{action}-{interval}", fault=fault, fault_action=action, checkpoint_interval_s=interval)
        for fault, action in (("executor", "kill"), ("kafka", "pause"))
        for interval in (2.0, 5.0)
    ])  # fmt: skip
    assert [one.name for one in found.candidates] == ["checkpoint interval 2 s", "checkpoint interval 5 s"]
    assert found.circumstances == ("after an executor was killed", "with the broker paused for 10 s")


def test_a_candidate_counts_at_its_worst() -> None:
    first = choice(swept(scatter=0.0)).candidates[0]
    assert first.figure("latency_ms.p50") == pytest.approx(400 * 2 * 1.16)


def test_what_was_not_measured_under_every_load_is_no_candidate() -> None:
    kept = [one for one in swept() if (one.config["state_mb"], one.config["checkpoint_interval_s"]) != (8.0, 5.0)]
    found = choice(kept)
    assert [one.name for one in found.candidates] == ["checkpoint interval 2 s", "checkpoint interval 10 s"]
    assert found.incomplete == ("checkpoint interval 5 s",)


def test_the_least_cpu_within_the_limits_is_chosen() -> None:
    assert best(advice(swept())) == "checkpoint interval 10 s"
    within = advice(swept(), recovery=15.0)
    assert best(within) == "checkpoint interval 5 s"
    assert within.is_conclusive
    assert within.confidence >= MIN_CONFIDENCE
    assert best(advice(swept(), recovery=15.0, latency=3000.0)) == "checkpoint interval 2 s"
    assert best(advice(swept(), minimise="latency")) == "checkpoint interval 2 s"


def best(found: Recommendation) -> str | None:
    return found.best.name if found.best else None


def test_what_nothing_meets_names_the_nearest_and_what_it_misses() -> None:
    found = advice(swept(), recovery=5.0)
    assert found.best is None
    assert found.nearest is not None
    assert found.nearest.name == "checkpoint interval 2 s"
    assert found.missed["recovery"] == pytest.approx(10, rel=0.1)


def test_few_repetitions_are_inconclusive_and_need_five_each() -> None:
    once = advice(swept(repetitions=1))
    assert not once.is_conclusive
    assert once.target_repetitions == 5
    assert once.experiments == 4 * 3 * 2


def test_similar_configurations_are_inconclusive() -> None:
    records = [
        with_cpu(
            record(f"a-{interval}-{n}", checkpoint_interval_s=interval, duration_s=300.0, repetition=n),
            0.5 + 0.01 * ((n * 7 + interval) % 5),
        )
        for interval in (2.0, 5.0)
        for n in range(5)
    ]
    found = advice(records)
    assert not found.is_conclusive
    assert found.runner_up is not None
    assert found.confidence + found.runner_up[1] == pytest.approx(1)


def test_a_recovery_that_never_ends_is_in_no_limit() -> None:
    lasting = swept(censored=5)
    assert best(advice(lasting, recovery=1e6)) == "checkpoint interval 5 s"
    assert best(advice(lasting, recovery=math.inf)) == "checkpoint interval 5 s"
    (longest,) = [one for one in choice(lasting).candidates if one.name == "checkpoint interval 10 s"]
    assert longest.figure("recovery.macro_s") == math.inf
    assert longest.lower_bound("recovery.macro_s") == pytest.approx(18, rel=0.1)


def test_a_sweep_that_leaves_nothing_to_choose_is_refused_with_what_it_varies() -> None:
    with pytest.raises(ConfigError, match="it varies only .*state"):
        advice(swept(intervals=(2.0,)))
    with pytest.raises(ConfigError, match="one configuration"):
        advice(swept(intervals=(2.0,), states=(1.0,)))


def test_a_cost_that_nothing_has_is_refused() -> None:
    plain = [one for one in swept() if one.config["fault"] == "none"]
    with pytest.raises(ConfigError, match="^recovery: "):
        advice(plain, "cpu", recovery=30.0)
    with pytest.raises(ValueError, match="speed: unknown"):
        Objective("speed")
    with pytest.raises(ValueError, match="above 0"):
        Objective("cpu", {"recovery": math.nan})


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=8))
def test_nothing_on_a_front_is_beaten_and_all_else_is(figures: list[tuple[int, int, int]]) -> None:
    values = np.array(figures, dtype=float)
    beaten = [any(bool(dominates(other, one)) for other in values) for one in values]
    assert not all(beaten)
    for one, lost in zip(values, beaten, strict=True):
        above = [
            other for other, theirs in zip(values, beaten, strict=True) if not theirs and bool(dominates(other, one))
        ]
        assert bool(above) == lost


def test_the_front_names_dominating_candidates_and_confidence() -> None:
    found = front_of(choice(swept()).candidates)
    assert sum(place.dominated_by is None for place in found.entries) == 3
    assert all(place.is_certain for place in found.entries)
    worse = [
        with_cpu(one, 9.0) if one.config["checkpoint_interval_s"] == 10.0 and one.config["fault"] != "none" else one
        for one in swept(scatter=0.01)
    ]
    last = front_of(choice(worse).candidates).entries[-1]
    assert last.candidate.name == "checkpoint interval 10 s"
    assert last.dominated_by in ("checkpoint interval 2 s", "checkpoint interval 5 s")
    assert not any(place.is_certain for place in front_of(choice(swept(repetitions=3)).candidates).entries)


def effects(records: Sequence[Record], key: str = "checkpoint_interval_s") -> dict[tuple[str, str], Effect]:
    """Return effects by target value and metric."""
    points = points_of([IndexEntry.of(one) for one in records])
    axes = axes_of(points)
    found = axis_effects(points, axes, [axis for axis in axes if axis.key == key])
    return {(one.after, one.metric.key): one for one in found}


def test_planted_effects_lie_in_their_intervals() -> None:
    found = effects(swept())
    for before, after in ((2, 5), (5, 10)):
        cpu, p99, macro = (found[f"{after} s", key] for key in (CPU_TOTAL, "latency_ms.p99", MACRO))
        assert cpu.verdict is p99.verdict is EffectVerdict.DIFFERS
        assert cpu.found.change.low < math.log((1.2 / after + 0.3) / (1.2 / before + 0.3)) < cpu.found.change.high
        assert p99.found.change.low < math.log(after / before) < p99.found.change.high
        assert macro.found.change.low < after - before < macro.found.change.high
        assert (cpu.found.n, cpu.found.is_paired, len(cpu.found.rows)) == (10, True, 2)
        assert cpu.before == f"{before} s"


def test_a_recovery_is_never_called_alike_more_exactly_than_it_is_known() -> None:
    found = effects(swept(scatter=0.001, states=(1.0, 8.0, 9.0)), "state_mb")
    macro = found["8 MB", MACRO]
    assert macro.verdict is EffectVerdict.EQUIVALENT
    assert macro.margin >= 5.0  # known to 2, 5 and 10 s


def test_single_runs_need_more_repetitions() -> None:
    found = effects(swept(repetitions=1))
    assert {one.verdict for one in found.values()} == {EffectVerdict.INCONCLUSIVE}
    assert {one.more_repetitions for one in found.values()} == {4}
    assert {one.p for one in found.values()} == {1.0}


def test_too_few_runs_need_more_repetitions() -> None:
    cpu = effects(swept(repetitions=2, states=(1.0,)))["5 s", CPU_TOTAL]
    assert cpu.verdict is EffectVerdict.INCONCLUSIVE  # two pairs: one degree of freedom
    assert cpu.more_repetitions == 1


def test_three_runs_of_each_configuration_can_be_believed() -> None:
    found = effects(swept((2.0, 10.0), states=(1.0,), repetitions=3, scatter=0.01))
    assert found["10 s", CPU_TOTAL].verdict is EffectVerdict.DIFFERS and found["10 s", CPU_TOTAL].found.freedom == 2


def test_what_scatters_much_is_open_and_takes_more_than_what_scatters_little() -> None:
    few = effects(swept((2.0, 2.2), scatter=0.05))["2.2 s", "latency_ms.p50"]
    many = effects(swept((2.0, 2.2), scatter=0.2))["2.2 s", "latency_ms.p50"]
    assert many.verdict is EffectVerdict.INCONCLUSIVE
    assert many.more_repetitions is not None
    assert few.more_repetitions is None or many.more_repetitions > few.more_repetitions


def test_more_lines_are_believed_less() -> None:
    records = swept((2.0, 2.3), scatter=0.06, seed=5)
    points = points_of([IndexEntry.of(one) for one in records])
    axes = axes_of(points)
    alone = axis_effects(points, axes, [axis for axis in axes if axis.key == "checkpoint_interval_s"])
    among = axis_effects(points, axes, axes)
    ours = {(one.axis.key, one.metric.key): one.p for one in alone}
    theirs = {(one.axis.key, one.metric.key): one.p for one in among}
    assert all(theirs[key] >= p for key, p in ours.items())
    assert any(theirs[key] > p for key, p in ours.items())


def test_rows_that_go_both_ways_are_not_called_alike() -> None:
    records = [
        record(
            f"a-{state}-{interval}-{n}",
            state_mb=float(state),
            checkpoint_interval_s=float(interval),
            duration_s=300.0,
            repetition=n,
            latency={"p50": 1000.0 * (1.3 if (state == 1) == (interval == 5) else 1.0) + n},
        )
        for state in (1, 8)
        for interval in (2, 5)
        for n in range(5)
    ]
    p50 = effects(records)["5 s", "latency_ms.p50"]
    assert p50.has_opposite_rows
    assert p50.verdict is EffectVerdict.INCONCLUSIVE
    assert "direction" in p50.why


def test_recoveries_from_different_faults_have_effects_of_their_own() -> None:
    records = [
        record(
            f"a-{fault}-{interval:g}-{n}",
            fault=fault,
            checkpoint_interval_s=interval,
            duration_s=300.0,
            repetition=n,
            recovery=RECOVERED | LIMITS | {"macro_s": 20 + slope * interval + n / 10, "resolution_s": 0.1},
        )
        for fault, slope in (("driver", -1.0), ("executor", 2.0))
        for interval in (2.0, 10.0)
        for n in range(3)
    ]
    points = points_of([IndexEntry.of(one) for one in records])
    axes = axes_of(points)
    found = [one for one in axis_effects(points, axes, axes) if one.metric.key == MACRO]
    changes = {(one.axis.key, one.fault): one.found.change.value for one in found}
    assert changes[axes[0].key, "driver kill"] == pytest.approx(-8, abs=0.5)
    assert changes[axes[0].key, "executor kill"] == pytest.approx(16, abs=0.5)
    assert changes.keys() == {(axes[0].key, "driver kill"), (axes[0].key, "executor kill"), ("fault", "")}


def test_a_load_that_was_asked_for_is_no_effect() -> None:
    assert not any(key == "throughput_rps" for _, key in effects(swept()))
