"""Each benchmark is where the catalogue looks for it."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from faultline.bench import catalogue


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
