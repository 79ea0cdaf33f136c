"""Simulation of a micro-batch engine with varying batch times and a fault, without processes.

It produces the input of `recovery.end`: tuples by cell (interval of production) and time bins by commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from faultline.records.judge.tuples import ProducedFold
from faultline.system.measured_window import NS, Window

Floats = npt.NDArray[np.float64]

# Tuples are produced in lumps at this interval, in s.
LUMP_S = 0.05
# Emission time of a batch's outputs, as a share of its duration.
OUTPUT_SHARE = 0.9
# A new process compiles its code: its first batches take longer, with exponential decay.
COLD, WARM_S = 1.5, 4.0


@dataclass(frozen=True)
class Noise:
    """Noise of batch times: coefficient of variation, and correlation of consecutive batches."""

    variation: float
    correlation: float


@dataclass(frozen=True)
class Case:
    """One run. Times in s; the fault hits at `t0_s` and stops processing for `outage_s`.

    A batch takes `fixed_s` plus `per_record_s` per record; `rate` records arrive per second. `slower`: factor by which
    batches take longer after the fault; 1 for an engine that recovers.
    """

    checkpoint_interval_s: float
    rate: float
    fixed_s: float
    per_record_s: float
    warmup_s: float
    t0_s: float
    outage_s: float
    end_s: float
    slower: float = 1.0


@dataclass(frozen=True)
class ObservedRun:
    """Observable data of a run, from T0 = 0.

    `produced`: PRODUCED_COLUMNS. `bins`: start_ns, end_ns, records, span_s, lag. `covered_ns` (t5): first commit that
    includes everything produced before the fault; None if missing.
    """

    produced: pd.DataFrame
    bins: pd.DataFrame
    covered_ns: int | None


class SimulatedBatch(NamedTuple):
    """One batch; times in s after T0.

    The batch reads what was produced in (`begin`, `planned`], starts at `started` (if a fault hit it, that of the
    second start) and is committed at its end. `calmly`: commit time if it had the average duration.
    """

    begin: float
    planned: float
    started: float
    committed: float
    calmly: float

    @property
    def emitted(self) -> float:
        """Emission time of its outputs."""
        return self.started + OUTPUT_SHARE * (self.committed - self.started)


def noise_factors(noise: Noise, n: int, random: np.random.Generator) -> Floats:
    """Return factors around 1 for batch times: lognormal, first-order autoregressive."""
    sigma = np.sqrt(np.log1p(noise.variation**2))
    steps, rest = random.standard_normal(n), np.sqrt(1 - noise.correlation**2)
    values = steps.copy()
    for number in range(1, n):
        values[number] = noise.correlation * values[number - 1] + rest * steps[number]
    factors: Floats = np.exp(sigma * values - sigma**2 / 2)
    return factors


def run(case: Case, factors: Floats) -> tuple[ObservedRun, ObservedRun]:
    """Return a run whose batch times have these factors, and the same run with average batch times."""
    batches = list(batches_of(case, factors))
    return _observe(case, batches), _observe(case, [one._replace(committed=one.calmly) for one in batches])


def _observe(case: Case, batches: Sequence[SimulatedBatch]) -> ObservedRun:
    planned, committed = (np.array([getattr(one, name) for one in batches]) for name in ("planned", "committed"))
    covered = int(np.searchsorted(planned, case.t0_s))
    starts = np.concatenate([[0.0], committed[:-1]])
    bins = pd.DataFrame(
        {
            "start_ns": np.round(starts * NS).astype(np.int64),
            "end_ns": np.round(committed * NS).astype(np.int64),
            "records": case.rate * (planned - np.array([one.begin for one in batches])),
            "span_s": committed - starts,
            "lag": np.maximum(0.0, case.rate * (np.minimum(committed, case.end_s) - planned)),
        }
    )
    covered_ns = round(batches[covered].committed * NS) if covered < len(batches) else None
    return ObservedRun(_produced(case, batches), bins, covered_ns)


def _produced(case: Case, batches: Sequence[SimulatedBatch]) -> pd.DataFrame:
    """Return all tuples, in lumps, by cell of production and latency."""
    lumps = np.arange(0.0, min(case.end_s, batches[-1].planned), LUMP_S)
    number = np.searchsorted([one.planned for one in batches], lumps)
    emitted = np.array([one.emitted for one in batches])[number]
    produced_ms, emitted_ms = (pd.Series(np.round(1000 * at).astype(np.int64)) for at in (lumps, emitted))
    fold = ProducedFold(Window.of(0, case.warmup_s, case.end_s - case.warmup_s, case.checkpoint_interval_s))
    fold.add(produced_ms, emitted_ms, pd.Series(round(case.rate * LUMP_S), index=produced_ms.index))
    return fold.total


def batches_of(case: Case, factors: Floats) -> Iterator[SimulatedBatch]:
    """Yield the batches, up to the one that reads the last record.

    If a batch exceeds its interval, the next one follows at once; otherwise it waits for the next instant of the grid.
    """
    begin = before = free = 0.0
    up_s, hit = case.t0_s + case.outage_s, False
    for factor in factors:
        behind = free > before + case.checkpoint_interval_s
        planned = (
            free if behind else max(1.0, np.ceil(free / case.checkpoint_interval_s - 1e-9)) * case.checkpoint_interval_s
        )
        if planned <= before:
            planned = before + case.checkpoint_interval_s
        if not hit and planned > case.t0_s:  # no batch was running at the fault
            hit, planned = True, max(planned, up_s)
        cold = COLD * float(np.exp(-(planned - up_s) / WARM_S)) if hit else 0.0
        takes = (case.fixed_s + case.per_record_s * case.rate * (planned - begin)) * factor
        started = planned
        if not hit and planned + takes > case.t0_s:  # the running batch is lost, and repeated
            hit, started, cold = True, up_s, COLD
        takes *= (1 + cold) * (case.slower if hit else 1.0)
        committed = started + takes
        yield SimulatedBatch(begin, planned, started, committed, started + takes / factor)
        if planned >= case.end_s:
            return
        begin, before, free = planned, planned, committed
