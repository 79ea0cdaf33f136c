"""Planted runs with several kills: the judge finds each recovery with its own baseline."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.ground_truth.expected_values import truth_of
from faultline.engines.ground_truth.engine import ENGINE
from faultline.engines.ground_truth.scripted_run import Outage, RunSpec
from faultline.experiment.common_parameters import RECOVERED_WITHIN
from faultline.experiment.workloads.known_truth_script import Script
from faultline.records.judge.journals import InjectedFault, SettledFault
from faultline.records.judge.parts import PARTS
from faultline.records.judge.recoveries import recoveries_of
from faultline.records.judge.signals import TopicSchedule, bins_between, commit_spans, median_span_s
from tests.support.simulation import PRIMER, Simulated, simulate
from tests.unit.benchmarks.test_simulation import case

KILLS = 3


def repeated(seed: int) -> tuple[Script, RunSpec, list[float]]:
    """Return a random recovering script with its next kill, one baseline window after the recovery."""
    script, run = case(seed)
    script = replace(script, recovers=True, lost=0)
    if run.fault_at_s is None:
        run = replace(run, fault_at_s=run.warmup_s + 12 * run.checkpoint_interval_s + 0.4 * run.checkpoint_interval_s)
    assert run.fault_at_s is not None
    grain = max(1.0, run.checkpoint_interval_s)
    back_s = script.outage_s + (script.catchup_bins + script.slow_bins + 3) * grain
    random = np.random.default_rng([seed, 7])
    apart_s = [back_s + 12 * grain + 12 + float(random.uniform(0, 3 * grain)) for _ in range(KILLS)]
    later = [run.fault_at_s + sum(apart_s[: number + 1]) for number in range(KILLS - 1)]
    end_s = math.ceil((later[-1] + apart_s[-1]) / run.checkpoint_interval_s) * run.checkpoint_interval_s
    return script, replace(run, duration_s=end_s - run.warmup_s), later


def evidence_of(made: Simulated, tuples: Path) -> Any:
    """Return the run in the form that the judge reads from files; its tuples are written to `tuples`."""
    made.tuples().to_parquet(tuples)
    per_record = made.method == "rank"
    return SimpleNamespace(
        config=SimpleNamespace(
            injections=KILLS,
            paced=True,
            checkpoint_interval_s=made.run.checkpoint_interval_s,
            recovered_within=RECOVERED_WITHIN,
            earliest_fault_s=0.0,
            fault_window=(0.0, 0.0),
        ),
        is_repeated=True,
        identifies_tuples=True,
        emits_at_once=per_record,
        emits_per_record=per_record,
        tuples_path=tuples,
        planned=[SimpleNamespace(fault=SimpleNamespace(victim="driver"))] * KILLS,
        traces=made.traces,
        engine=ENGINE,
        services=(),
        generator=SimpleNamespace(latest=()),
        scheduler=SimpleNamespace(
            injected=tuple(
                InjectedFault(
                    number, t0_ns, ({"pid": number, "role": "driver"},), made.end_offsets(number), (),
                    SettledFault("effective"),
                )
                for number, t0_ns in enumerate(made.kills_ns)
            )
        ),
    )  # fmt: skip


def signals_of(made: Simulated) -> Any:
    """Return the content of these files."""
    baseline = bins_between(made.bins, made.window.start_ns, made.kills_ns[0])
    return SimpleNamespace(
        window=made.window,
        schedule=TopicSchedule(made.records()),
        tuples=made.folded,
        bins=made.bins,
        baseline=baseline,
        commits=made.bins if made.method != "rank" else commit_spans(made.traces.commits, made.window),
        resolution_s=1.0 if made.method == "rank" else median_span_s(baseline),
        deaths={},
    )


@pytest.mark.parametrize("seed", range(60))
def test_each_recovery_is_found_where_it_was_planted(seed: int, tmp_path: Path) -> None:
    script, run, later = repeated(seed)
    made = simulate(script, run, seed, later)
    truth = truth_of(script, run, made.course, primer=PRIMER * run.partitions)
    evidence = evidence_of(made, tmp_path / "tuples.parquet")
    # One restart per kill, and one before the first.
    restarts = (made.kills_ns[0] - 1_000_000_000, *(at_ns + 1_000_000 for at_ns in made.kills_ns))
    evidence.traces = replace(made.traces, job_restarts=restarts)
    found = recoveries_of(evidence, signals_of(made)).faults
    assert [one.recovery.restarts for one in found] == [1.0] * KILLS
    assert len(found) == len(truth.recoveries) == KILLS
    for number, (one, planted) in enumerate(zip(found, truth.recoveries, strict=True), start=1):
        assert one.problems == () and planted.recovered
        assert (one.recovery.injection, one.recovery.recovered) == (number, True), one.recovery.note
        for part in (*PARTS, "durable_s"):
            assert getattr(one.recovery, part) == pytest.approx(planted.seconds[part], abs=made.resolution_s), part
        t7 = next(event.wall_ns for event in one.events if event.name.partition("#")[0] == "t7")
        assert planted.over_ns is not None
        assert abs(t7 - made.window.t0_ns - planted.over_ns) <= made.resolution_s * 1e9
    assert [outage.t0_ns for outage in made.course.outages] == [at - made.window.t0_ns for at in made.kills_ns]
    assert made.course.outages[-1] == Outage.of(script, made.course.outages[-1].t0_ns)
