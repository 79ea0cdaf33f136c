"""Matrices, their plans and presets, and the text form of axes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.experiment.axes import axis_text, parse_axes, parse_axis
from faultline.experiment.cell import Cell
from faultline.experiment.commit_modes import modes_of
from faultline.experiment.common_parameters import DEMO, DEMO_RUNS
from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.matrices import MATRICES, OWN
from faultline.experiment.matrix import DEFAULT, Matrix, MatrixSpec, PlannedCell, control_of, plan, plan_pairs
from faultline.system.errors import ConfigError
from tests.support.refusals import refused

states = st.lists(st.sampled_from([0.0, 1.0, 2.0, 8.0]), min_size=1, max_size=4, unique=True)
intervals = st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=1, max_size=3, unique=True)


def matrix(axes: dict[str, list[float]], repetitions: int = 1, controls: int = 0) -> Matrix:
    return Matrix(axes, {"duration_s": 90.0}, repetitions, controls)


@given(states, intervals, st.integers(1, 3), st.integers(0, 2))
def test_each_point_is_measured_once_per_repetition(
    sizes: list[float], seconds: list[float], repetitions: int, controls: int
) -> None:
    cells = matrix({"state_mb": sizes, "checkpoint_interval_s": seconds}, repetitions, controls).cells("s")
    assert len(cells) == len({cell.cell for cell in cells}) == len(sizes) * len(seconds) * repetitions + controls
    assert sum(cell.config.fault == "none" for cell in cells) == controls
    assert {cell.config.state_mb for cell in cells} == set(sizes)


@given(states, st.integers(0, 50), st.data())
def test_plan_excludes_valid_cells_and_its_order_depends_on_the_seed(
    sizes: list[float], seed: int, data: st.DataObject
) -> None:
    cells = matrix({"state_mb": sizes}, repetitions=2).cells("s")
    done = data.draw(st.sets(st.sampled_from([cell.cell for cell in cells])))
    chosen = plan(cells, done, only_missing=True, seed=seed)
    assert {cell.cell for cell in chosen} == {cell.cell for cell in cells} - done
    assert chosen == plan(cells, done, only_missing=True, seed=seed)
    assert len(plan(cells, done, only_missing=False, seed=seed)) == len(cells)


@given(states, st.integers(2, 6), st.integers(0, 50), st.data())
def test_repetitions_are_sequential_and_resumed_in_the_same_order(
    sizes: list[float], repetitions: int, seed: int, data: st.DataObject
) -> None:
    cells = matrix({"state_mb": sizes}, repetitions).cells("s")
    whole = plan(cells, [], only_missing=True, seed=seed)
    assert [cell.repetition for cell in whole] == sorted(cell.repetition for cell in cells)
    done = data.draw(st.sets(st.sampled_from([cell.cell for cell in cells])))
    rest = [cell for cell in whole if cell.cell not in done]
    assert plan(cells, done, only_missing=True, seed=seed) == rest, "a resumed sweep keeps its order"


def test_block_orders_differ_and_other_series_are_ignored() -> None:
    cells = matrix({"state_mb": [1.0, 2.0, 3.0, 4.0]}, 8).cells("today")
    yesterday = [Cell(cell.config.config_id, cell.repetition, "yesterday") for cell in cells]
    planned = [cell.config.state_mb for cell in plan(cells, yesterday, only_missing=True, seed=1)]
    assert len(planned) == len(cells)
    assert len({tuple(planned[4 * block : 4 * block + 4]) for block in range(8)}) > 4


def test_parameter_of_one_engine_is_dropped_for_the_other() -> None:
    """Points of the other engine that differ only in it coincide."""
    tuned = {"heartbeat.timeout": "5s"}
    both = Matrix({"engine": ["spark", "flink"], "flink_conf": [None, tuned]}, {"shuffle_partitions": 4})
    assert both.only_of == {"shuffle_partitions": ["spark"], "flink_conf": ["flink"]}
    found = [(one.engine, one.flink_conf, one.shuffle_partitions) for one in both.configurations()]
    assert found == [("spark", None, 4), ("flink", None, 2), ("flink", tuned, 2)]
    alone = Matrix({"engine": ["flink"]}, {"shuffle_partitions": 4})
    assert [one.shuffle_partitions for one in alone.configurations()] == [4], "`Engine.check` refuses it"


def test_commit_mode_of_one_engine_is_dropped_for_the_other() -> None:
    modes = ["aligned", "aligned-changelog", "at-least-once"]
    both = Matrix({"engine": ["spark", "flink"], "commit_mode": modes}, {})
    found = [(one.engine, one.commit_mode) for one in both.configurations()]
    assert found == [(engine, mode) for engine in ("spark", "flink") for mode in modes if mode in modes_of(engine)]
    alone = Matrix({"engine": ["flink"], "commit_mode": ["unaligned"]}, {})
    assert len(alone.configurations()) == 1, "`Engine.check` refuses it"


def test_engines_side_by_side_have_two_settings_each() -> None:
    spec = MATRICES["spark_and_flink_recovery"]
    found = spec.preset_matrix().configurations()
    settings = {(one.engine, one.commit_mode, (one.flink_conf or {}).get("heartbeat.interval")) for one in found}
    assert settings == {
        ("spark", "aligned", None), ("spark", "aligned-changelog", None),
        ("flink", "aligned", None), ("flink", "aligned", "1s"),
    }  # fmt: skip
    assert len(found) == len(settings) * 8
    alone = spec.matrix(spec.resolve({"engine": "flink"})).configurations()
    assert {(one.commit_mode, one.flink_conf) for one in alone} == {("aligned", None)}, "settings of both are dropped"
    own = spec.resolve({"axes": {"flink_conf": [{"heartbeat.interval": "2s"}]}})
    assert own["flink_conf"] == [{"heartbeat.interval": "2s"}], "a given axis replaces that of the preset"


def test_parameter_of_some_workloads_is_dropped_for_the_others() -> None:
    some = Matrix({"workload": ["word_count", "query", "program"]}, {"job": "/j.py", "application": "/a.py"})
    assert some.only_of == {"job": ["query"], "application": ["program"]}
    found = {one.workload: (one.job, one.application) for one in some.configurations()}
    assert found == {"word_count": (None, None), "query": ("/j.py", None), "program": (None, "/a.py")}
    plain = parse_configuration({"workload": "word_count"})
    assert plain in some.configurations(), "the parameter does not change its identity"
    along = Matrix({"workload": ["word_count", "pi"], "iterations": [100, 1000]}, {}, repetitions=2)
    assert [(one.config.workload, one.config.iterations) for one in along.cells("s")[::2]] == [
        ("word_count", plain.iterations), ("pi", 100), ("pi", 1000)
    ]  # fmt: skip
    assert len(along.configurations()) == 3
    for lone in ({"workload": ["word_count"]}, {"workload": ["word_count", "pi"]}, {"seed": [1, 2]}):
        with pytest.raises(ConfigError, match=r"^job: "):
            Matrix(lone, {"job": "/j.py"}).configurations()


def test_control_is_the_same_configuration_without_fault() -> None:
    config = matrix({"state_mb": [1.0]}).configurations()[0]
    control = control_of(config)
    assert (control.fault, control.fault_at_s) == ("none", None)
    assert control == config.model_copy(update={"fault": "none", "fault_at_s": None}) != config


@pytest.mark.parametrize(
    ("axes", "key"),
    [
        ({"state": [1.0]}, "state"),
        ({"state_mb": []}, "state_mb"),
        ({"seed": list(range(1025))}, "seed"),
        ({"rate": [-1]}, "rate"),
    ],
)
def test_invalid_matrix_names_key(axes: dict[str, list[float]], key: str) -> None:
    with refused(f"{key}: "):
        matrix(axes).cells("s")


@given(st.integers(0, 99), st.integers(1, 5), st.sets(st.tuples(st.integers(0, 4), st.booleans()), max_size=6))
def test_pairs_are_adjacent_within_blocks(seed: int, repetitions: int, done: Any) -> None:
    configs = [parse_configuration({"rate": 100 + number}) for number in range(3)]
    cells = [PlannedCell(config, number, "nightly") for number in range(repetitions) for config in configs]
    ordered = plan_pairs(cells, "other", (), only_missing=True, seed=seed)
    assert len(ordered) == len(set(ordered)) == 2 * len(cells)
    assert all(a.label == b.label and a.series != b.series for a, b in zip(ordered[::2], ordered[1::2], strict=True))
    assert [one.repetition for one in ordered] == sorted(one.repetition for one in ordered)
    measured = {cells[number % len(cells)] for number, _ in done}
    left = plan_pairs(cells, "other", [one.cell for one in measured], only_missing=True, seed=seed)
    assert left == [one for one in ordered if one not in measured], "a resumed nightly run keeps its order"
    assert plan_pairs(cells, "other", [one.cell for one in measured], only_missing=False, seed=seed) == ordered


def test_first_of_a_pair_is_random() -> None:
    config = parse_configuration({})
    cells = [PlannedCell(config, number, "nightly") for number in range(200)]
    first = [one.series for one in plan_pairs(cells, "other", (), only_missing=True, seed=3)[::2]]
    assert 70 <= first.count("other") <= 130


def test_fault_plan_replaces_one_value_of_the_axis_fault() -> None:
    plan = {"faults": [{"victim": "kafka", "action": "cut", "at_s": 41, "duration_s": 2}]}
    fixed = {"fault_plan": plan, "duration_s": 100.0}
    broken, control = Matrix({"fault": ["kafka", "none"]}, fixed).configurations()
    assert (broken.fault, len(broken.planned_faults())) == ("kafka", 1), "the plan determines the fault"
    assert (control.fault, control.fault_plan, control.duration_s) == ("none", None, broken.duration_s)
    with pytest.raises(ConfigError, match="^fault_plan: .*driver"):
        Matrix({"fault": ["executor", "driver"]}, fixed).configurations()
    with pytest.raises(ConfigError, match="^fault_plan: .*kafka"):
        Matrix({"fault": ["executor", "none"]}, fixed).configurations()
    with pytest.raises(ConfigError, match="^fault_plan: "):
        Matrix({"fault": ["none"]}, fixed).configurations()


# ---- Presets ----

BOTH = [(spec, preset) for spec in MATRICES.values() for preset in spec.presets]


@pytest.mark.parametrize(("spec", "preset"), BOTH, ids=[f"{spec.name}-{preset}" for spec, preset in BOTH])
def test_each_preset_is_a_valid_sweep(spec: MatrixSpec, preset: str) -> None:
    cells = spec.preset_matrix(preset).cells("s")
    assert cells
    if preset == "smoke":
        assert len(cells) == 1 and cells[0].config.fault == "none"
    if preset == DEFAULT:
        fewer = spec.name == "nexmark" or all(cell.config.injections > 1 for cell in cells)
        assert {cell.repetition for cell in cells} == set(range(3 if fewer else 5))
        seconds = sum(cell.config.warmup_s + cell.config.duration_s for cell in cells)
        assert seconds <= 9 * 3600, "at most 9 hours"
        slots = [one.config.executors * one.config.executor_cores for one in cells if one.config.workload != "topology"]
        assert max(slots, default=0) <= 4, "topology tasks are threads and not counted"


def test_demo_repeats_both_sides_of_one_step_in_random_order() -> None:
    matrix = MATRICES["state_size_x_checkpoint_interval"].preset_matrix(DEMO)
    cells = matrix.cells("s")
    assert len({cell.config.config_id for cell in cells}) == 2 and len(cells) == 2 * DEMO_RUNS
    assert {cell.config.checkpoint_interval_s for cell in cells} == {2.0, 5.0}
    assert {cell.config.fault for cell in cells} == {"executor"}
    orders = [plan(cells, [], only_missing=True, seed=seed) for seed in range(20)]
    assert len({tuple(one.config.checkpoint_interval_s for one in order) for order in orders}) > 1
    assert {tuple(one.repetition for one in order) for order in orders} == {(0, 0, 1, 1, 2, 2)}, (
        "each repetition is a block"
    )


def test_paper_presets_use_the_published_values() -> None:
    rate = MATRICES["input_rate"].values("paper")
    assert (min(rate["rate"]), max(rate["rate"]), rate["duration_s"], rate["repetitions"]) == (3.97, 46_071.31, 300, 5)
    cores = MATRICES["executor_cores"].values("paper")
    assert (cores["executors"], cores["executor_cores"], cores["duration_s"]) == (4, [2, 4, 8, 16], 120)
    state = MATRICES["state_size_x_checkpoint_interval"].values("paper")
    assert (min(state["state_mb"]), max(state["state_mb"]), state["rate"]) == (0, 15, 5000)
    assert min(state["checkpoint_interval_s"]) == 1 and 30 in state["checkpoint_interval_s"]
    assert MATRICES["skew_x_alignment_mode"].values("paper")["checkpoint_interval_s"] == 30


@pytest.mark.parametrize(("spec", "preset"), BOTH, ids=[f"{spec.name}-{preset}" for spec, preset in BOTH])
def test_preset_fills_only_empty_fields(spec: MatrixSpec, preset: str) -> None:
    """A given value of any field is kept and changes no other field."""
    empty = dict.fromkeys([*Configuration.model_fields, "series", "repetitions", "controls", "axes"])
    untouched = spec.resolve({**empty, "preset": preset})
    assert untouched == spec.resolve({"preset": preset}) | {"series": None, "preset": preset}
    for name in Configuration.model_fields:
        typed = untouched.get(name, Configuration.model_fields[name].default)
        for value in (typed, Configuration.model_fields[name].default):
            if value is None or name in spec.bound.values():  # see the test below
                continue
            filled = spec.resolve({**empty, "preset": preset, name: value})
            assert filled[name] == (value if name not in spec.axes or isinstance(value, list) else [value])
            assert {**filled, name: None} == {**untouched, name: None}
    for name, number in (("repetitions", 1), ("controls", 0)):
        assert spec.resolve({**empty, "preset": preset, name: number})[name] == number


def test_preset_values_of_one_source_are_dropped_for_another() -> None:
    spec = MATRICES["nexmark"]
    engine, kafka = spec.resolve({"preset": "smoke"}), spec.resolve({"preset": "smoke", "source": "kafka"})
    assert "batch_events" in engine and "batch_events" not in kafka and "rate" not in kafka
    assert kafka["axes"] == ("query", "source", "state_store")
    assert spec.resolve({"preset": "smoke", "source": "kafka", "rate": 50})["rate"] == [50]
    assert spec.resolve({"preset": "smoke", "source": "engine"}) == engine


def test_axis_is_a_text_list_or_value_of_any_parameter() -> None:
    spec = MATRICES["state_size_x_checkpoint_interval"]
    for typed in ("1, 8", [1, 8], "1..8 x8"):
        assert spec.resolve({"state_mb": typed, "preset": "smoke"})["state_mb"] == [1, 8]
    found = spec.resolve({"preset": "smoke", "axes": "seed=1..3; rate=100, 200", "state_mb": 2})
    assert found["axes"] == ("state_mb", "checkpoint_interval_s", "fault", "seed", "rate")
    cells = spec.matrix(found).cells("s")
    assert {(one.config.seed, one.config.rate) for one in cells} == {(s, r) for s in (1, 2, 3) for r in (100, 200)}
    assert len(cells) == 6 and {one.config.state_mb for one in cells} == {2}


def test_custom_sweep_accepts_every_parameter_of_an_experiment() -> None:
    spec = MATRICES[OWN]
    found = spec.matrix(spec.resolve({"workload": "pi", "fault": "none", "axes": {"iterations": [100, 1000]}}))
    assert [one.iterations for one in found.configurations()] == [100, 1000]
    assert found.configurations()[0] == parse_configuration({"workload": "pi", "fault": "none", "iterations": 100})
    assert found.repetitions == 5
    assert len(spec.preset_matrix("default").configurations()) == 1, "no axis gives one repeated configuration"


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"rate": 5, "axes": "rate=1, 2"}, "rate"),
        ({"axes": "rat=1, 2"}, "rat"),
        ({"axes": "rate"}, "axes"),
        ({"axes": 5}, "axes"),
        ({"state_mb": "1, 1.0"}, "state_mb"),
        ({"state_mb": []}, "state_mb"),
        ({"preset": "papers"}, "preset"),
    ],
)
def test_invalid_axes_name_key(given: dict[str, Any], key: str) -> None:
    with refused(f"{key}: "):
        MATRICES["state_size_x_checkpoint_interval"].resolve(given)


# ---- Text form of an axis ----

NUMBERS = st.one_of(
    st.integers(-(10**9), 10**9), st.floats(-1e9, 1e9, allow_nan=False).map(lambda value: round(value, 6))
)
NAMES = st.from_regex(r"[a-z][a-z0-9_-]{0,12}", fullmatch=True).filter(
    lambda name: name not in ("null", "true", "false")
)


def distinct(values: list[Any]) -> list[Any]:
    return list({float(value) if isinstance(value, int | float) else value: value for value in values}.values())


@given(st.lists(NUMBERS, min_size=1, max_size=12).map(distinct))
def test_numbers_round_trip_through_text(values: list[Any]) -> None:
    assert parse_axis("rate", axis_text(values)) == values == parse_axis("rate", values)
    assert parse_axis("rate", json.dumps(values)) == values, "JSON"
    assert parse_axis("rate", f"[{axis_text(values)}]") == values


@given(st.lists(NAMES, min_size=1, max_size=6, unique=True))
def test_names_round_trip_through_text(values: list[str]) -> None:
    assert parse_axis("fault", axis_text(values)) == values


@given(st.integers(0, 50), st.integers(1, 9), st.integers(0, 100))
def test_range_with_step_equals_python_range(low: int, step: int, count: int) -> None:
    high = low + step * count
    assert parse_axis("seed", f"{low}..{high} +{step}") == list(range(low, high + 1, step))


@given(st.integers(1, 50), st.integers(2, 5), st.integers(0, 8))
def test_range_with_factor_grows_and_includes_its_end(low: int, factor: int, count: int) -> None:
    high = low * factor**count
    for sign in "x×*":
        assert parse_axis("rate", f"{low}..{high} {sign}{factor}") == [low * factor**n for n in range(count + 1)]


def test_ranges_and_values_combine_without_accumulated_rounding() -> None:
    assert parse_axis("seed", "1..3, 10") == [1, 2, 3, 10]
    assert parse_axis("recovered_within", "0.1..0.5 +0.1") == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert parse_axis("checkpoint_interval_s", "[1..60x2]") == [1, 2, 4, 8, 16, 32]


def test_names_stay_text_and_objects_keep_commas() -> None:
    assert parse_axis("parallelism", "1-2-2, 1-1-1") == ["1-2-2", "1-1-1"]
    assert parse_axis("corpus", "1, 2") == ["1", "2"] and parse_axis("skew", "null, 1.5") == [None, 1.5]
    plan = {"faults": [{"victim": "driver", "at_s": 45}]}
    assert parse_axis("fault_plan", f"{json.dumps(plan)}, null") == [plan, None]
    assert parse_axes(f"fault_plan={json.dumps(plan)}; seed=1, 2") == {"fault_plan": [plan], "seed": [1, 2]}
    with refused("rates: "):
        parse_axis("rates", "1")
    with refused("axes: ", "seed"):
        parse_axes("seed=1; seed=2")


@pytest.mark.parametrize("text", ["", "[]", "1, 1", "0.5..2", "8..1", "1..8 x1", "0..8 x2", "1..100000", '{"a": 1'])
def test_invalid_axis_text_names_parameter(text: str) -> None:
    with refused("rate: "):
        parse_axis("rate", text)
