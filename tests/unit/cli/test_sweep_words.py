"""Arguments of `sweep` and of `run nexmark`, and the events per second of each query."""

from __future__ import annotations

import itertools
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from benchmarks.nexmark import figures, source_figures
from faultline.cli.nexmark_sweep import nexmark_dry_run, print_queries
from faultline.cli.nexmark_sweep import parse_nexmark as queries_of
from faultline.cli.sweep_arguments import SweepRequest, parse_sweep
from faultline.comparison.findings.nexmark import Kind, per_core, per_machine, table_of, without_results
from faultline.engines.flink.distribution import FlinkDistribution
from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.matrices import MATRICES
from faultline.experiment.workloads.nexmark_events import DENSE_RATE, QUERIES
from faultline.orchestration.planning import SEARCH_PARAMS
from faultline.records.record import Record
from faultline.system.errors import ConfigError
from tests.unit.sample_records import CENSORED, RECOVERED, sample


def read_by_the_form(wanted: SweepRequest) -> Any:
    """Return the cells that the DAG plans for the submitted form."""
    return wanted.spec.matrix(wanted.spec.resolve({**dict.fromkeys(Configuration.model_fields), **wanted.form}))


def is_waited_for(wanted: SweepRequest) -> bool:
    return bool(read_by_the_form(wanted).cells("s") == wanted.matrix.cells("s"))


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize(("words", "seeds"), [((), {1}), (("repetitions=2", "seed=9"), {9}), (("seed=[1,2]",), {1, 2})])
def test_the_triggered_cells_are_the_described_ones(
    matrix: str, words: tuple[str, ...], seeds: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FlinkDistribution, "require", lambda self: None)
    wanted = parse_sweep([matrix, "preset=smoke", *words])
    assert is_waited_for(wanted) and {config.seed for config in wanted.matrix.configurations()} == seeds


@pytest.mark.parametrize("preset", MATRICES["nexmark"].presets)
@pytest.mark.parametrize("given", [["warmup_s=30"], ["duration_s=95", "repetitions=3"], ["source=kafka"]])
def test_all_queries_are_triggered_and_awaited(preset: str, given: list[str]) -> None:
    wanted = queries_of([f"preset={preset}", *given])
    assert is_waited_for(wanted) and {one.config.source for one in wanted.matrix.cells("b")} <= {"kafka", "engine"}


def test_axes_of_the_matrix_need_no_brackets() -> None:
    wanted = parse_sweep(["recovery", "checkpoint_interval_s=2,10", "fault=none", "rate=[100..400x2]", "state_mb=2"])
    assert wanted.form == {
        "checkpoint_interval_s": [2, 10], "fault": ["none"], "axes": {"rate": [100, 200, 400]}, "state_mb": 2.0
    }  # fmt: skip
    points = {(one.checkpoint_interval_s, one.rate, one.state_mb) for one in wanted.matrix.configurations()}
    assert points == {(i, r, 2.0) for i, r in itertools.product((2.0, 10.0), (100.0, 200.0, 400.0))}
    assert wanted.lines == [
        "fault: none", "checkpoint_interval_s: 2, 10", "rate: 100, 200, 400", "each configuration 5 times"
    ]  # fmt: skip


def test_a_search_has_a_range() -> None:
    wanted = parse_sweep(["input_rate", "search=true", "search_low=500"])
    assert {key: wanted.form[key] for key in SEARCH_PARAMS} == {
        "search": True, "search_low": 500.0, "search_high": SEARCH_PARAMS["search_high"]
    }  # fmt: skip
    assert SEARCH_PARAMS.keys().isdisjoint(parse_sweep(["input_rate"]).form)


def test_a_sweep_without_a_matrix_resolves_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = parse_sweep(["workload=pi", "iterations=[100,1000]", "fault=none"])
    assert wanted.spec.name == "sweep" and [one.iterations for one in wanted.matrix.configurations()] == [100, 1000]
    assert wanted.form == {"axes": {"iterations": [100, 1000]}, "workload": "pi", "fault": "none"}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.txt").write_text("some words of mine\n" * 100)
    monkeypatch.chdir(tmp_path)
    assert parse_sweep(["input_rate", "workload=word_count", "corpus=mine"]).form["corpus"] == str(tmp_path / "mine")


def test_a_job_applies_to_its_workload_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "JOB = {'arguments': {'a': 1}}\ndef query(records, config):\n    return records\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ["workload=[word_count,query]", "job=mine.py", "arguments.a=2", "fault=none", "state_mb=0"]
    wanted = parse_sweep(words)
    assert wanted.form["job"] == str(tmp_path / "mine.py") and wanted.form["arguments"] == {"a": "2"}
    assert [(one.workload, one.job, one.arguments) for one in wanted.matrix.configurations()] == [
        ("word_count", None, None), ("query", str(tmp_path / "mine.py"), {"a": "2"})
    ]  # fmt: skip
    assert wanted.lines == [
        "workload: word_count, query", "job: only for query", "arguments: only for query",
        "each configuration 5 times",
    ]  # fmt: skip
    assert is_waited_for(wanted)
    # word_count has the same default.
    (tmp_path / "p.py").touch()
    program = parse_sweep(["workload=[word_count,program]", "application=p.py", "pass_header=true", "fault=none"])
    assert program.form["pass_header"] is True
    with pytest.raises(ConfigError, match="^job: "):
        parse_sweep(["workload=[word_count,pi]", "job=mine.py"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["recovry"], "recovry: no such matrix; did you mean recovery?"),
        (["word_count"], "word_count: no such matrix; "),
        (["nightly_regression"], "nightly_regression: "),
        (["recovery", "smoke"], "smoke: expected KEY=VALUE"),
        (["recovery", "preset=smok"], "preset: "),
        (["recovery", "rat=5"], "rat: unknown parameter; did you mean rate?"),
        (["recovery", "rate=0"], "rate: "),
        (["recovery", "fault="], "fault: empty"),
        (["recovery", "fault=executer"], "fault: "),
        (["recovery", "rate=[]"], "rate: "),
        (["recovery", "rate=1,2"], "rate: got '1,2'; expected one value; fix, in a sweep: rate=[1,2]"),
        (["input_rate", "search=yes"], "search: "),
        (["input_rate", "search=true", "search_low=0"], "search_low: "),
        (["input_rate", "search=true", "search_low=9", "search_high=8"], "search_high: "),
        (["recovery", "search=true"], "search: unknown parameter"),
        (["recovery", "repetitions=-4"], "repetitions: got '-4'; "),
        (["recovery", "decide=5"], "decide: got '5'; "),
        (["recovery", "series=two words"], "series: "),
        (["executor_cores", "executors=40"], "executor_memory_mb: "),
        (["nexmark", "rate=1", "rate=2"], "rate: given twice"),
        (["nexmark", "state_store=redis"], "state_store: "),
        (["nexmark", "preset=recovery", "fault_at_s=36"], "fault_at_s: "),
        (["nexmark", "preset=recovery", "source=engine"], "fault: "),
    ],
)
def test_invalid_words_are_refused_by_key(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_sweep(words)
    assert str(refused.value).startswith(message)


NUMBERS = count()


def record(query: str, rps: float, *, status: str = "valid", **config: Any) -> Record:
    """Return a record of `query` with `rps` events per second on two cores and 0.186 cores of the driver."""
    made = sample(workload="nexmark", query=query, status=status, attempt=f"20261121T061500Z-{next(NUMBERS):06x}")
    metrics = made.metrics.model_copy(update={"rps_per_core": rps / 2, "throughput_rps": rps})
    update = {"metrics": metrics, "matrix": "nexmark", "config": {**made.config, **config}}
    return made.model_copy(update=update | ({"config_id": str(config)} if config else {}))


def test_words_are_parsed_into_the_form() -> None:
    wanted = queries_of(["preset=smoke", "rate=50000", "repetitions=2", "warmup_s=7"])
    assert wanted.form == {"preset": "smoke", "rate": [50_000], "repetitions": 2, "warmup_s": 7.0}
    assert queries_of(["source=kafka"]).form == {"source": ["kafka"]}
    for words in (["source=kafka"], ["source=kafka", "preset=smoke"]):
        through_kafka = queries_of(words).matrix.configurations()[0]
        assert through_kafka.rate == 2000 and through_kafka.model_dump()["batch_events"] is None, "as its source has it"
    # The fault time is valid with the windows of the preset.
    broken = queries_of(["preset=recovery", "fault=driver", "fault_at_s=60"]).form
    assert broken == {"preset": "recovery", "fault": "driver", "fault_at_s": 60.0}
    spec, cells = MATRICES["nexmark"], wanted.matrix.cells("b")
    assert len(cells) == 2 and cells[0].config.rate == 50_000 and cells[0].config.warmup_s == 7
    assert len(spec.preset_matrix().cells("b")) == 3 * len(QUERIES)
    one = parse_configuration({"workload": "nexmark", "query": "q5"})
    assert one in spec.preset_matrix().configurations()


def test_a_dry_run_lists_the_missing_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTLINE_RESULTS", str(tmp_path))
    lines = nexmark_dry_run(["preset=smoke", "build=x"])
    assert lines[0] == "nexmark, preset smoke: 1 configuration, 1 experiment"
    assert lines[-1] == "1 to measure: about 1 min on an idle machine"
    lines = nexmark_dry_run(["build=x"])
    assert lines[0] == f"nexmark, preset default: {len(QUERIES)} configurations, {3 * len(QUERIES)} experiments"
    assert lines[-1].startswith(f"{3 * len(QUERIES)} to measure: about 2 h ")


def test_figures_per_core_use_valid_records_only() -> None:
    found = figures([record("q0", 2e6), record("q0", 3e6), record("q0", 9e6, status="invalid")])
    names = {"events_per_s_q0", "events_per_s_per_core_q0", "events_per_s_per_core_with_driver_q0"}
    assert set(found) == names, "and no ratio to what was measured elsewhere"
    assert found["events_per_s_q0"].value == pytest.approx(2.5e6) and found["events_per_s_q0"].n == 2
    assert found["events_per_s_per_core_q0"].low == pytest.approx(1e6)
    assert found["events_per_s_per_core_with_driver_q0"].low == pytest.approx(2e6 / 2.186)
    failed = [record("q0", 1e6, status="failed")]
    assert per_core(failed) == per_machine(failed) == {}
    known = record("q0", 2e6)
    cpu = known.metrics.cpu_cores.model_copy(update={"driver": None})
    unknown = known.model_copy(update={"metrics": known.metrics.model_copy(update={"cpu_cores": cpu})})
    assert set(figures([unknown])) == names - {"events_per_s_per_core_with_driver_q0"}
    assert table_of([unknown, record("q1", 2e6)])[2:] == ["| q0 | 1,000 | — | 2,000 |", "| q1 | 1,000 | 915 | 2,000 |"]


def test_the_tables_have_a_line_per_query(capsys: pytest.CaptureFixture[str]) -> None:
    records = [record("q10", 1e6), record("q2", 2e6), record("q2", 4e6)]
    lines = table_of(records)
    assert lines[0] == "| query | empty state: per core | empty state: with the driver | empty state: machine |"
    assert lines[2:] == [
        "| q2 | 1,500 (1,000–2,000) | 1,372 (915–1,830) | 3,000 (2,000–4,000) |",
        "| q10 | 500 | 457 | 1,000 |",
    ]
    # Runs with preloaded state are listed separately.
    filled = record("q20", 1e5, preload_events=10**6)
    lines = table_of([*records, filled, record("q20", 2e5)])
    assert lines[0].count("|") == 8 and lines[-1] == "| q20 | 100 | 91 | 200 | 50 | 46 | 100 |"
    assert per_core([filled]) == {} and per_core([filled], kind=Kind.FILLED) == {"q20": [50_000.0]}
    other = record("q2", 2e6, seed=7)
    assert table_of([*records, other])[-1].endswith("measured in more than one configuration: q2.")
    print_queries(records)
    lines = capsys.readouterr().out
    assert "with driver" in lines and "1,372" in lines and lines.index("q2 ") < lines.index("q10 ")


def test_a_run_too_short_for_a_result_is_reported() -> None:
    times: dict[str, Any] = {"rate": DENSE_RATE, "warmup_s": 30, "duration_s": 60, "watermark_s": 4}
    # 90 s at these speeds are 2.25 s and 4.5 s of event time.
    slow, fast = record("q4", 0.25e6, **times), record("q4", 0.5e6, **times)
    assert (
        without_results([slow], Kind.DENSE) == ["q4"]
        and without_results([fast], Kind.DENSE) == without_results([slow, fast], Kind.DENSE) == []
    )
    assert without_results([slow], Kind.EMPTY) == []
    assert table_of([slow])[-1].startswith("Work without results, under *empty state, dense events*: q4.")
    # 12.6 s, where a window of 10 s and the watermark need 14.
    assert without_results([record("q7", 1.4e6, **times), record("q5", 1.4e6, **times)], Kind.DENSE) == ["q7"]
    assert without_results([record("q7", 1.6e6, **times)], Kind.DENSE) == []
    # Queries without a watermark emit results at once; a rate curve shifts event time.
    assert without_results([record("q3", 1.0, **times)], Kind.DENSE) == []
    assert without_results([record("q4", 1.0, **times, rate_curve={"kind": "step"})], Kind.DENSE) == []


def test_runs_with_faults_show_their_recovery(capsys: pytest.CaptureFixture[str]) -> None:
    ends = {"q8": RECOVERED, "q7": CENSORED}
    named = {"workload": "nexmark", "source": "kafka", "fault": "executor"}
    under_faults = [sample(query=query, attempt=query, recovery=end, **named) for query, end in ends.items()]
    print_queries(under_faults)
    heads, q7, q8 = (line for line in capsys.readouterr().out.splitlines() if "recovery" in line or " q" in line)
    assert "lost" in heads and "with driver" not in heads
    assert "> 33.9" in q7 and "13.8" in q8
    assert table_of(under_faults) == [], "a schedule says nothing of what an engine can"


def test_the_share_of_the_source_is_its_time_per_query_time() -> None:
    source = {("bid",): [4e6, 2e6, 3e6], ("person", "auction"): [1e7, 1e7, 1e7]}
    found = source_figures(source, {"q0": [1.5e6], "q8": [1e6, 2e6]})
    assert found["source_events_per_s_per_core_bid"].value == 3e6
    assert found["source_share_q0"].value == pytest.approx(0.5)
    assert (found["source_share_q8"].low, found["source_share_q8"].high) == pytest.approx((0.1, 0.2))
