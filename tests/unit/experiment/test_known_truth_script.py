"""Ground-truth scripts: validation, canonical form and planted values."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.ground_truth.expected_values import planted_truth
from benchmarks.ground_truth.known_truth import figures
from benchmarks.ground_truth.scenarios import QUICK, SCENARIOS, Scenario
from faultline.cli.run_command import parse_order
from faultline.engines.ground_truth.scripted_run import GUARD_NS, NS, Outage, build_timeline
from faultline.experiment.config import parse_configuration
from faultline.experiment.workloads.known_truth_script import Script, parse_script, require_fit
from tests.support.refusals import refused


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"latency": 3}, "truth.latency"),
        ({"zzz": 3}, "truth.zzz"),
        ({"style": "batches"}, "truth.style"),
        ({"latency_ms": "fast"}, "truth.latency_ms"),
        ({"latency_ms": float("nan")}, "truth.latency_ms"),
        ({"latency_ms": 5}, "truth.latency_ms"),
        ({"lost": 1.5}, "truth.lost"),
        ({"lost": float("inf")}, "truth.lost"),
        ({"lost": -1}, "truth.lost"),
        ({"lost": True}, "truth.lost"),
        ({"recovers": 1}, "truth.recovers"),
        ({"spread_ms": 70}, "truth.spread_ms"),
        ({"nothing_to_load": True, "load_s": 1}, "truth.load_s"),
        ({"load_s": 0}, "truth.load_s"),
        ({"catchup_bins": 40}, "truth.catchup_bins"),
        ({"style": "record", "spread_ms": 30.0}, "truth.slow_bins"),
        ({"style": "record", "lost": 3}, "truth.lost"),
    ],
)
def test_invalid_script_names_key(given: dict[str, object], key: str) -> None:
    with refused(f"{key}: "):
        parse_script(given)


@pytest.mark.parametrize(
    ("truth", "more", "key"),
    [
        ({"latency_ms": 450.0}, {}, "truth.latency_ms"),
        ({"redeploy_s": 2.5}, {}, "truth.redeploy_s"),
        ({"lost": 4000}, {}, "truth.lost"),
        ({"style": "record"}, {"rate": 20}, "truth.spread_ms"),
        ({}, {"fault_at_s": 12.6}, "fault_at_s"),
        ({}, {"fault_at_s": 12.99}, "fault_at_s"),
    ],
)
def test_script_that_does_not_fit_its_run_is_refused(
    truth: dict[str, object], more: dict[str, object], key: str
) -> None:
    run = SCENARIOS[0].configuration.model_copy(update=more)
    with refused(f"{key}: "):
        require_fit(parse_script(truth), run)


@given(st.integers(0, 60), st.floats(100, 5000), st.floats(1, 20), st.booleans(), st.sampled_from(["batch", "record"]))
def test_mapping_is_canonical(count: int, latency: float, spread: float, recovers: bool, style: str) -> None:
    given = {"overcounted": count, "latency_ms": latency, "spread_ms": spread, "recovers": recovers, "style": style}
    given["redeploy_s"] = 60  # a whole number where a float is meant
    script = parse_script(given)
    for same in (script.as_mapping(), {**script.as_mapping(), "overcounted": float(count)}):
        again = parse_script(same)
        assert again == script and repr(again.as_mapping()) == repr(script.as_mapping())


def test_configuration_contains_the_whole_script() -> None:
    config = SCENARIOS[0].configuration
    assert config.truth == Script().as_mapping()
    assert parse_configuration({**config.model_dump(mode="json")}).config_id == config.config_id


def test_script_module_does_not_import_numpy() -> None:
    """The configuration imports the module, and commands import the configuration at their start."""
    code = "import sys, faultline.experiment.workloads.known_truth_script; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "pandas"} & {*found}


def test_scenarios_are_distinct_and_have_both_styles() -> None:
    assert len(SCENARIOS) == len({scenario.name for scenario in SCENARIOS})
    assert len({scenario.configuration.config_id for scenario in SCENARIOS}) == len(SCENARIOS)
    for chosen in (SCENARIOS, QUICK):
        assert {scenario.script.style for scenario in chosen} == {"batch", "record"}
        assert any(scenario.run.fault_at_s is None for scenario in chosen)
        assert any(scenario.configuration.injections == 3 for scenario in chosen)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenarios_are_valid(scenario: Scenario) -> None:
    """Scenarios are accepted and recover as scripted; jitter moves no planted value to another bin."""
    config, script, run = scenario.configuration, scenario.script, scenario.run
    require_fit(script, config)
    assert parse_order("known_truth", scenario.parameters()).config.config_id == config.config_id
    truth = planted_truth(script, run, primer=2)
    assert truth.counts["lost"] == script.lost
    assert [one.recovered for one in truth.recoveries] == [script.recovers] * (run.fault_at_ns is not None)
    if run.fault_at_ns is not None:
        outage = Outage.of(script, run.fault_at_ns)
        step = run.interval_ns if script.style == "batch" else NS
        phase = (outage.replayed_ns + (GUARD_NS if script.style == "batch" else 0)) % step
        assert 30_000_000 <= phase <= step - 30_000_000
        for late_ms in (-10, 10):
            late = planted_truth(script, run, primer=2, kills_ns=[run.fault_at_ns + late_ms * 1_000_000])
            for part, value in truth.recoveries[0].seconds.items():
                found = late.recoveries[0].seconds[part]
                assert (found is None) is (value is None)
                assert value is None or found == pytest.approx(value, abs=0.1 * truth.resolution_s), part


def test_planted_times_follow_the_definitions() -> None:
    """Calculated by hand: kill 12.85 s after T0, replay committed 18.35 s after T0, batches every 0.5 s."""
    scenario = SCENARIOS[0]
    recovery = planted_truth(scenario.script, scenario.run, primer=2).recoveries[0].seconds
    parts = {"detection_s": 0, "redeploy_s": 3.5, "load_s": 1, "reload_s": 4.5, "replay_s": 1}
    assert parts.items() <= recovery.items()
    # Two batches (18.5, 19.0) leave the lag out of band, the one of 19.5 (index 39, wobble −2) does not.
    assert recovery["catchup_s"] == pytest.approx(19.5 + 0.11 - 18.35)
    # One more batch is slow (20.0) and is emitted 0.45 s later; all records from the next second are on time.
    assert recovery["macro_s"] == pytest.approx(20.0 + 0.45 - 12.85)
    assert recovery["censored_at_s"] is None


def test_unobserved_end_of_recovery_is_censored() -> None:
    scenario = Scenario("x", {"slow_bins": 40})
    (found,) = planted_truth(scenario.script, scenario.run, primer=2).recoveries
    assert (found.recovered, found.over_ns, found.seconds["macro_s"]) == (False, None, None)
    assert found.seconds["catchup_s"] is not None
    # The last of 40 slow batches (39.5) is the last violation.
    assert found.seconds["censored_at_s"] == pytest.approx(39.5 + 0.41 - 12.85)
    assert found.seconds["resolution_s"] is None


@pytest.mark.parametrize("style", ["batch", "record"])
def test_mistreated_records_are_exact_and_equal_in_every_process_run(style: str) -> None:
    script = Script(style=style, overcounted=11, reemitted=13, seed=9)
    run = SCENARIOS[0].run if style == "batch" else SCENARIOS[1].run
    before, after = build_timeline(script, run, []), build_timeline(script, run, [run.fault_at_ns or 0])
    assert before.treatments == after.treatments
    assert sum(treatment.counted == 2 for treatment in after.treatments.values()) == 11
    assert sum(treatment.copies == 2 for treatment in after.treatments.values()) == 13
    assert min(after.due_ns[list(after.treatments)]) >= (run.fault_at_ns or 0)
    assert build_timeline(dataclasses.replace(script, seed=10), run, []).treatments != before.treatments


def test_figures_aggregate_the_scenarios() -> None:
    def outcome(times: list[float], counts: list[float], *differing: str) -> dict[str, object]:
        kinds = [("time", error) for error in times] + [("count", error) for error in counts]
        comparisons = [{"kind": kind, "error": error} for kind, error in kinds]
        return {"comparisons": comparisons, "differing_tables": list(differing)}

    found = figures([outcome([0.1, 0.4], [0, 0]), outcome([0.2], [3, 0], "counts")])
    assert found["scenarios"].value == 2
    assert (found["worst_time_error_bins"].value, found["worst_time_error_bins"].low) == (0.4, 0.2)
    assert (found["count_errors"].value, found["count_errors"].high) == (3, 3)
    assert found["differing_tables"].value == 1
