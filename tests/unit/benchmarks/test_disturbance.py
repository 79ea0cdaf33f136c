"""Planted biases are recovered, and an interrupted benchmark resumes."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from benchmarks import blocks as experiments
from benchmarks.broken_sweeps import BenchmarkLog
from benchmarks.neighbours import disturbance
from benchmarks.neighbours.disturbance import (
    AGAIN,
    MEASURED,
    QUIET,
    SHARES,
    Values,
    bias_of,
    figures,
    limit_of,
    measure,
    measure_one,
    neighbours,
    scatter_of,
    values_of,
)
from benchmarks.neighbours.neighbour import BURST_S, KINDS, STEADY_S, neighbour, use_cpu
from faultline.experiment.matrices import MOST_MEASUREMENTS
from faultline.records.record import Record
from faultline.records.work_parts import WaitedPart
from faultline.system.errors import InfrastructureError
from tests.unit.sample_records import sample

NAMES = [one.name for one in neighbours(SHARES, False)]


def planted(rng: np.random.Generator, share: float, scatter: float, slope: float) -> Values:
    """An experiment that lost half of what its neighbour took."""
    lost = share / 2
    factor = float(np.exp(slope * lost + rng.normal(0, scatter)))
    return {"p50": 500 * factor, "cpu": 90.0, "recovery": None, "others": lost, "worst_5s": 2 * lost}


def test_planted_bias_scatter_and_limit_are_found() -> None:
    rng, scatter, slope = np.random.default_rng(5), 0.02, 0.4
    blocks = [
        {one.name: planted(rng, one.share, scatter, slope) for one in neighbours(SHARES, False)} for _ in range(40)
    ]
    found = figures(blocks)
    assert found["scatter_p50"].low <= scatter <= found["scatter_p50"].high
    bias = found["bursts_80_p50_bias"]
    assert bias.low <= np.expm1(slope * 0.4) <= bias.high and bias.n == 40
    assert found["limit_p50"].value == pytest.approx(scatter / slope, rel=0.3)
    assert found["steady_40_lost"].value == pytest.approx(0.2) and found["steady_40_worst_5s"].value == 0.4
    assert "steady_40_recovery_bias" not in found, "no recovery was seen to end"
    assert found["scatter_cpu"].value == 0 and "limit_cpu" not in found, "no change with the loss"


def test_each_block_has_each_neighbour_once_under_a_unique_name() -> None:
    assert len(set(NAMES)) == len(NAMES) == 2 + len(KINDS) * len(SHARES)
    assert {QUIET.name, AGAIN.name} < set(NAMES)


def test_too_few_values_have_no_figure() -> None:
    assert scatter_of(np.array([0.1])) is None and bias_of(np.array([])) is None
    assert limit_of(np.array([(0.1, 0.1)] * 2), 0.1) is None
    assert limit_of(np.array([(0.1, -0.2)] * 5), 0.1) is None, "a change against the loss has no limit"
    one = bias_of(np.array([0.1]))
    assert one is not None and one.low == one.value == one.high
    with pytest.raises(InfrastructureError):
        figures([{QUIET.name: {"p50": 1.0}}])


def record(lost: float, status: str = "valid", reasons: tuple[str, ...] = ()) -> Record:
    one = sample(status=status)
    waited = WaitedPart(others=lost, stolen=0.0, worst_5s=2 * lost)
    metrics = one.metrics.model_copy(update={"waited": waited})
    return one.model_copy(update={"metrics": metrics, "reasons": list(reasons)})


def test_what_is_only_disturbed_is_used_and_what_else_is_invalid_is_measured_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [record(0.3, "invalid", ("clock-jumped: x",)), record(0.3, "invalid", ("background-load: x",))]
    monkeypatch.setattr(experiments, "run_single", lambda *_, **__: answers.pop(0))
    found = measure_one(QUIET, [], lambda text: None)
    assert found is not None and values_of(found)["others"] == 0.3 and not answers
    answers = [record(0.0, "failed", ("InfrastructureError: x",)) for _ in range(MOST_MEASUREMENTS)]
    assert measure_one(QUIET, [], lambda text: None) is None and not answers


def test_an_interrupted_benchmark_measures_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def single(workload: str, words: list[str], *_: object, **__: object) -> Record:
        if len(asked) == 4:
            raise InfrastructureError("interrupted")
        asked.append((words[-2], words[-1].rpartition("-")[2]))
        return record(0.1)

    monkeypatch.setattr(experiments, "run_single", single)
    monkeypatch.setattr(disturbance, "LONGEST_S", 5.0)
    three = neighbours((0.1,), True)
    with pytest.raises(InfrastructureError):
        measure(BenchmarkLog(tmp_path / "diary.jsonl", MEASURED), three, 2, [], lambda text: None)
    asked.append(("interrupted", ""))
    blocks = measure(BenchmarkLog(tmp_path / "diary.jsonl", MEASURED), three, 2, [], lambda text: None)
    assert [set(block) for block in blocks] == [{one.name for one in three}] * 2
    assert len(asked) == len(set(asked)) == 2 * 3 + 1, "none twice"


@pytest.mark.parametrize("kind", KINDS)
def test_a_neighbour_takes_no_more_than_its_share_and_ends_with_what_started_it(kind: str) -> None:
    began = time.monotonic()
    with neighbour(kind, 0.4, 60.0) as pid:
        process = psutil.Process(pid)
        while time.monotonic() - began < 3.0:
            time.sleep(0.1)
        used, passed_s = process.cpu_times(), time.monotonic() - began
    assert 0 < used.user + used.system < 0.4 * passed_s + 2 * BURST_S + STEADY_S
    assert not process.is_running()
    with neighbour(kind, 0.0, 60.0) as nothing:
        assert nothing is None


def test_a_neighbour_ends_by_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "empty").open("w+") as file:
        monkeypatch.setattr("sys.stdin", file)
        use_cpu(0.5, 0.01, 3600.0)  # returns, since its input has ended; else the test's own limit ends it
