"""Every preset of every matrix is a sweep that could start; the form's own values win over a preset's."""

from __future__ import annotations

from typing import Any

import pytest

from faultline.experiment.common import DEMO, DEMO_RUNS
from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.matrices import DEFAULT, MATRICES, OWN, MatrixSpec
from faultline.experiment.matrix import plan
from faultline.system.errors import ConfigError

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
        # The slots of a topology are threads.
        assert all(
            cell.config.executors * cell.config.executor_cores <= 4 or cell.config.workload == "topology"
            for cell in cells
        )


def test_the_demo_asks_about_one_step_and_runs_both_sides_of_it_several_times_in_a_random_order() -> None:
    matrix = MATRICES["state_size_x_checkpoint_interval"].preset_matrix(DEMO)
    cells = matrix.cells("s")
    assert len({cell.config.config_id for cell in cells}) == 2 and len(cells) == 2 * DEMO_RUNS
    assert {cell.config.checkpoint_interval_s for cell in cells} == {2.0, 5.0}
    assert {cell.config.fault for cell in cells} == {"executor"}
    orders = [
        [(one.repetition, one.config.checkpoint_interval_s) for one in plan(cells, [], only_missing=True, seed=seed)]
        for seed in range(20)
    ]
    assert len({tuple(order) for order in orders}) > 1
    assert all([repetition for repetition, _ in order] == [0, 0, 1, 1, 2, 2] for order in orders), (
        "a block a repetition"
    )


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
    for given in ("1, 8", [1, 8], "1..8 x8"):
        assert spec.resolve({"state_mb": given, "preset": "smoke"})["state_mb"] == [1, 8]
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
    with pytest.raises(ConfigError) as refused:
        MATRICES["state_size_x_checkpoint_interval"].resolve(given)
    assert str(refused.value).startswith(said)


def test_an_unknown_preset_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="preset: 'papers' is not known; did you mean paper"):
        MATRICES["input_rate"].values("papers")
