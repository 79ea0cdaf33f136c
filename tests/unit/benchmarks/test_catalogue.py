"""Each benchmark is where the catalogue looks for it."""

from __future__ import annotations

import json
from importlib import import_module
from inspect import signature
from types import SimpleNamespace

import pytest

from benchmarks import catalogue
from benchmarks.figure import summarise
from faultline.system.errors import ConfigError


@pytest.mark.parametrize("name", catalogue.BENCHMARKS)
def test_every_benchmark_has_its_module(name: str) -> None:
    module = import_module(f"benchmarks.{catalogue.BENCHMARKS[name]}")
    assert list(signature(module.run).parameters) == ["progress", "quick"]


def test_an_outcome_holds_figures_as_plain_values(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(run=lambda say, quick: {"time_s": summarise([1.0, 2.0], "s")})
    monkeypatch.setattr(catalogue, "import_module", lambda name: module)
    outcome = json.loads(json.dumps(catalogue.run_benchmark("gate", print, quick=True)))
    figure = {"value": 1.5, "unit": "s", "low": 1.0, "high": 2.0, "n": 2, "values": [1.0, 2.0]}
    assert outcome["figures"] == {"time_s": figure} and outcome["name"] == "gate"
    with pytest.raises(ConfigError, match="got 'gates'.* did you mean gate"):
        catalogue.run_benchmark("gates", print, quick=True)


def test_a_figure_is_called_a_value_since_a_worst_one_is_no_median(capsys: pytest.CaptureFixture[str]) -> None:
    figure = {"value": 0.4, "low": 0.1, "high": 0.4, "n": 20, "unit": "bins"}
    catalogue.print_figures({"name": "known_truth", "figures": {"worst_time_error_bins": figure}})
    output = capsys.readouterr().out
    assert "median" not in output and all(word in output for word in ("value", "worst_time_error_bins", "0.4"))
