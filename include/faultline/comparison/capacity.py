"""The highest input rate that an engine sustains, by bisection on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.matrices import MOST_MEASUREMENTS
from faultline.experiment.workloads.protocol import MAX_RATE
from faultline.records.judge.validity import DISTURBED_CORES, INTERVAL_EXCESS, LOST_CORES
from faultline.records.record import Record
from faultline.system.errors import InfrastructureError

# A search stops at this factor between two rates; repeated searches do not agree more closely.
PRECISION = 1.1
# Rates are rounded to this many digits, so that a repeated search measures the same rates.
DIGITS = 3
# Codes of reasons that show an overloaded engine; any other code leaves the result unknown.
INTERVAL_NOT_HELD = "interval-not-held"
OVERLOADED = frozenset({"overloaded", INTERVAL_NOT_HELD, "drain-incomplete", "backlog-at-t0"})
GENERATOR_LATE = "schedule-lag"


@dataclass(frozen=True)
class Capacity:
    """Result of a capacity search.

    `sustained`: highest rate that was sustained, or None. `exceeded`: lowest rate that was not sustained, or None.
    `tried`: measured rates in order of measurement, each with whether it was sustained.
    """

    sustained: float | None
    exceeded: float | None
    tried: tuple[tuple[float, bool], ...]


def highest_sustained(
    is_held: Callable[[float], bool], low: float, high: float, precision: float = PRECISION
) -> Capacity:
    """Find the highest rate in [`low`, `high`] that `is_held(rate)` accepts, to within the factor `precision`.

    Both ends are measured first. If the limit lies outside the range, the search ends there, and `sustained` or
    `exceeded` is None. A repeated search measures the same rates in the same order. Raises ValueError unless
    0 < low < high and precision > 1.
    """
    if not 0 < low < high:
        raise ValueError(f"rates: got {low:g} to {high:g}; expected 0 < low < high")
    tests = _RateTests(is_held, precision)
    if not tests(low):
        return Capacity(None, low, tuple(tests.tried))
    if tests(high):
        return Capacity(high, None, tuple(tests.tried))
    return _bisect(tests, low, high)


def highest_sustained_near(
    is_held: Callable[[float], bool], guess: float, precision: float = PRECISION, most: float = MAX_RATE
) -> Capacity:
    """Find the highest sustained rate near a guess: double or halve it until the result changes, then bisect.

    If the guess is right within a factor of 2, four measurements suffice for a precision of 1.25. Rates stay between a
    thousandth of the guess and `most`.
    """
    if not 0 < guess <= most:
        raise ValueError(f"guess: got {guess:g}; expected a rate in (0, {most:g}]")
    tests, rate = _RateTests(is_held, precision), guess
    if tests(guess):
        while rate < most:
            low, rate = rate, min(2 * rate, most)
            if not tests(rate):
                return _bisect(tests, low, rate)
        return Capacity(rate, None, tuple(tests.tried))
    while rate > guess / 1000:
        high, rate = rate, _rounded(rate / 2)
        if tests(rate):
            return _bisect(tests, rate, high)
    return Capacity(None, rate, tuple(tests.tried))


class _RateTests:
    """Measures rates and keeps the results. `precision`: factor between two rates at which the search stops."""

    def __init__(self, is_held: Callable[[float], bool], precision: float) -> None:
        if precision <= 1:
            raise ValueError(f"precision: got {precision:g}; expected a factor above 1")
        self._holds = is_held
        self.precision = precision
        self.tried: list[tuple[float, bool]] = []

    def __call__(self, rate: float) -> bool:
        verdict = self._holds(rate)
        self.tried.append((rate, verdict))
        return verdict


def _bisect(tests: _RateTests, low: float, high: float) -> Capacity:
    """Bisect between a sustained rate and one that is not."""
    while high / low > tests.precision:
        middle = _rounded(math.sqrt(low * high))
        if not low < middle < high:
            break
        low, high = (middle, high) if tests(middle) else (low, middle)
    return Capacity(low, high, tuple(tests.tried))


def _rounded(rate: float) -> float:
    return float(f"{rate:.{DIGITS}g}")


def is_sustained(record: Record) -> bool | None:
    """Return whether the engine sustained the rate of this record; None if unknown.

    The engine did if the consumer lag did not grow (`sustained`) and the commits kept their interval. An invalid record
    gives an answer only if all its reasons show an overloaded engine; a late load generator may be among them.
    """
    nominal = float(record.config["checkpoint_interval_s"])
    effective = record.metrics.effective_interval_s
    too_slow = effective is not None and effective > INTERVAL_EXCESS * nominal
    if record.status == "valid":
        # If the engine is far too slow, there are too few batches to judge the lag.
        return False if too_slow else None if effective is None else record.metrics.sustained
    if record.status not in ("unmet", "invalid"):
        return None
    if _codes(record) <= OVERLOADED:
        return False
    # A late generator offers less than intended, so the full rate would overload the engine as well.
    too_slow = (too_slow or INTERVAL_NOT_HELD in _codes(record)) and _is_undisturbed(record)
    return False if too_slow and _codes(record) <= OVERLOADED | {GENERATOR_LATE} else None


def _is_undisturbed(record: Record) -> bool:
    """Return whether background CPU was too low to explain a late generator."""
    waited, background = record.metrics.waited, record.metrics.background_cpu
    if waited is not None and waited.others is not None:
        return waited.others + (waited.stolen or 0.0) <= LOST_CORES
    if background is None or background.processes is None or background.steal is None:
        return False
    return background.processes + background.steal <= DISTURBED_CORES


def _codes(record: Record) -> set[str]:
    return {reason.partition(":")[0] for reason in record.reasons}


def at_rate(config: Configuration, rate: float) -> Configuration:
    """Return the configuration without a fault at another rate, with overload accepted."""
    changes = {"rate": rate, "fault": "none", "fault_at_s": None, "fault_plan": None, "accept_overload": True}
    return parse_configuration({**config.model_dump(), **changes})


def search_capacity(
    config: Configuration,
    search: Callable[[Callable[[float], bool]], Capacity],
    known: Callable[[Configuration], Record | None],
    measure: Callable[[Configuration], Record],
) -> tuple[Capacity, dict[float, Record]]:
    """Find the highest rate that `config` sustains; return it with the record of each measured rate.

    `search(is_sustained)`: the search to run, such as `highest_sustained`. `known(config)`: an existing record, with
    which an interrupted search resumes. A rate that MOST_MEASUREMENTS measurements never show to be sustained counts as
    not sustained if the engine was overloaded or the generator late. Raises InfrastructureError for other reasons.
    """
    records: dict[float, Record] = {}

    def measure_rate(rate: float) -> bool:
        config_at_rate = at_rate(config, rate)
        record = known(config_at_rate)
        for _ in range(MOST_MEASUREMENTS):
            if record is not None and (verdict := is_sustained(record)) is not None:
                records[rate] = record
                return verdict
            record = measure(config_at_rate)
        if record is not None and (verdict := is_sustained(record)) is not None:
            records[rate] = record
            return verdict
        if record is not None and (
            record.status == "valid" or (record.status == "invalid" and _codes(record) <= OVERLOADED | {GENERATOR_LATE})
        ):
            records[rate] = record
            return False
        why = "; ".join(record.reasons) if record else "no record"
        raise InfrastructureError(f"rate {rate:g}: no result after {MOST_MEASUREMENTS} measurements: {why}")

    return search(measure_rate), records
