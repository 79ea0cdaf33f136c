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

# Two rates are told apart when they differ by this factor: repeated runs do not agree much better.
PRECISION = 1.1
# Rates are rounded to this many digits, so that a search that is repeated asks for the very same ones.
DIGITS = 3
# Reasons that say that the engine was too slow; any other leaves the question open.
INTERVAL_NOT_HELD = "interval-not-held"
OVERLOADED = frozenset({"overloaded", INTERVAL_NOT_HELD, "drain-incomplete", "backlog-at-t0"})
GENERATOR_LATE = "schedule-lag"
# Cores that others may have had of the machine.


@dataclass(frozen=True)
class Capacity:
    """`sustained`: the highest rate that held, None when none did. `exceeded`: the lowest that did not, None when all
    held. `tried`: every rate that was measured, in order, with its verdict."""

    sustained: float | None
    exceeded: float | None
    tried: tuple[tuple[float, bool], ...]


def highest_sustained(
    is_held: Callable[[float], bool], low: float, high: float, precision: float = PRECISION
) -> Capacity:
    """Measures by `is_sustained(rate)` until the answer is known to the factor `precision`, between `low` and `high`.

    The search begins at both ends, so ends that were chosen too close are seen at once: they come back as None.
    Repeating it asks for the same rates in the same order, as long as the verdicts are the same.
    Raises ValueError unless 0 < low < high and precision > 1.
    """
    if not 0 < low < high:
        raise ValueError(f"rates from {low:g} to {high:g}: give 0 < low < high")
    asked = _RateTests(is_held, precision)
    if not asked(low):
        return Capacity(None, low, tuple(asked.tried))
    if asked(high):
        return Capacity(high, None, tuple(asked.tried))
    return _bisect(asked, low, high)


def highest_sustained_near(
    is_held: Callable[[float], bool], guess: float, precision: float = PRECISION, most: float = MAX_RATE
) -> Capacity:
    """Searches from a guess: asks its doubles or halves until one of them differs, then between those two.

    With a guess that is right within a factor of 2, four rates are enough for a precision of 1.25. No rate above
    `most` is asked, and none below a thousandth of the guess.
    """
    if not 0 < guess <= most:
        raise ValueError(f"guess {guess:g}: give a rate above 0 and at most {most:g}")
    asked, rate = _RateTests(is_held, precision), guess
    if asked(guess):
        while rate < most:
            low, rate = rate, min(2 * rate, most)
            if not asked(rate):
                return _bisect(asked, low, rate)
        return Capacity(rate, None, tuple(asked.tried))
    while rate > guess / 1000:
        high, rate = rate, _rounded(rate / 2)
        if asked(rate):
            return _bisect(asked, rate, high)
    return Capacity(None, rate, tuple(asked.tried))


class _RateTests:
    """Asks for the verdict on a rate, and remembers what was said. `precision`: the factor that is good enough."""

    def __init__(self, is_held: Callable[[float], bool], precision: float) -> None:
        if precision <= 1:
            raise ValueError(f"precision {precision:g}: give a factor above 1")
        self._holds = is_held
        self.precision = precision
        self.tried: list[tuple[float, bool]] = []

    def __call__(self, rate: float) -> bool:
        verdict = self._holds(rate)
        self.tried.append((rate, verdict))
        return verdict


def _bisect(asked: _RateTests, low: float, high: float) -> Capacity:
    """The answer between a rate that held and one that did not."""
    while high / low > asked.precision:
        middle = _rounded(math.sqrt(low * high))
        if not low < middle < high:
            break
        low, high = (middle, high) if asked(middle) else (low, middle)
    return Capacity(low, high, tuple(asked.tried))


def _rounded(rate: float) -> float:
    return float(f"{rate:.{DIGITS}g}")


def is_sustained(record: Record) -> bool | None:
    """Whether the engine kept up with the rate of this record; None when the record cannot tell.

    It does when the lag was shown not to grow (`sustained`) and the commits kept their interval. An invalid record
    answers only when what is wrong with it is that the engine was too slow, perhaps for a generator that was late.
    """
    nominal = float(record.config["checkpoint_interval_s"])
    effective = record.metrics.effective_interval_s
    too_slow = effective is not None and effective > INTERVAL_EXCESS * nominal
    if record.status == "valid":
        # Too slow by far leaves too few batches to say how the lag moved.
        return False if too_slow else None if effective is None else record.metrics.sustained
    if record.status not in ("unmet", "invalid"):
        return None
    if _codes(record) <= OVERLOADED:
        return False
    # A generator that is late offers less than was asked for: what is too slow for that is too slow for more.
    too_slow = (too_slow or INTERVAL_NOT_HELD in _codes(record)) and _is_undisturbed(record)
    return False if too_slow and _codes(record) <= OVERLOADED | {GENERATOR_LATE} else None


def _is_undisturbed(record: Record) -> bool:
    """Whether what made the generator late was the experiment itself: nobody else had much of the machine."""
    waited, besides = record.metrics.waited, record.metrics.background_cpu
    if waited is not None and waited.others is not None:
        return waited.others + (waited.stolen or 0.0) <= LOST_CORES
    if besides is None or besides.processes is None or besides.steal is None:
        return False
    return besides.processes + besides.steal <= DISTURBED_CORES


def _codes(record: Record) -> set[str]:
    return {reason.partition(":")[0] for reason in record.reasons}


def at_rate(config: Configuration, rate: float) -> Configuration:
    """The same experiment without a fault at another rate, where being too slow is a result."""
    changes = {"rate": rate, "fault": "none", "fault_at_s": None, "fault_plan": None, "accept_overload": True}
    return parse_configuration({**config.model_dump(), **changes})


def search_capacity(
    config: Configuration,
    search: Callable[[Callable[[float], bool]], Capacity],
    known: Callable[[Configuration], Record | None],
    measure: Callable[[Configuration], Record],
) -> tuple[Capacity, dict[float, Record]]:
    """Searches the highest rate that `config` sustains; returns it with the record of each rate that was tried.

    `search(holds)`: how, such as by `highest_sustained` between two rates.
    `known(config)`: a record that already answers, so a search that was interrupted goes on where it was.
    A rate that the generator could not keep up with either, however often it was measured, is more than this machine
    can do. Raises InfrastructureError when a rate gives no answer in MOST_MEASUREMENTS measurements for another reason.
    """
    records: dict[float, Record] = {}

    def ask(rate: float) -> bool:
        there = at_rate(config, rate)
        record = known(there)
        for _ in range(MOST_MEASUREMENTS):
            if record is not None and (verdict := is_sustained(record)) is not None:
                records[rate] = record
                return verdict
            record = measure(there)
        if record is not None and (verdict := is_sustained(record)) is not None:
            records[rate] = record
            return verdict
        # What is not shown to be kept up with, however often it is measured, does not count as such.
        if record is not None and (
            record.status == "valid" or (record.status == "invalid" and _codes(record) <= OVERLOADED | {GENERATOR_LATE})
        ):
            records[rate] = record
            return False
        why = "; ".join(record.reasons) if record else "no record"
        raise InfrastructureError(f"rate {rate:g}: no answer in {MOST_MEASUREMENTS} measurements; the last: {why}")

    return search(ask), records
