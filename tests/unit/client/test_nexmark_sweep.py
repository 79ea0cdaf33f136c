"""All queries with one command: what is filled into the form, and the figures beside Flink's."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from faultline.base.errors import ConfigError
from faultline.bench.nexmark import figures
from faultline.bench.nexmark_source import figures as source_figures
from faultline.client.nexmark_sweep import complete, describe, form_of, matrix_of, print_queries, to_measure
from faultline.comparison.findings.finding import Verdict
from faultline.comparison.findings.nexmark import STATELESS, TWO_CORES, Kind, ahead, beside, per_core, ratios, stateless
from faultline.experiment.config import parse_configuration
from faultline.experiment.matrices import MATRICES
from faultline.experiment.matrix import Matrix
from faultline.experiment.workloads.nexmark import DENSE_RATE, QUERIES
from faultline.records.record import Record
from tests.unit.sample_records import CENSORED, RECOVERED, sample

NUMBERS = count()


def record(query: str, share: float, *, status: str = "valid") -> Record:
    """A record of `query` with so many times Flink's events per core."""
    made = sample(workload="nexmark", query=query, status=status, attempt=f"20261121T061500Z-{next(NUMBERS):06x}")
    figure = share * TWO_CORES.get(query, 100) * 1000
    metrics = made.metrics.model_copy(update={"rps_per_core": figure, "throughput_rps": figure})  # on one core
    return made.model_copy(update={"metrics": metrics, "matrix": "nexmark"})


def test_words_become_the_form_and_axes_become_lists() -> None:
    form = form_of(["preset=smoke", "rate=50000", "repetitions=2", "warmup_s=7"])
    assert form == {"preset": "smoke", "rate": [50_000.0], "repetitions": 2, "warmup_s": 7.0}
    assert form_of(["source=kafka"]) == {"source": ["kafka"], "rate": [2000.0]}
    assert form_of(["source=kafka", "preset=smoke"])["batch_events"] is None, "the generator's schedule makes batches"
    # What is given is held against the preset: this second is one that its windows have room for.
    broken = form_of(["preset=recovery", "fault=driver", "fault_at_s=60"])
    assert broken == {"preset": "recovery", "fault": "driver", "fault_at_s": 60.0}
    spec = MATRICES["nexmark"]
    cells = Matrix.under({**spec.complete("smoke"), **form}, spec.axes).cells("b")
    assert len(cells) == 2 and cells[0].config.rate == 50_000 and cells[0].config.warmup_s == 7
    assert len(Matrix.under(spec.complete("default"), spec.axes).cells("b")) == 3 * len(QUERIES)


@pytest.mark.parametrize("preset", MATRICES["nexmark"].presets)
@pytest.mark.parametrize("given", [["warmup_s=30"], ["duration_s=55", "repetitions=3"], ["source=kafka"]])
def test_what_is_triggered_is_what_is_waited_for(preset: str, given: list[str]) -> None:
    form, spec = form_of([f"preset={preset}", *given]), MATRICES["nexmark"]
    sent = complete(form)
    # As the DAG reads its form.
    params = spec.resolve({**spec.complete("default"), **sent}, sent.get("preset", "default"))
    assert Matrix.under(params, spec.axes).cells("b") == matrix_of(form).cells("b")


def test_one_query_is_the_one_of_the_matrix() -> None:
    spec = MATRICES["nexmark"]
    one = parse_configuration({"workload": "nexmark", "query": "q5"})
    assert one in Matrix.under(spec.complete("default"), spec.axes).configurations()


def test_a_dry_run_says_what_is_left_and_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTLINE_RESULTS", str(tmp_path))
    assert describe(["preset=smoke", "build=x"]) == "1 of 1 experiments to measure, about 1 min (build x)"
    assert describe(["build=x"]).startswith(f"{3 * len(QUERIES)} of {3 * len(QUERIES)} experiments to measure, about ")
    cells = matrix_of(form_of(["warmup_s=15", "duration_s=30", "query=q5", "repetitions=2"])).cells("b")
    assert to_measure(cells, cells[:1]) == "1 of 2 experiments to measure, about 2 min"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["preset"], "preset: give KEY=VALUE"),
        (["presets=x"], "presets: unknown parameter; did you mean preset?"),
        (["preset=tiny"], "preset: 'tiny' is not known"),
        (["repetitions=0"], "repetitions: '0' is not a whole number"),
        (["rate=1", "rate=2"], "rate: given twice"),
        (["state_store=redis"], "state_store: 'redis' is not known"),
        (["preset=recovery", "fault_at_s=36"], "fault_at_s: 36 lies outside [50, 100]"),
        (["preset=recovery", "source=engine"], "fault: events from the engine keep no schedule"),
    ],
)
def test_bad_words_are_refused_before_anything_starts(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        form_of(words)
    assert str(refused.value).startswith(said)


def test_ratios_are_to_flink_on_two_cores_and_only_valid_records_count() -> None:
    found = figures([record("q0", 2.0), record("q0", 3.0), record("q0", 9.0, status="invalid"), record("q13", 1.0)])
    assert found["ratio_q0"].value == pytest.approx(2.5) and found["ratio_q0"].n == 2
    assert found["events_per_s_per_core_q0"].low == pytest.approx(2 * 483_000)
    assert "ratio_q13" not in found and "events_per_s_per_core_q13" in found
    assert set(per_core([record("q0", 1.0, status="failed")])) == set()


def test_targets_are_met_missed_or_open() -> None:
    fast = [record(query, 1.6) for query in STATELESS]
    assert stateless(fast)[0] is Verdict.AGREES
    assert stateless([*fast, record("q0", 1.4)])[0] is Verdict.DISAGREES
    assert stateless(fast[1:])[0] is Verdict.CANNOT_TELL
    names = list(TWO_CORES)
    assert ahead([record(query, 1.1) for query in names[:16]])[0] is Verdict.AGREES
    behind = [record(query, 0.9) for query in names[:5]]
    assert ahead(behind) == (Verdict.DISAGREES, "0 of 5 ahead in every repetition; behind: q0, q1, q2, q3, q4")
    assert ahead(behind[:3])[0] is Verdict.CANNOT_TELL


def test_the_tables_have_a_line_a_query(capsys: pytest.CaptureFixture[str]) -> None:
    records = [record("q10", 1.0), record("q2", 2.0), record("q2", 4.0)]
    lines = beside(records)
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["q2", "q10"]
    assert "1,728 (1,152–2,304)" in lines[2] and "| 3.00 |" in lines[2] and "| — | — |" in lines[3]
    # A filled state stands beside the list that was made with one.
    filled = record("q20", 1.0).model_copy(update={"config_id": "filled"})
    filled = filled.model_copy(update={"config": {**filled.config, "preload_events": 10**6}})
    lines = beside([*records, filled, record("q20", 2.0)])
    # The driver has 0.186 cores beside the one of the executor.
    assert lines[0].count("|") == 10 and lines[-1] == "| q20 | 106 | 53 | 2.00 | 1.69 | 53 | 18 | 2.94 | 2.48 |"
    assert per_core([filled]) == {} and per_core([filled], kind=Kind.FILLED) == {"q20": [53.0]}
    # So do events as dense as in that list, which say nothing of the target.
    dense = record("q5", 1.0).model_copy(update={"config_id": "dense"})
    dense = dense.model_copy(update={"config": {**dense.config, "rate": DENSE_RATE}})
    assert beside([dense])[2] == "| q5 | 114 | 114 | 1.00 | 0.84 |" and ratios([dense]) == {}
    other = record("q2", 2.0).model_copy(update={"config_id": "another"})
    assert beside([*records, other])[-1].endswith("measured in more than one configuration: q2.")
    print_queries(records)
    said = capsys.readouterr().out
    assert "3.00" in said and said.index("q2 ") < said.index("q10 ")


def test_after_a_fault_recovery_is_told_in_place_of_flinks_figures(capsys: pytest.CaptureFixture[str]) -> None:
    under_faults = [
        sample(workload="nexmark", query="q8", source="kafka", fault="executor", attempt="a1", recovery=RECOVERED),
        sample(workload="nexmark", query="q7", source="kafka", fault="executor", attempt="a2", recovery=CENSORED),
    ]
    print_queries(under_faults)
    heads, q7, q8 = (line for line in capsys.readouterr().out.splitlines() if "recovery" in line or " q" in line)
    assert "lost" in heads and "Flink" not in heads
    assert "> 33.9" in q7 and "13.8" in q8
    assert beside(under_faults) == [], "a schedule says nothing of what an engine can"


def test_the_share_of_the_events_is_their_time_over_the_querys() -> None:
    source = {("bid",): [4e6, 2e6, 3e6], ("person", "auction"): [1e7, 1e7, 1e7]}
    found = source_figures(source, {"q0": [1.5e6], "q8": [1e6, 2e6]})
    assert found["source_events_per_s_per_core_bid"].value == 3e6
    assert found["source_share_q0"].value == pytest.approx(0.5)
    assert (found["source_share_q8"].low, found["source_share_q8"].high) == pytest.approx((0.1, 0.2))
