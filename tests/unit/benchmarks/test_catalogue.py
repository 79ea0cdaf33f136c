"""Each benchmark is where the catalogue looks for it."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from benchmarks import catalogue


def test_every_benchmark_has_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def note(name: str) -> SimpleNamespace:
        looked.append(name)
        return SimpleNamespace(run=lambda say, quick: {})

    monkeypatch.setattr(catalogue, "import_module", note)
    of_modules = [run for run in catalogue.BENCHMARKS.values() if run.__qualname__.startswith("_module.")]
    for run in of_modules:
        assert run(print, True) == {}
    assert len(looked) == len(of_modules) > 5
    assert [name for name in looked if find_spec(name) is None] == []


def test_a_figure_is_called_a_value_since_a_worst_one_is_no_median(capsys: pytest.CaptureFixture[str]) -> None:
    figure = {"value": 0.4, "low": 0.1, "high": 0.4, "n": 20, "unit": "bins"}
    catalogue.print_figures({"name": "known_truth", "figures": {"worst_time_error_bins": figure}})
    said = capsys.readouterr().out
    assert "median" not in said and all(word in said for word in ("value", "worst_time_error_bins", "0.4"))
