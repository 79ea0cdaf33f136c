"""The authentication benchmark runs pairs, each in its own installation with or without authentication."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks import authentication, blocks, installation
from benchmarks.authentication import PAIRS, run
from faultline.installation.supervision import NO_AUTH
from faultline.records.record import Record
from faultline.system.settings import DEFAULT_PORTS, load_settings
from tests.unit.benchmarks.test_slowdowns import slowed


@pytest.fixture(autouse=True)
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FAULTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FAULTLINE_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr(installation, "down", lambda settings: None)
    yield
    os.environ.pop(NO_AUTH, None)


def test_both_sides_of_a_pair_are_measured_in_a_drawn_order(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, asked = np.random.default_rng(3), list[tuple[bool, str]]()

    def single(workload: str, words: Sequence[str], say: object, *, keep_topics: bool) -> Record:
        given = dict(word.split("=", 1) for word in words)
        asked.append((bool(os.environ.get(NO_AUTH)), given["repetition"]))
        closed = 0.0 if asked[-1][0] else 0.1
        return slowed(closed, noise=float(np.exp(rng.normal(0, 0.02))))

    monkeypatch.setattr(blocks, "run_single", single)
    found = run(lambda text: None, False)
    pairs = [asked[2 * number : 2 * number + 2] for number in range(PAIRS)]
    for number, pair in enumerate(pairs):
        assert {side for side, _ in pair} == {True, False} and {place for _, place in pair} == {str(number)}
    assert len({pair[0][0] for pair in pairs}) == 2, "neither side always comes first"
    assert found["cpu_change"].low <= 0.1 <= found["cpu_change"].high and found["cpu_change"].n == PAIRS


def test_its_installation_is_where_no_other_answers(tmp_path: Path) -> None:
    with authentication.own_home("x") as settings:
        assert load_settings().home == settings.home == tmp_path / "home" / "bench" / "x"
        chosen = json.loads((settings.home / "ports.json").read_text())
        assert chosen.keys() == DEFAULT_PORTS.keys() and not set(chosen.values()) & set(DEFAULT_PORTS.values())
        assert load_settings().ports == chosen
    assert load_settings().home == tmp_path / "home"
    with authentication.own_home("x"):
        assert load_settings().ports == chosen, "it stays where it is"
