"""Forms, results and problems of the benchmark `matrices`."""

from __future__ import annotations

import pytest

from benchmarks.matrices import PRESET, QUICK, MatrixOutcome, figures, form, problems_of
from faultline.experiment.matrices import MATRICES
from tests.unit.sample_records import sample

REASON = "schedule-lag: p99 is 30 ms"


def outcome(*statuses: str, state: str = "success", matrix: str = "input_rate") -> MatrixOutcome:
    records = tuple(sample(status=one, reasons=[] if one == "valid" else [REASON]) for one in statuses)
    return MatrixOutcome(matrix, "s1", state, 60.0, records)


def test_every_matrix_has_the_preset_and_the_quick_ones_exist() -> None:
    assert all(PRESET in spec.presets for spec in MATRICES.values())
    assert len(QUICK) == 2 and set(QUICK) <= set(MATRICES)


def test_the_form_measures_whatever_is_known_already() -> None:
    assert form("bench-1") == {"preset": "smoke", "series": "bench-1", "only_missing": False}


def test_a_matrix_with_a_valid_record_is_fine_however_many_tries_it_took() -> None:
    tried = outcome("invalid", "valid")
    assert problems_of(tried) == [] and (len(tried.records), tried.valid) == (2, 1)
    assert len(tried.reasons) == 1 and tried.reasons[0].endswith(f"invalid: {REASON}")


@pytest.mark.parametrize(
    ("ended", "problem"),
    [
        (outcome(state="failed"), "input_rate: no usable record, no record at all"),
        (
            outcome("invalid", state="failed"),
            f"input_rate: no usable record: 20261121T061500Z-3fa9c1 invalid: {REASON}",
        ),
        (outcome("valid", state="failed"), "input_rate: its run ended in state failed"),
    ],
)
def test_what_went_wrong_is_named(ended: MatrixOutcome, problem: str) -> None:
    assert problems_of(ended) == [problem]


def test_figures_are_by_matrix() -> None:
    found = figures([outcome("valid"), outcome("invalid", "valid", matrix="recovery")], pages=8)
    assert {name: figure.value for name, figure in found.items()} == {
        "input_rate_s": 60.0,
        "input_rate_experiments": 1,
        "input_rate_valid": 1,
        "recovery_s": 60.0,
        "recovery_experiments": 2,
        "recovery_valid": 1,
        "matrices_s": 120.0,
        "pages": 8,
    }
