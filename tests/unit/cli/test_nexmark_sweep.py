"""All queries with one command: what is filled into the form, and how many events a second each handles."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from benchmarks.nexmark import figures, source_figures
from faultline.cli.nexmark_sweep import describe, print_queries, wanted_of
from faultline.comparison.findings.nexmark import Kind, per_core, per_machine, silent, table_of
from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.matrices import MATRICES
from faultline.experiment.workloads.nexmark_events import DENSE_RATE, QUERIES
from faultline.records.record import Record
from faultline.system.errors import ConfigError
from tests.unit.sample_records import CENSORED, RECOVERED, sample

NUMBERS = count()


def record(query: str, rps: float, *, status: str = "valid", **config: Any) -> Record:
    """A record of `query` with so many events a second, on two cores and the driver's 0.186; `config` makes it another
    configuration."""
    made = sample(workload="nexmark", query=query, status=status, attempt=f"20261121T061500Z-{next(NUMBERS):06x}")
    metrics = made.metrics.model_copy(update={"rps_per_core": rps / 2, "throughput_rps": rps})
    update = {"metrics": metrics, "matrix": "nexmark", "config": {**made.config, **config}}
    return made.model_copy(update=update | ({"config_id": str(config)} if config else {}))


def test_words_become_the_form_and_axes_become_lists() -> None:
    wanted = wanted_of(["preset=smoke", "rate=50000", "repetitions=2", "warmup_s=7"])
    assert wanted.form == {"preset": "smoke", "rate": [50_000], "repetitions": 2, "warmup_s": 7.0}
    assert wanted_of(["source=kafka"]).form == {"source": ["kafka"]}
    for words in (["source=kafka"], ["source=kafka", "preset=smoke"]):
        through_kafka = wanted_of(words).matrix.configurations()[0]
        assert through_kafka.rate == 2000 and through_kafka.model_dump()["batch_events"] is None, "as its source has it"
    # What is given is held against the preset: this second is one that its windows have room for.
    broken = wanted_of(["preset=recovery", "fault=driver", "fault_at_s=60"]).form
    assert broken == {"preset": "recovery", "fault": "driver", "fault_at_s": 60.0}
    spec, cells = MATRICES["nexmark"], wanted.matrix.cells("b")
    assert len(cells) == 2 and cells[0].config.rate == 50_000 and cells[0].config.warmup_s == 7
    assert len(spec.preset_matrix().cells("b")) == 3 * len(QUERIES)


@pytest.mark.parametrize("preset", MATRICES["nexmark"].presets)
@pytest.mark.parametrize("given", [["warmup_s=30"], ["duration_s=95", "repetitions=3"], ["source=kafka"]])
def test_what_is_triggered_is_what_is_waited_for(preset: str, given: list[str]) -> None:
    wanted = wanted_of([f"preset={preset}", *given])
    # As the DAG reads its form, where what was not filled in is empty.
    form = {**dict.fromkeys(Configuration.model_fields), **wanted.form}
    spec = MATRICES["nexmark"]
    assert spec.matrix(spec.resolve(form)).cells("b") == wanted.matrix.cells("b")
    assert {one.config.source for one in wanted.matrix.cells("b")} <= {"kafka", "engine"}


def test_one_query_is_the_one_of_the_matrix() -> None:
    spec = MATRICES["nexmark"]
    one = parse_configuration({"workload": "nexmark", "query": "q5"})
    assert one in spec.preset_matrix().configurations()


def test_a_dry_run_says_what_is_left_and_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTLINE_RESULTS", str(tmp_path))
    said = describe(["preset=smoke", "build=x"])
    assert said[0] == "nexmark, preset smoke: 1 configuration, 1 experiment"
    assert said[-1] == "1 to measure: about 1 min on an idle machine"
    said = describe(["build=x"])
    assert said[0] == f"nexmark, preset default: {len(QUERIES)} configurations, {3 * len(QUERIES)} experiments"
    assert said[-1].startswith(f"{3 * len(QUERIES)} to measure: about 2 h ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["preset"], "preset: give KEY=VALUE"),
        (["presets=x"], "presets: unknown parameter; did you mean preset?"),
        (["preset=tiny"], "preset: 'tiny' is not known"),
        (["repetitions=0"], "repetitions: '0' is refused; use a whole number from 1 to 100"),
        (["rate=1", "rate=2"], "rate: given twice"),
        (["state_store=redis"], "state_store: 'redis' is not known"),
        (["preset=recovery", "fault_at_s=36"], "fault_at_s: 36 lies outside [50, 100]"),
        (["preset=recovery", "source=engine"], "fault: events from the engine keep no schedule"),
    ],
)
def test_bad_words_are_refused_before_anything_starts(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        wanted_of(words)
    assert str(refused.value).startswith(said)


def test_figures_are_per_core_with_the_driver_and_of_the_machine_and_only_valid_records_count() -> None:
    found = figures([record("q0", 2e6), record("q0", 3e6), record("q0", 9e6, status="unsound")])
    assert set(found) == {
        "events_per_s_q0", "events_per_s_per_core_q0", "events_per_s_per_core_with_driver_q0"
    }, "and no ratio to what was measured elsewhere"  # fmt: skip
    assert found["events_per_s_q0"].value == pytest.approx(2.5e6) and found["events_per_s_q0"].n == 2
    assert found["events_per_s_per_core_q0"].low == pytest.approx(1e6)
    assert found["events_per_s_per_core_with_driver_q0"].low == pytest.approx(2e6 / 2.186)
    assert per_core([record("q0", 1e6, status="failed")]) == per_machine([record("q0", 1e6, status="failed")]) == {}


def test_without_the_drivers_cpu_only_its_figure_is_missing() -> None:
    known = record("q0", 2e6)
    cpu = known.metrics.cpu_cores.model_copy(update={"driver": None})
    unknown = known.model_copy(update={"metrics": known.metrics.model_copy(update={"cpu_cores": cpu})})
    assert set(figures([unknown])) == {"events_per_s_q0", "events_per_s_per_core_q0"}
    assert table_of([unknown, record("q1", 2e6)])[2:] == ["| q0 | 1,000 | — | 2,000 |", "| q1 | 1,000 | 915 | 2,000 |"]


def test_the_tables_have_a_line_a_query(capsys: pytest.CaptureFixture[str]) -> None:
    records = [record("q10", 1e6), record("q2", 2e6), record("q2", 4e6)]
    lines = table_of(records)
    assert lines[0] == "| query | empty state: per core | empty state: with the driver | empty state: machine |"
    assert lines[2:] == [
        "| q2 | 1,500 (1,000–2,000) | 1,372 (915–1,830) | 3,000 (2,000–4,000) |",
        "| q10 | 500 | 457 | 1,000 |",
    ]
    # What began with its state filled stands apart.
    filled = record("q20", 1e5, preload_events=10**6)
    lines = table_of([*records, filled, record("q20", 2e5)])
    assert lines[0].count("|") == 8 and lines[-1] == "| q20 | 100 | 91 | 200 | 50 | 46 | 100 |"
    assert per_core([filled]) == {} and per_core([filled], kind=Kind.FILLED) == {"q20": [50_000.0]}
    other = record("q2", 2e6, seed=7)
    assert table_of([*records, other])[-1].endswith("measured in more than one configuration: q2.")
    print_queries(records)
    said = capsys.readouterr().out
    assert "with driver" in said and "1,372" in said and said.index("q2 ") < said.index("q10 ")


def test_a_run_that_ends_before_the_first_result_is_due_is_told_so() -> None:
    times: dict[str, Any] = {"rate": DENSE_RATE, "warmup_s": 30, "duration_s": 60, "watermark_s": 4}
    # 90 s at these speeds are 2.25 s and 4.5 s of event time.
    slow, fast = record("q4", 0.25e6, **times), record("q4", 0.5e6, **times)
    assert silent([slow], Kind.DENSE) == ["q4"] and silent([fast], Kind.DENSE) == silent([slow, fast], Kind.DENSE) == []
    assert silent([slow], Kind.EMPTY) == []
    assert table_of([slow])[-1].startswith("Work without results, under *empty state, dense events*: q4.")
    # 12.6 s, where a window of 10 s and the watermark need 14.
    assert silent([record("q7", 1.4e6, **times), record("q5", 1.4e6, **times)], Kind.DENSE) == ["q7"]
    assert silent([record("q7", 1.6e6, **times)], Kind.DENSE) == []
    # Queries that wait for no watermark put results out at once, and a curve moves event time.
    assert silent([record("q3", 1.0, **times)], Kind.DENSE) == []
    assert silent([record("q4", 1.0, **times, rate_curve={"kind": "step"})], Kind.DENSE) == []


def test_after_a_fault_recovery_is_told_in_place_of_what_a_core_can(capsys: pytest.CaptureFixture[str]) -> None:
    under_faults = [
        sample(workload="nexmark", query="q8", source="kafka", fault="executor", attempt="a1", recovery=RECOVERED),
        sample(workload="nexmark", query="q7", source="kafka", fault="executor", attempt="a2", recovery=CENSORED),
    ]
    print_queries(under_faults)
    heads, q7, q8 = (line for line in capsys.readouterr().out.splitlines() if "recovery" in line or " q" in line)
    assert "lost" in heads and "with driver" not in heads
    assert "> 33.9" in q7 and "13.8" in q8
    assert table_of(under_faults) == [], "a schedule says nothing of what an engine can"


def test_the_share_of_the_events_is_their_time_over_the_querys() -> None:
    source = {("bid",): [4e6, 2e6, 3e6], ("person", "auction"): [1e7, 1e7, 1e7]}
    found = source_figures(source, {"q0": [1.5e6], "q8": [1e6, 2e6]})
    assert found["source_events_per_s_per_core_bid"].value == 3e6
    assert found["source_share_q0"].value == pytest.approx(0.5)
    assert (found["source_share_q8"].low, found["source_share_q8"].high) == pytest.approx((0.1, 0.2))
