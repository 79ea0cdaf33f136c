"""Settings of each workload for Spark, generator and harvest, and offset ranges of batches."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.engines.spark.settings import configured_settings
from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.workloads.pi import PRIMER_TERMS
from faultline.experiment.workloads.protocol import WARM_UP_BATCHES
from faultline.experiment.workloads.registry import WORKLOADS
from faultline.system.settings import ROOT
from generators.spec import GeneratorSpec
from spark_jobs.harvest import bucket_width, ranges_of

ALLOWLIST = "spark.sql.streaming.realTimeMode.allowlistCheck"


def configuration(**values: Any) -> Configuration:
    return parse_configuration({"fault": "none", **values})


def workload_setting(what: str, workload: str, **values: Any) -> Any:
    """Return a property of a workload's kind for these parameters."""
    config = configuration(workload=workload, **values)
    return getattr(config.kind, what)(config.own)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_workload_has_an_existing_program(workload: str) -> None:
    program = WORKLOADS[workload].program
    assert program is None or (ROOT / "spark_jobs" / f"{program}.py").is_file()


@pytest.mark.parametrize("workload", sorted(WORKLOADS.keys() - {"known_truth"}))
def test_the_generator_supports_the_source_of_every_workload(workload: str) -> None:
    own = {"query": {"job": str(ROOT / "examples" / "word_count.py")}, "program": {"application": "/job.jar"}}
    config = configuration(workload=workload, **own.get(workload, {}))
    given = {"rate": config.rate, "seconds": 10, "rate_curve": config.rate_curve, "skew_curve": config.skew_curve}
    spec = GeneratorSpec(
        bootstrap="x", topic="x", partitions=2, state_mb=config.state_mb, **given, **config.input_source()
    )
    assert spec.source == config.input_source()["source"]
    assert bool(config.input_source().get("streams")) == config.kind.can("event_time")


def test_stocks_are_uniform_without_skew() -> None:
    assert configuration(workload="stock_group_by").input_source()["skew"] == 0
    assert configuration(workload="stock_join", skew=1.5).input_source()["skew"] == 1.5


def test_the_preload_of_pi_is_bounded_by_its_work() -> None:
    lines = {
        workload: workload_setting("primer_lines", workload) for workload in ("word_count", "pi", "stock_group_by")
    }
    assert lines == {"word_count": 2000, "pi": 2000, "stock_group_by": 10_000}
    assert workload_setting("primer_lines", "pi", iterations=100_000) * 100_000 == PRIMER_TERMS
    assert workload_setting("primer_lines", "pi", iterations=10_000_000) == WARM_UP_BATCHES
    long = configuration(workload="pi", iterations=100_000)
    assert long.primer_records == long.partitions + PRIMER_TERMS // 100_000


def test_only_stateful_queries_disable_the_real_time_allow_list() -> None:
    common = {"commit_mode": "unaligned", "checkpoint_interval_s": 5}
    assert configured_settings(configuration(workload="word_count", **common))[ALLOWLIST] == "false"
    assert ALLOWLIST not in configured_settings(configuration(workload="pi", **common))
    assert ALLOWLIST not in configured_settings(configuration(workload="word_count"))


@pytest.mark.parametrize(
    ("what", "workload", "own", "expected"),
    [
        ("tuples", "word_count_python", {}, {"tuples": "summed_words"}),
        ("tuples", "pi", {}, {"tuples": "pi"}),
        ("tuples", "stock_join", {"window_s": 20, "slide_s": 4, "watermark_s": 3},
         {"tuples": "join", "window_s": 20, "slide_s": 4, "late_ms": 3_600_000}),
        ("latency_method_of", "pi", {}, "id"),
        ("latency_method_of", "stock_group_by", {}, "batch"),
        ("latency_method_of", "known_truth", {"truth": {"style": "record"}}, "rank"),
    ],
)  # fmt: skip
def test_harvest_settings_of_windows_and_latency(what: str, workload: str, own: dict[str, Any], expected: Any) -> None:
    assert workload_setting(what, workload, **own) == expected


# Offset ranges of batches over state epochs; component tests cover the rest of the harvest.


def batch(lineage: int, number: int, start: dict[str, int] | None = None, **ends: int) -> dict[str, Any]:
    """Return a batch with `ends` by partition, such as p0=10."""
    offsets = {name.removeprefix("p"): end for name, end in ends.items()}
    return {"lineage": lineage, "batch": number, "end_offsets": offsets, "start_offsets": start}


def test_an_epoch_takes_nothing_before_its_start() -> None:
    batches = [
        batch(0, 0, p0=10, p1=10),
        batch(1, 0, {"0": 30, "1": 40}, p0=35, p1=40),  # nothing arrived on partition 1 yet
        batch(1, 1, p0=36, p1=44),
    ]
    first = [(0, 0, 0, 0, 10), (0, 0, 1, 0, 10)]
    assert ranges_of(batches) == [*first, (1, 0, 0, 30, 35), (1, 1, 0, 35, 36), (1, 1, 1, 40, 44)]


@given(st.lists(st.lists(st.integers(0, 5), min_size=2, max_size=2), min_size=1, max_size=20))
def test_the_ranges_of_one_epoch_cover_every_offset_once(steps: list[list[int]]) -> None:
    ends, batches = [0, 0], []
    for number, step in enumerate(steps):
        ends = [end + more for end, more in zip(ends, step, strict=True)]
        batches.append(batch(0, number, p0=ends[0], p1=ends[1]))
    for partition, end in enumerate(ends):
        taken = [offset for _, _, p, low, high in ranges_of(batches) if p == partition for offset in range(low, high)]
        assert taken == list(range(end))


@given(st.lists(st.integers(1, 5_000), min_size=1, max_size=30))
def test_buckets_at_most_double_the_number_of_ranges(lengths: list[int]) -> None:
    """Also for very unequal batches, such as a replay of the size of a hundred others."""
    ends, batches = 0, []
    for number, length in enumerate(lengths):
        ends += length
        batches.append(batch(0, number, p0=ends))
    ranges = ranges_of(batches)
    width = bucket_width(ranges)
    pieces = sum((high - 1) // width - low // width + 1 for *_, low, high in ranges)
    assert pieces <= 2 * len(ranges) + 1
    assert bucket_width([]) == 1, "without a batch, all the same"
