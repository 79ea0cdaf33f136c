"""Events that the engine makes: their place in time, and the harvest of their batches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.engines.base import Commit
from faultline.engines.spark.checkpoint import committed_batches
from faultline.engines.tables import MS, harvest, tuples
from faultline.records.judge.signals import Numbering, bins_of_batches
from faultline.records.judge.tuples import fold, fold_tuples
from faultline.records.judge.work import throughput_rps
from faultline.system.errors import InfrastructureError
from faultline.system.window import NS, Window

T0 = 1_000 * NS


def commits(sizes: list[int], seconds: float = 0.5) -> list[Commit]:
    """Batches of these sizes, planned one after another from T0 on, each done after `seconds`."""
    made, end, at = [], 0, T0
    for number, size in enumerate(sizes):
        end += size
        made.append(Commit(0, number, at, at + round(seconds * NS), {"0": end}))
        at += round(seconds * NS)
    return made


@given(st.lists(st.integers(1, 10**7), min_size=4, max_size=40))
def test_what_batches_took_is_the_throughput(sizes: list[int]) -> None:
    made = commits(sizes)
    window = Window.of(T0, 0.0, len(sizes) * 0.5, 0.5)
    numbering = Numbering(made)
    bins = bins_of_batches(made, numbering, fold([tuples([]).to_pandas()], window), window)
    assert bins["records"].tolist() == sizes
    assert throughput_rps(bins, window) * window.duration_s == pytest.approx(sum(sizes))
    assert not bins["lag"].iloc[-1] and numbering.due(T0 - 1) == 0 and numbering.due(T0) == sizes[0]


def test_a_batch_is_as_late_as_it_is_long(tmp_path: Path) -> None:
    batches = [
        {"batch": one.number, "planned_wall_ns": one.planned_ns, "committed_wall_ns": one.committed_ns,
         "end_offsets": dict(one.ends)}
        for one in commits([10, 20, 30])
    ]  # fmt: skip
    batches.append({**batches[-1], "batch": 3})  # without events
    (tmp_path / "batches.json").write_text(json.dumps({"batches": batches}))
    given_to = tmp_path / "config.json"
    given_to.write_text(json.dumps({"batches": str(tmp_path / "batches.json"), "target": str(tmp_path / "harvest")}))
    harvest(given_to)
    folded = fold_tuples(tmp_path / "harvest" / "tuples.parquet", Window.of(T0, 0.0, 10.0, 1.0))
    assert folded.window.to_dict("list") == {"latency_ms": [500], "n": [60]}
    assert {path.name for path in (tmp_path / "harvest").iterdir()} == {
        "records.parquet", "tuples.parquet", "counts.parquet",
    }  # fmt: skip


@pytest.mark.parametrize(("gate_ns", "refused"), [(T0 + NS, False), (T0, True)])
def test_what_filled_the_state_may_be_gone_and_nothing_else(tmp_path: Path, gate_ns: int, refused: bool) -> None:
    kept = commits([10, 20, 30, 40])[1:]
    batches = [
        {"batch": one.number, "planned_wall_ns": one.planned_ns, "committed_wall_ns": one.committed_ns,
         "end_offsets": dict(one.ends)}
        for one in kept
    ]  # fmt: skip
    (tmp_path / "batches.json").write_text(json.dumps({"batches": batches}))
    (tmp_path / "gate.json").write_text(json.dumps({"t0_wall_ns": gate_ns}))
    given_to = tmp_path / "config.json"
    given_to.write_text(json.dumps({"batches": str(tmp_path / "batches.json"), "target": str(tmp_path / "harvest")}))
    if refused:
        with pytest.raises(InfrastructureError, match="batches before 1 are gone, some of them measured; raise batch"):
            harvest(given_to)
        return
    harvest(given_to)
    assert fold_tuples(tmp_path / "harvest" / "tuples.parquet", Window.of(T0, 0.0, 10.0, 1.0)).window["n"].sum() == 70


def test_the_engines_own_numbers_are_read_from_its_log(tmp_path: Path) -> None:
    for folder, text in (("offsets", 'v1\n{}\n{"offset":5000000,"timestamp":1000}'), ("commits", "v1\n{}")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "0").write_text(text)
    (batch,) = committed_batches(tmp_path)
    assert batch.ends == {"0": 5_000_000} and batch.committed_ns > (batch.planned_ns or 0) - MS


def test_the_place_of_events_in_time() -> None:
    """Batches that nobody planned count from their commit; commits of several epochs may come in any order."""
    unplanned = Commit(0, 1, None, T0 + 9, {"0": 30})
    numbering = Numbering([unplanned, Commit(0, 0, T0 + 5, T0 + 8, {"0": 10})])
    instants = (0, 4, 5, 8, 9, 10**9)
    assert [numbering.due(T0 + instant) for instant in instants] == [0, 0, 10, 10, 30, 30]
    assert (numbering.below({"0": 12, "1": 99}), numbering.below({})) == (12, 0)
    assert Numbering([]).due(T0) == 0
