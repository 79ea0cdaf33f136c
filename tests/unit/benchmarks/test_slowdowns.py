"""Planted slowdowns are identified."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks import blocks
from benchmarks.slowdowns import BLOCKS, PLANTED, figures, run
from faultline.engines.spark.conf_rules import BUSY
from faultline.experiment.build import parse_build
from faultline.records.record import Record
from faultline.records.work_parts import CpuPerMillion
from faultline.system.errors import InfrastructureError
from tests.unit.sample_records import sample

COST_US = 1_000.0


def slowed(share: float, *, reach: float = 0.5, noise: float = 1.0, status: str = "valid") -> Record:
    """Return a word count with added CPU per record, half of it in the latency."""
    p50 = 800 * (1 + reach * share) * noise
    one = sample(latency={"p50": p50, "p99": 2 * p50, "max": 3 * p50}, status=status)
    cost = CpuPerMillion(engine=COST_US * (1 + share) * noise, workers=None)
    return one.model_copy(update={"metrics": one.metrics.model_copy(update={"cpu_s_per_million": cost})})


def test_what_is_planted_is_seen_by_size_and_where_it_reaches() -> None:
    rng = np.random.default_rng(1)
    blocks = [
        {share: slowed(share, noise=float(np.exp(rng.normal(0, 0.02)))) for share in (0.0, *PLANTED)}
        for _ in range(BLOCKS)
    ]
    found = figures(blocks, lambda text: None)
    for share in PLANTED:
        change = found[f"cpu_{share * 100:.0f}_change"]
        assert change.low <= share <= change.high and change.n == BLOCKS
        assert found[f"p50_{share * 100:.0f}_change"].value == pytest.approx(share / 2, abs=0.03)
    assert found["cpu_20_suspected"].value == 1
    assert 0 < found["cpu_5_visible"].value < 0.2


def test_nothing_planted_is_not_suspected() -> None:
    rng = np.random.default_rng(2)
    blocks = [
        {share: slowed(0.0, noise=float(np.exp(rng.normal(0, 0.05)))) for share in (0.0, *PLANTED)}
        for _ in range(BLOCKS)
    ]
    found = figures(blocks, lambda text: None)
    assert [found[f"{name}_{share * 100:.0f}_suspected"].value for name in ("cpu", "p50") for share in PLANTED] == (
        [0.0] * 6
    )


def test_each_block_has_every_build_once_and_the_work_follows_from_what_a_record_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[float, str]] = []

    def single(workload: str, words: Sequence[str], say: object, *, keep_topics: bool) -> Record:
        given = dict(word.split("=", 1) for word in words)
        spec = parse_build(given.get("build_spec"), "build_spec")
        busy_us = float(spec.settings.get(BUSY, 0))
        asked.append((busy_us, given["repetition"]))
        return slowed(busy_us / COST_US)

    monkeypatch.setattr(blocks, "run_single", single)
    found = run(lambda text: None, False)
    assert found["busy_us"].value == COST_US / 10
    assert asked[0] == (0.0, "0"), "what a record takes is measured first"
    for number in range(BLOCKS):
        block = asked[1 + 4 * number : 5 + 4 * number]
        assert sorted(busy_us for busy_us, _ in block) == [0.0, *(share * COST_US for share in PLANTED)]
        assert {repetition for _, repetition in block} == {str(number)}
    orders = {tuple(busy_us for busy_us, _ in asked[1 + 4 * number : 5 + 4 * number]) for number in range(BLOCKS)}
    assert len(orders) > 1


def test_what_is_disturbed_is_measured_again_and_given_up_after_three(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses = iter(["invalid", "invalid", "valid", "invalid", "invalid", "invalid"])
    tried: list[str] = []

    def single(*_: object, **__: object) -> Record:
        tried.append(next(statuses))
        return slowed(0.0, status=tried[-1])

    monkeypatch.setattr(blocks, "run_single", single)
    lines: list[str] = []
    with pytest.raises(InfrastructureError, match="no usable record after 3 measurements"):
        run(lines.append, True)
    assert len(tried) == 6 and sum("measuring again" in one for one in lines) == 5


def test_the_settings_that_plant_work_are_those_of_a_build() -> None:
    spec = parse_build(json.dumps({"settings": {BUSY: 12.5}}), "build_spec")
    assert dict(spec.settings) == {BUSY: "12.5"}
