"""Error rates of the recovery rule when batch times vary (simulation, 15 minutes).

Simulated runs (`noisy_engine`) are judged like real ones. `known_truth` shows that the rule is exact without noise;
this benchmark shows the effect of noise. Each run is compared with the same run at average batch times, judged by the
thresholds of a run without noise:

- *false-unrecovered*: the engine recovered, with enough time left for H (the stability window), but the rule did not
  find it;
- *false-recovered*: the engine stayed so slow that at least 15 % of its tuples are late without noise, but the rule
  calls it recovered.

This is repeated with other values of `recovered_within` and H.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from benchmarks.figure import BenchmarkFigure
from benchmarks.ground_truth.noisy_engine import Case, Noise, ObservedRun, noise_factors
from benchmarks.ground_truth.noisy_engine import run as run_engine
from faultline.experiment.common_parameters import RECOVERED_WITHIN, earliest_fault_s, usual_duration_s
from faultline.records.judge.end import RecoveryEnd, end_of, limits_of, production_cells
from faultline.records.judge.steady import Limits
from faultline.system.measured_window import NS
from faultline.system.text import Progress

VARIATIONS, CORRELATIONS = (0.05, 0.1, 0.2), (0.0, 0.4)
INTERVALS_S = (1.0, 2.0, 5.0)
WARMUP_S, RATE = 20.0, 500.0
RUNS, RUNS_QUICK = 100, 10
# Upper bound on the batches of a run.
BATCHES = 1000
# Largest share of tuples on time of an engine that does not recover.
MAX_ON_TIME_WHEN_SLOW = 0.85
THRESHOLDS = (0.1, RECOVERED_WITHIN, 0.5)
WINDOW_FACTORS = (0.5, 1.0, 2.0)

RuleOutcome = tuple[RecoveryEnd, float | None]


def run(progress: Progress, quick: bool) -> dict[str, BenchmarkFigure]:
    """Return shares over all levels of noise, for each choice; `low` and `high` are the extremes of single levels."""
    runs = RUNS_QUICK if quick else RUNS
    found: dict[str, BenchmarkFigure] = {}
    for within in THRESHOLDS:
        for hold in WINDOW_FACTORS:
            if within != RECOVERED_WITHIN and hold != 1.0:
                continue
            name = "" if (within, hold) == (RECOVERED_WITHIN, 1.0) else f"_within_{within:g}_hold_{hold:g}"
            progress(f"noise: recovered_within {within:g}, H x {hold:g}")
            found |= {f"{key}{name}": figure for key, figure in figures(runs, within, hold).items()}
    return found


def figures(runs: int, within: float = RECOVERED_WITHIN, hold: float = 1.0) -> dict[str, BenchmarkFigure]:
    """Return `false_unrecovered` and `false_recovered` as shares, and `macro_error` in resolutions."""
    missed: list[float] = []
    wrong: list[float] = []
    errors: list[float] = []
    levels = [Noise(variation, correlation) for variation in VARIATIONS for correlation in CORRELATIONS]
    for noise in levels:
        back = list(judge_runs(noise, runs, within, hold, recovers=True))
        slow_case = list(judge_runs(noise, runs, within, hold, recovers=False))
        missed.append(float(np.mean([end.t7_ns is None for end, _ in back])))
        wrong.append(float(np.mean([end.t7_ns is not None for end, _ in slow_case])))
        errors += [error for _, error in back if error is not None]
    n = runs * len(levels)
    return {
        "false_unrecovered": BenchmarkFigure(float(np.mean(missed)), "share", min(missed), max(missed), n),
        "false_recovered": BenchmarkFigure(float(np.mean(wrong)), "share", min(wrong), max(wrong), n),
        "macro_error": BenchmarkFigure(
            float(np.median(errors)), "resolutions", 0.0, float(np.quantile(errors, 0.95)), n
        ),
    }


def judge_runs(noise: Noise, runs: int, within: float, hold: float, *, recovers: bool) -> Iterator[RuleOutcome]:
    """Yield the results of the rule, with their error in resolutions.

    A run that recovers too late for H is replaced by another one.
    """
    for number in range(runs):
        random = np.random.default_rng([round(1000 * noise.variation), round(1000 * noise.correlation), number])
        while True:
            case = random_case(random) if recovers else slow_case(random, within)
            seen, calm = run_engine(case, noise_factors(noise, BATCHES, random))
            back_ns = recovered_at(case, calm, within, hold) if recovers else None
            limits = limits_at(case, seen, within, hold)
            if limits is None:
                continue
            if not recovers or (
                back_ns is not None and back_ns / NS + limits.hold_s < case.end_s - case.checkpoint_interval_s
            ):
                yield (end := judge_end(case, seen, limits)), _error(case, back_ns, end)
                break


def random_case(random: np.random.Generator) -> Case:
    """Return a default run with a random interval, 15 to 50 % load, and an outage of 4 to 15 s."""
    checkpoint_interval_s = float(random.choice(INTERVALS_S))
    busy_s = checkpoint_interval_s * random.uniform(0.15, 0.5)
    fixed = random.uniform(0.5, 0.9)
    end_s = WARMUP_S + usual_duration_s(checkpoint_interval_s)
    return Case(
        checkpoint_interval_s=checkpoint_interval_s,
        rate=RATE,
        fixed_s=fixed * busy_s,
        per_record_s=(1 - fixed) * busy_s / (RATE * checkpoint_interval_s),
        warmup_s=WARMUP_S,
        t0_s=earliest_fault_s(WARMUP_S, checkpoint_interval_s) + checkpoint_interval_s * random.uniform(),
        outage_s=random.uniform(4, 15),
        end_s=end_s,
    )


def recovered_at(case: Case, calm: ObservedRun, within: float, hold: float) -> int | None:
    """Return when the engine recovers; None if it does not, or not for long enough."""
    twin, _ = run_engine(case, np.ones(BATCHES))
    limits = limits_at(case, twin, within, hold)
    return None if limits is None else judge_end(case, calm, limits).t7_ns


def slow_case(random: np.random.Generator, within: float) -> Case:
    """Return a case like `random_case` in which too few tuples are on time after the fault, without noise."""
    while True:
        case = replace(
            random_case(random), slower=float(random.uniform(1.2, 4.0)), outage_s=float(random.uniform(4, 8))
        )
        seen, _ = run_engine(case, np.ones(BATCHES))
        limits = limits_at(case, seen, within, 1.0)
        if limits is None:
            continue
        cells = production_cells(seen.produced, limits.latency_ms)
        tail = (cells.start_ns >= round((case.end_s - limits.hold_s) * NS)) & (cells.start_ns < round(case.end_s * NS))
        if cells.on_time[tail].sum() <= MAX_ON_TIME_WHEN_SLOW * cells.due[tail].sum():
            return case


def limits_at(case: Case, seen: ObservedRun, within: float, hold: float) -> Limits | None:
    """Return the recovery thresholds from the time before the fault."""
    found = limits_of(
        seen.produced,
        seen.bins,
        start_ns=round(case.warmup_s * NS),
        until_ns=round(case.t0_s * NS),
        checkpoint_interval_s=case.checkpoint_interval_s,
        within=within,
    )
    return None if found is None else replace(found, hold_s=hold * found.hold_s)


def judge_end(case: Case, seen: ObservedRun, limits: Limits) -> RecoveryEnd:
    """Return the end of the recovery by the rule."""
    return end_of(
        production_cells(seen.produced, limits.latency_ms),
        seen.bins,
        limits,
        t0_ns=round(case.t0_s * NS),
        t5_ns=seen.covered_ns,
        produced_until_ns=round(case.end_s * NS),
        watched_until_ns=round((case.end_s + case.checkpoint_interval_s) * NS),
    )


def _error(case: Case, back_ns: int | None, end: RecoveryEnd) -> float | None:
    """Return the error in units of the resolution, which is at least one interval."""
    if back_ns is None or end.t7_ns is None:
        return None
    return abs(end.t7_ns - back_ns) / max(end.t7_ns - end.last_violation_ns, round(case.checkpoint_interval_s * NS))
