"""Every preset of every matrix is a sweep that could start; the form's own values win over a preset's."""

from __future__ import annotations

import pytest

from faultline.base.errors import ConfigError
from faultline.experiment.config import Configuration
from faultline.experiment.matrices import DEFAULT, MATRICES, MatrixSpec
from faultline.experiment.matrix import Matrix

BOTH = [(spec, preset) for spec in MATRICES.values() for preset in spec.presets]


@pytest.mark.parametrize(("spec", "preset"), BOTH, ids=[f"{spec.name}-{preset}" for spec, preset in BOTH])
def test_each_preset_is_a_sweep_that_could_start(spec: MatrixSpec, preset: str) -> None:
    cells = Matrix.under(spec.complete(preset), spec.axes).cells("s")
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


def test_the_demo_is_a_part_of_the_default_sweep() -> None:
    spec = MATRICES["state_size_x_checkpoint_interval"]
    demo, default = (
        {one.cell for one in Matrix.under(spec.complete(preset), spec.axes).cells("s")} for preset in ("demo", DEFAULT)
    )
    assert demo < default, "what the demo measured is not measured again"


def test_the_papers_values_are_those_of_their_texts() -> None:
    rate = MATRICES["input_rate"].values("paper")
    assert (min(rate["rate"]), max(rate["rate"]), rate["duration_s"], rate["repetitions"]) == (3.97, 46_071.31, 300, 5)
    cores = MATRICES["executor_cores"].values("paper")
    assert (cores["executors"], cores["executor_cores"], cores["duration_s"]) == (4, [2, 4, 8, 16], 120)
    state = MATRICES["state_size_x_checkpoint_interval"].values("paper")
    assert (min(state["state_mb"]), max(state["state_mb"]), state["rate"]) == (0, 15, 5000)
    assert min(state["checkpoint_interval_s"]) == 1 and 30 in state["checkpoint_interval_s"]
    assert MATRICES["skew_x_alignment_mode"].values("paper")["checkpoint_interval_s"] == 30


def test_a_field_that_was_changed_in_the_form_wins_over_the_preset() -> None:
    spec = MATRICES["state_size_x_checkpoint_interval"]
    form = spec.complete(DEFAULT) | {"rate": 77.0, "state_mb": [3.0], "only_missing": True}
    paper = spec.resolve(form, "paper")
    assert (paper["rate"], paper["state_mb"], paper["only_missing"]) == (77.0, [3.0], True)
    assert paper["checkpoint_interval_s"] == spec.values("paper")["checkpoint_interval_s"]
    assert (paper["repetitions"], paper["fault"]) == (5, ["none"])
    assert spec.resolve(form, DEFAULT) == form


def test_what_a_call_names_stands_also_at_its_default() -> None:
    spec = MATRICES["state_size_x_checkpoint_interval"]
    params = spec.complete(DEFAULT)
    assert params["duration_s"] is None, "each cell's is what its interval needs"
    called = spec.resolve(params, "paper", {"preset": "paper", "duration_s": None})
    assert called["duration_s"] is None is not spec.values("paper")["duration_s"]
    assert called["rate"] == spec.values("paper")["rate"]
    # The form sends every field: one that was left as it shows is not chosen.
    assert spec.resolve(params, "paper", dict(params))["duration_s"] == spec.values("paper")["duration_s"]


def test_a_preset_takes_back_what_only_the_default_one_sets() -> None:
    spec = MATRICES["executor_cores"]
    smoke = spec.resolve(spec.complete(DEFAULT), "smoke")
    assert smoke["partitions"] == Configuration.model_fields["partitions"].default


def test_an_unknown_preset_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="preset: 'papers' is not known; did you mean paper"):
        MATRICES["input_rate"].values("papers")
