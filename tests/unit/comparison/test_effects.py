"""What a step along an axis does, from records."""

from __future__ import annotations

import math
from collections.abc import Sequence

from faultline.comparison.cells import axes_of, points_of
from faultline.comparison.effects import Effect, Verdict, effects_along
from faultline.records.catalogue import CPU_TOTAL, MACRO
from faultline.records.record import Record
from faultline.records.summary import Entry
from tests.unit.pages_store import record
from tests.unit.swept_records import swept


def effects(records: Sequence[Record], key: str = "checkpoint_interval_s") -> dict[tuple[str, str], Effect]:
    """By the value after and the metric."""
    points = points_of([Entry.of(one) for one in records])
    axes = axes_of(points)
    found = effects_along(points, axes, [axis for axis in axes if axis.key == key])
    return {(one.after, one.metric.key): one for one in found}


def test_what_was_planted_lies_in_each_interval_and_is_told() -> None:
    found = effects(swept())
    for before, after in ((2, 5), (5, 10)):
        cpu, p99, macro = (found[f"{after} s", key] for key in (CPU_TOTAL, "latency_ms.p99", MACRO))
        assert cpu.verdict is p99.verdict is Verdict.DIFFERS
        assert cpu.found.change.low < math.log((1.2 / after + 0.3) / (1.2 / before + 0.3)) < cpu.found.change.high
        assert p99.found.change.low < math.log(after / before) < p99.found.change.high
        assert macro.found.change.low < after - before < macro.found.change.high
        assert (cpu.found.n, cpu.found.paired, len(cpu.found.rows)) == (10, True, 2)
        assert cpu.before == f"{before} s"


def test_a_recovery_is_never_called_alike_more_exactly_than_it_is_known() -> None:
    found = effects(swept(scatter=0.001, states=(1.0, 8.0, 9.0)), "state_mb")
    macro = found["8 MB", MACRO]
    assert macro.verdict is Verdict.SAME
    assert macro.margin >= 5.0  # known to 2, 5 and 10 s


def test_once_is_noise_and_says_how_many_more_would_tell() -> None:
    found = effects(swept(repetitions=1))
    assert {one.verdict for one in found.values()} == {Verdict.OPEN}
    assert {one.more for one in found.values()} == {4}
    assert {one.p for one in found.values()} == {1.0}


def test_too_few_to_believe_says_how_many_more() -> None:
    cpu = effects(swept(repetitions=2, states=(1.0,)))["5 s", CPU_TOTAL]
    assert cpu.verdict is Verdict.OPEN  # two pairs: one degree of freedom
    assert cpu.more == 1


def test_three_runs_of_each_configuration_can_be_believed() -> None:
    found = effects(swept((2.0, 10.0), states=(1.0,), repetitions=3, scatter=0.01))
    assert found["10 s", CPU_TOTAL].verdict is Verdict.DIFFERS and found["10 s", CPU_TOTAL].found.freedom == 2


def test_what_scatters_much_is_open_and_takes_more_than_what_scatters_little() -> None:
    few = effects(swept((2.0, 2.2), scatter=0.05))["2.2 s", "latency_ms.p50"]
    many = effects(swept((2.0, 2.2), scatter=0.2))["2.2 s", "latency_ms.p50"]
    assert many.verdict is Verdict.OPEN
    assert many.more is not None
    assert few.more is None or many.more > few.more


def test_more_lines_are_believed_less() -> None:
    records = swept((2.0, 2.3), scatter=0.06, seed=5)
    points = points_of([Entry.of(one) for one in records])
    axes = axes_of(points)
    alone = effects_along(points, axes, [axis for axis in axes if axis.key == "checkpoint_interval_s"])
    among = effects_along(points, axes, axes)
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
    assert p50.opposed
    assert p50.verdict is Verdict.OPEN
    assert "which way" in p50.why


def test_a_load_that_was_asked_for_is_no_effect() -> None:
    assert not any(key == "throughput_rps" for _, key in effects(swept()))
