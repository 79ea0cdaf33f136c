"""Registry of engines: discovery, selection by workload, and conflicts."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fault import plan
from fault.identity import ANY, VICTIMS
from faultline.engines.flink.engine import Flink
from faultline.engines.ground_truth.engine import GroundTruthEngine
from faultline.engines.protocol import CYCLES, Commit, Engine, EngineEvent, FaultInterval, Traces, VictimGroup, covers
from faultline.engines.registry import ENGINES, Registry, engine_of
from faultline.engines.spark.engine import Spark
from faultline.experiment.commit_modes import COMMIT_MODES
from faultline.experiment.common_parameters import CommitMode
from faultline.experiment.config import Configuration
from faultline.experiment.workloads.registry import WORKLOADS

MOON = dataclasses.replace(Spark.capabilities, cycles=frozenset({"moon", "checkpoint"}))
OFFSETS = st.dictionaries(st.sampled_from("012"), st.integers(0, 9))


def engine(kind: type[Spark] | type[GroundTruthEngine], **changes: object) -> Engine:
    made = kind()
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_every_sub_package_offers_its_engine() -> None:
    assert {name: type(one) for name, one in ENGINES.by_name.items()} == {
        "flink": Flink,
        "spark": Spark,
        "known_truth": GroundTruthEngine,
    }


def test_capabilities_match_the_configuration() -> None:
    assert (set(COMMIT_MODES), set(CYCLES)) == (set(get_args(CommitMode)), set(plan.CYCLES))
    roles = {*VICTIMS, "kafka_connection"} - {ANY}
    assert set(ENGINES.by_name["spark"].roles) == roles


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("named", ["spark", "flink"])
def test_the_workload_claims_its_engine_else_the_named_one_counts(workload: str, named: str) -> None:
    config = Configuration.model_construct(workload=workload, engine=named)
    assert engine_of(config).name == ("known_truth" if workload == "known_truth" else named)
    for values in ({}, {"engine": "of another version"}):
        assert ENGINES.of_values({"workload": workload, **values}).name in ("known_truth", ENGINES.default.name)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"name": "spark", "exclusive_workloads": frozenset({"a"})}, r"^b\.py: .*name spark.* a\.py$"),
        (
            {"name": "other", "exclusive_workloads": {"a"}, "capabilities": MOON},
            r"^b\.py: .*moon$",
        ),
    ],
)
def test_conflicting_engines_are_rejected(second: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Registry({"a.py": Spark(), "b.py": engine(Spark, **second)})


def test_each_workload_is_claimed_by_one_engine() -> None:
    with pytest.raises(ValueError, match=r"^c\.py: .*workload known_truth.* b\.py$"):
        Registry({"a.py": Spark(), "b.py": GroundTruthEngine(), "c.py": engine(GroundTruthEngine, name="other")})


def test_discovery_imports_no_heavy_modules() -> None:
    # The fault scheduler imports the registry and must start quickly with little memory.
    heavy = "pandas numpy confluent_kafka pyarrow scipy"
    code = "import sys, faultline.engines.registry as r; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "faultline.engines.spark.engine" in found
    assert not {*heavy.split()} & {*found}


@given(OFFSETS, OFFSETS)
def test_offsets_must_be_covered_on_every_partition(committed: dict[str, int], wanted: dict[str, int]) -> None:
    missing = [name for name, end in wanted.items() if end > committed.get(name, 0)]
    assert covers(committed, wanted) is Commit(0, 0, None, 1, committed).covers(wanted) is (not missing)


@given(st.integers(0, 10**12), st.integers(-(10**9), 10**9), st.none() | st.integers(0, 10**9))
def test_an_instant_belongs_to_the_preceding_fault(t0: int, after: int, length: int | None) -> None:
    span = FaultInterval(t0, None if length is None else t0 + length)
    belongs = after >= -10_000_000 and (length is None or after < length)
    assert span.contains(t0 + after) is belongs
    assert span.contains(None) is False


def test_unknown_roles_have_no_detection() -> None:
    hit = VictimGroup("any", [], FaultInterval(0))
    for one in ENGINES.by_name.values():
        assert one.detect(hit, Traces("batch", events=(EngineEvent("lost", "executor", "a/0", 5, "f", "t"),))) is None
        assert one.without_effect(hit, Traces("batch")) is None
