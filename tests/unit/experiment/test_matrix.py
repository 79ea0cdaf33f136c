"""Matrices expand to cells, and a plan leaves out what is done."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.experiment.axes import axis_text, parse_axes, parse_axis
from faultline.experiment.cell import Cell
from faultline.experiment.common_parameters import DEMO, DEMO_RUNS
from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.matrices import DEFAULT, MATRICES, OWN, MatrixSpec
from faultline.experiment.matrix import Matrix, PlannedCell, control_of, plan, plan_pairs
from faultline.system.errors import ConfigError
from tests.support.refusals import refused

states = st.lists(st.sampled_from([0.0, 1.0, 2.0, 8.0]), min_size=1, max_size=4, unique=True)
intervals = st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=1, max_size=3, unique=True)


def matrix(axes: dict[str, list[float]], repetitions: int = 1, controls: int = 0) -> Matrix:
    return Matrix(axes, {"duration_s": 90.0}, repetitions, controls)


@given(states, intervals, st.integers(1, 3), st.integers(0, 2))
def test_every_point_is_measured_each_repetition_once(
    sizes: list[float], seconds: list[float], repetitions: int, controls: int
) -> None:
    cells = matrix({"state_mb": sizes, "checkpoint_interval_s": seconds}, repetitions, controls).cells("s")
    assert len(cells) == len({cell.cell for cell in cells}) == len(sizes) * len(seconds) * repetitions + controls
    assert sum(cell.config.fault == "none" for cell in cells) == controls
    assert {cell.config.state_mb for cell in cells} == set(sizes)


@given(states, st.integers(0, 50), st.data())
def test_a_plan_is_the_matrix_minus_what_is_valid_in_an_order_fixed_by_the_seed(
    sizes: list[float], seed: int, data: st.DataObject
) -> None:
    cells = matrix({"state_mb": sizes}, repetitions=2).cells("s")
    done = data.draw(st.sets(st.sampled_from([cell.cell for cell in cells])))
    chosen = plan(cells, done, only_missing=True, seed=seed)
    assert {cell.cell for cell in chosen} == {cell.cell for cell in cells} - done
    assert chosen == plan(cells, done, only_missing=True, seed=seed)
    assert len(plan(cells, done, only_missing=False, seed=seed)) == len(cells)


@given(states, st.integers(2, 6), st.integers(0, 50), st.data())
def test_one_repetition_comes_after_the_other_each_in_an_order_of_its_own(
    sizes: list[float], repetitions: int, seed: int, data: st.DataObject
) -> None:
    cells = matrix({"state_mb": sizes}, repetitions).cells("s")
    whole = plan(cells, [], only_missing=True, seed=seed)
    assert [cell.repetition for cell in whole] == sorted(cell.repetition for cell in cells)
    done = data.draw(st.sets(st.sampled_from([cell.cell for cell in cells])))
    rest = [cell for cell in whole if cell.cell not in done]
    assert plan(cells, done, only_missing=True, seed=seed) == rest, "a sweep that is resumed goes on in its order"


def test_the_orders_of_repetitions_differ_and_records_of_another_series_do_not_count() -> None:
    cells = matrix({"state_mb": [1.0, 2.0, 3.0, 4.0]}, 8).cells("today")
    yesterday = [Cell(cell.config.config_id, cell.repetition, "yesterday") for cell in cells]
    planned = [cell.config.state_mb for cell in plan(cells, yesterday, only_missing=True, seed=1)]
    assert len(planned) == len(cells)
    assert len({tuple(planned[4 * block : 4 * block + 4]) for block in range(8)}) > 4


def test_what_only_some_workloads_of_the_axis_have_the_others_are_measured_without() -> None:
    some = Matrix({"workload": ["word_count", "query", "program"]}, {"job": "/j.py", "application": "/a.py"})
    assert some.only_of == {"job": ["query"], "application": ["program"]}
    found = {one.workload: (one.job, one.application) for one in some.configurations()}
    assert found == {"word_count": (None, None), "query": ("/j.py", None), "program": (None, "/a.py")}
    plain = parse_configuration({"workload": "word_count"})
    assert plain in some.configurations(), "it is the same experiment as without the others"
    along = Matrix({"workload": ["word_count", "pi"], "iterations": [100, 1000]}, {}, repetitions=2)
    assert [(one.config.workload, one.config.iterations) for one in along.cells("s")[::2]] == [
        ("word_count", plain.iterations), ("pi", 100), ("pi", 1000)
    ]  # fmt: skip
    assert len(along.configurations()) == 3
    for lone in ({"workload": ["word_count"]}, {"workload": ["word_count", "pi"]}, {"seed": [1, 2]}):
        with pytest.raises(ConfigError, match="job: only query has it; leave it empty"):
            Matrix(lone, {"job": "/j.py"}).configurations()


def test_a_control_is_the_same_experiment_without_its_fault() -> None:
    config = matrix({"state_mb": [1.0]}).configurations()[0]
    control = control_of(config)
    assert (control.fault, control.fault_at_s) == ("none", None)
    assert control == config.model_copy(update={"fault": "none", "fault_at_s": None}) != config


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"state": [1.0]}, "state: unknown parameter; did you mean state_mb?"),
        ({"state_mb": []}, "state_mb: the axis is empty"),
        ({"seed": list(range(1025))}, "seed: 1025 experiments are more than 1024; split"),
        ({"rate": [-1]}, "rate: -1 is refused"),
    ],
)
def test_a_wrong_matrix_is_refused_by_name(axes: dict[str, list[float]], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        matrix(axes).cells("s")


@given(st.integers(0, 99), st.integers(1, 5), st.sets(st.tuples(st.integers(0, 4), st.booleans()), max_size=6))
def test_both_of_a_pair_come_one_after_the_other_in_blocks(seed: int, repetitions: int, done: Any) -> None:
    configs = [parse_configuration({"rate": 100 + number}) for number in range(3)]
    cells = [PlannedCell(config, number, "night") for number in range(repetitions) for config in configs]
    ordered = plan_pairs(cells, "other", (), only_missing=True, seed=seed)
    assert len(ordered) == len(set(ordered)) == 2 * len(cells)
    assert all(a.label == b.label and a.series != b.series for a, b in zip(ordered[::2], ordered[1::2], strict=True))
    assert [one.repetition for one in ordered] == sorted(one.repetition for one in ordered)
    measured = {cells[number % len(cells)] for number, _ in done}
    left = plan_pairs(cells, "other", [one.cell for one in measured], only_missing=True, seed=seed)
    assert left == [one for one in ordered if one not in measured], "a night that is resumed goes on in its order"
    assert plan_pairs(cells, "other", [one.cell for one in measured], only_missing=False, seed=seed) == ordered


def test_which_of_a_pair_comes_first_is_drawn_by_lot() -> None:
    config = parse_configuration({})
    cells = [PlannedCell(config, number, "night") for number in range(200)]
    first = [one.series for one in plan_pairs(cells, "other", (), only_missing=True, seed=3)[::2]]
    assert 70 <= first.count("other") <= 130


def test_a_plan_stands_for_one_value_of_the_axis_fault_beside_the_control() -> None:
    plan = {"faults": [{"victim": "kafka", "action": "cut", "at_s": 41, "duration_s": 2}]}
    fixed = {"fault_plan": plan, "duration_s": 100.0}
    broken, control = Matrix({"fault": ["kafka", "none"]}, fixed).configurations()
    assert (broken.fault, len(broken.planned_faults())) == ("kafka", 1), "the plan decides what is broken"
    assert (control.fault, control.fault_plan, control.duration_s) == ("none", None, broken.duration_s)
    with pytest.raises(ConfigError, match="fault_plan: it would make executor and driver on the axis fault the same"):
        Matrix({"fault": ["executor", "driver"]}, fixed).configurations()
    with pytest.raises(ConfigError, match="fault_plan: it begins with kafka, which is not on the axis fault"):
        Matrix({"fault": ["executor", "none"]}, fixed).configurations()
    with pytest.raises(ConfigError, match="fault_plan: the axis fault holds nothing but none"):
        Matrix({"fault": ["none"]}, fixed).configurations()


# ---- Every preset of every matrix is a sweep that could start; the form's own values win over a preset's ----

BOTH = [(spec, preset) for spec in MATRICES.values() for preset in spec.presets]


@pytest.mark.parametrize(("spec", "preset"), BOTH, ids=[f"{spec.name}-{preset}" for spec, preset in BOTH])
def test_each_preset_is_a_sweep_that_could_start(spec: MatrixSpec, preset: str) -> None:
    cells = spec.preset_matrix(preset).cells("s")
    assert cells
    if preset == "smoke":
        assert len(cells) == 1 and cells[0].config.fault == "none"
    if preset == DEFAULT:
        assert spec.name == "nexmark" or {cell.repetition for cell in cells} == set(range(5)), "fewer tell nothing"
        seconds = sum(cell.config.warmup_s + cell.config.duration_s for cell in cells)
        assert seconds <= 8 * 3600, "a night on two cores"
        slots = [one.config.executors * one.config.executor_cores for one in cells if one.config.workload != "topology"]
        assert max(slots, default=0) <= 4, "those of a topology are threads"


def test_the_demo_asks_about_one_step_and_runs_both_sides_of_it_several_times_in_a_random_order() -> None:
    matrix = MATRICES["state_size_x_checkpoint_interval"].preset_matrix(DEMO)
    cells = matrix.cells("s")
    assert len({cell.config.config_id for cell in cells}) == 2 and len(cells) == 2 * DEMO_RUNS
    assert {cell.config.checkpoint_interval_s for cell in cells} == {2.0, 5.0}
    assert {cell.config.fault for cell in cells} == {"executor"}
    orders = [plan(cells, [], only_missing=True, seed=seed) for seed in range(20)]
    assert len({tuple(one.config.checkpoint_interval_s for one in order) for order in orders}) > 1
    assert {tuple(one.repetition for one in order) for order in orders} == {(0, 0, 1, 1, 2, 2)}, "a block a repetition"


def test_the_papers_values_are_those_of_their_texts() -> None:
    rate = MATRICES["input_rate"].values("paper")
    assert (min(rate["rate"]), max(rate["rate"]), rate["duration_s"], rate["repetitions"]) == (3.97, 46_071.31, 300, 5)
    cores = MATRICES["executor_cores"].values("paper")
    assert (cores["executors"], cores["executor_cores"], cores["duration_s"]) == (4, [2, 4, 8, 16], 120)
    state = MATRICES["state_size_x_checkpoint_interval"].values("paper")
    assert (min(state["state_mb"]), max(state["state_mb"]), state["rate"]) == (0, 15, 5000)
    assert min(state["checkpoint_interval_s"]) == 1 and 30 in state["checkpoint_interval_s"]
    assert MATRICES["skew_x_alignment_mode"].values("paper")["checkpoint_interval_s"] == 30


@pytest.mark.parametrize(("spec", "preset"), BOTH, ids=[f"{spec.name}-{preset}" for spec, preset in BOTH])
def test_a_preset_fills_what_is_empty_and_nothing_else(spec: MatrixSpec, preset: str) -> None:
    """Each preset with each field: what was typed stands, whatever its value, and no other field moves."""
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


def test_what_a_preset_sets_for_its_own_source_goes_with_it() -> None:
    spec = MATRICES["nexmark"]
    engine, kafka = spec.resolve({"preset": "smoke"}), spec.resolve({"preset": "smoke", "source": "kafka"})
    assert "batch_events" in engine and "batch_events" not in kafka and "rate" not in kafka
    assert kafka["axes"] == ("query", "source", "state_store")
    assert spec.resolve({"preset": "smoke", "source": "kafka", "rate": 50})["rate"] == [50]
    assert spec.resolve({"preset": "smoke", "source": "engine"}) == engine


def test_an_axis_is_a_text_a_list_or_one_value_and_any_parameter_may_be_one() -> None:
    spec = MATRICES["state_size_x_checkpoint_interval"]
    for typed in ("1, 8", [1, 8], "1..8 x8"):
        assert spec.resolve({"state_mb": typed, "preset": "smoke"})["state_mb"] == [1, 8]
    found = spec.resolve({"preset": "smoke", "axes": "seed=1..3; rate=100, 200", "state_mb": 2})
    assert found["axes"] == ("state_mb", "checkpoint_interval_s", "fault", "seed", "rate")
    cells = spec.matrix(found).cells("s")
    assert {(one.config.seed, one.config.rate) for one in cells} == {(s, r) for s in (1, 2, 3) for r in (100, 200)}
    assert len(cells) == 6 and {one.config.state_mb for one in cells} == {2}


def test_a_sweep_of_ones_own_takes_what_a_single_experiment_would() -> None:
    spec = MATRICES[OWN]
    found = spec.matrix(spec.resolve({"workload": "pi", "fault": "none", "axes": {"iterations": [100, 1000]}}))
    assert [one.iterations for one in found.configurations()] == [100, 1000]
    assert found.configurations()[0] == parse_configuration({"workload": "pi", "fault": "none", "iterations": 100})
    assert found.repetitions == 5
    assert len(spec.preset_matrix("default").configurations()) == 1, "without an axis one configuration, repeated"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rate": 5, "axes": "rate=1, 2"}, "rate: stands in axes and has a value of its own"),
        ({"axes": "rat=1, 2"}, "rat: unknown parameter; did you mean rate"),
        ({"axes": "rate"}, "axes: 'rate' names no values"),
        ({"axes": 5}, "axes: 5 is neither text nor an object"),
        ({"state_mb": "1, 1.0"}, "state_mb: 1.0 stands twice on the axis"),
        ({"state_mb": []}, "state_mb: the axis is empty"),
        ({"preset": "papers"}, "preset: 'papers' is not known; did you mean paper"),
    ],
)
def test_wrong_axes_are_refused_by_name(given: dict[str, Any], said: str) -> None:
    with refused(said):
        MATRICES["state_size_x_checkpoint_interval"].resolve(given)


# ---- An axis as people write it ----

NUMBERS = st.one_of(
    st.integers(-(10**9), 10**9), st.floats(-1e9, 1e9, allow_nan=False).map(lambda value: round(value, 6))
)
NAMES = st.from_regex(r"[a-z][a-z0-9_-]{0,12}", fullmatch=True).filter(
    lambda name: name not in ("null", "true", "false")
)


def distinct(values: list[Any]) -> list[Any]:
    return list({float(value) if isinstance(value, int | float) else value: value for value in values}.values())


@given(st.lists(NUMBERS, min_size=1, max_size=12).map(distinct))
def test_numbers_come_back_from_their_text_as_from_their_list(values: list[Any]) -> None:
    assert parse_axis("rate", axis_text(values)) == values == parse_axis("rate", values)
    assert parse_axis("rate", json.dumps(values)) == values, "as JSON, too"
    assert parse_axis("rate", f"[{axis_text(values)}]") == values


@given(st.lists(NAMES, min_size=1, max_size=6, unique=True))
def test_names_come_back_from_their_text(values: list[str]) -> None:
    assert parse_axis("fault", axis_text(values)) == values


@given(st.integers(0, 50), st.integers(1, 9), st.integers(0, 100))
def test_a_range_with_a_step_is_what_range_makes(low: int, step: int, many: int) -> None:
    high = low + step * many
    assert parse_axis("seed", f"{low}..{high} +{step}") == list(range(low, high + 1, step))


@given(st.integers(1, 50), st.integers(2, 5), st.integers(0, 8))
def test_a_range_with_a_factor_grows_by_it_and_holds_its_end(low: int, factor: int, many: int) -> None:
    high = low * factor**many
    for sign in "x×*":
        assert parse_axis("rate", f"{low}..{high} {sign}{factor}") == [low * factor**n for n in range(many + 1)]


def test_ranges_and_values_may_stand_together_and_rounding_does_not_add_up() -> None:
    assert parse_axis("seed", "1..3, 10") == [1, 2, 3, 10]
    assert parse_axis("recovered_within", "0.1..0.5 +0.1") == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert parse_axis("checkpoint_interval_s", "[1..60x2]") == [1, 2, 4, 8, 16, 32]


def test_names_stay_names_and_objects_keep_their_commas() -> None:
    assert parse_axis("parallelism", "1-2-2, 1-1-1") == ["1-2-2", "1-1-1"]
    assert parse_axis("corpus", "1, 2") == ["1", "2"] and parse_axis("skew", "null, 1.5") == [None, 1.5]
    plan = {"faults": [{"victim": "driver", "at_s": 45}]}
    assert parse_axis("fault_plan", f"{json.dumps(plan)}, null") == [plan, None]
    assert parse_axes(f"fault_plan={json.dumps(plan)}; seed=1, 2") == {"fault_plan": [plan], "seed": [1, 2]}
    with refused("rates: unknown parameter; did you mean rate"):
        parse_axis("rates", "1")
    with refused("axes: seed is given twice"):
        parse_axes("seed=1; seed=2")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "rate: the axis is empty"),
        ("[]", "rate: the axis is empty"),
        ("1, 1", "rate: 1 stands twice"),
        ("0.5..2", "rate: 0.5..2 has no step; write 0.5..2 +0.5, say, or 0.5..2 ×2"),
        ("8..1", "rate: 8..1 runs backwards"),
        ("1..8 x1", "rate: 1..8 x1 never reaches its end"),
        ("0..8 x2", "rate: 0..8 x2 never reaches its end"),
        ("1..100000", "rate: more than 1024 values"),
        ('{"a": 1', "rate: '{\"a\": 1' lacks a closing }"),
    ],
)
def test_what_makes_no_axis_is_refused_by_its_name(text: str, said: str) -> None:
    with refused(said):
        parse_axis("rate", text)
