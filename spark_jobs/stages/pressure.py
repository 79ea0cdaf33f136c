"""Step-by-step back-pressure (Lu et al. 2020, algorithm 1): signals to the stage above, and their effect.

Both sides are state machines with time as an argument, so that tests can simulate any sequence of events.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

# Minimum time between two signals.
MIN_PERIOD_S = 0.5
# Maximum wait between two tries to ease the pressure under constant load.
MAX_WAIT_S = 60.0
# Pressure that returns within this time was eased too early.
MIN_CALM_S = 10 * MAX_WAIT_S
# Growth relative to the minimum since the last signal that exceeds the variation within a batch.
GROWTH_FACTOR = 1.25
# Minimum fan-out for the limit by room below.
MIN_FAN_OUT = 0.001
# Maximum divisor of the first rate.
MAX_DIVISION = 64.0


class PressureSignal(StrEnum):
    """Request to the stage above: slow down, take back a step, or keep the limit (keep-alive)."""

    SLOW = "slow"
    EASE = "ease"
    KEEP = "keep"


@dataclass(frozen=True)
class PressureRules:
    """Parameters of back-pressure.

    `capacity`: tuples that the input queue may hold (QML). `load_factor`: share of the capacity, above 0.5, at which
    pressure starts; it ends at 1 - `load_factor`. `divisor`: factor by which a signal divides the rate (v′), above 1.
    """

    capacity: int
    load_factor: float = 0.8
    divisor: float = 2.0

    @property
    def high(self) -> float:
        """Queue length above which the stage is overloaded."""
        return self.load_factor * self.capacity

    @property
    def low(self) -> float:
        """Queue length below which the stage has room again."""
        return (1 - self.load_factor) * self.capacity

    def batch_most(self, fan_out: float) -> int:
        """Return the tuples per batch that cause no pressure on an empty queue below, with this `fan_out`.

        Without this bound, a batch of all queued tuples could overfill that queue after a limit is eased.
        """
        return max(1, int(self.high / max(fan_out, MIN_FAN_OUT)))

    def sensitivity_s(self, queue: int, rate: float) -> float:
        """Return half the time until the queue is full at this rate in tuples/s (equation 1)."""
        if rate <= 0:
            return MIN_PERIOD_S
        return min(max((self.capacity - queue) / (2 * rate), MIN_PERIOD_S), MAX_WAIT_S)


class PressureWatch:
    """Back-pressure decisions of one stage about its input queue.

    Stages work in batches: the effect of a signal is visible once the stage above has ended its current and the next
    batch, and this stage one of its own. Until then (at most MAX_WAIT_S) the rate is not changed further, even if the
    sensitivity period of equation 1 is shorter, because that would react twice to the same excess or room. An excess
    after a step back is new at once.

    The paper's algorithm tries a faster rate whenever the queue has been short for a while, which oscillates forever
    under constant overload. Here each failed try doubles the wait before the next one, up to MAX_WAIT_S, and a
    successful try resets it. No further signal to slow down is sent while the queue shrinks.
    """

    def __init__(self, rules: PressureRules) -> None:
        self._rules = rules
        self._steps = 0
        self._rate = 0.0
        self._quiet_until = 0.0
        self._unseen_until = 0.0
        self._signalled_at_length = 0.0
        self._low_since: float | None = None
        self._eased_at: float | None = None
        self._patience = 1.0

    @property
    def steps(self) -> int:
        """Signals to slow down that are not taken back yet."""
        return self._steps

    def evaluate(self, now_s: float, queue: int, rate: float, *, seen: bool = True) -> PressureSignal | None:
        """Return the signal due now; at most one per sensitivity period.

        `rate`: tuples/s from the stage above. `seen`: whether the effect of the last signal has reached this queue. The
        caller confirms a sent signal with `confirm`; an unsent signal is due again.
        """
        rules = self._rules
        if not self._steps:
            self._rate = rate
        # A queue that shrank and grows again is a new reason to signal.
        self._signalled_at_length = min(self._signalled_at_length, GROWTH_FACTOR * queue)
        self._low_since = None if queue >= rules.low else now_s if self._low_since is None else self._low_since
        seen = seen or now_s >= self._unseen_until
        if now_s < self._quiet_until or not (seen or self._eased_at is not None):
            return None
        slowest = rules.divisor**self._steps >= MAX_DIVISION
        if queue > rules.high and not slowest and (self._steps == 0 or queue > self._signalled_at_length):
            return PressureSignal.SLOW
        if seen and self._steps and self._low_since is not None:
            wait_s = min(rules.sensitivity_s(queue, self._rate) * self._patience, MAX_WAIT_S)
            if now_s - self._low_since >= wait_s:
                return PressureSignal.EASE
        return None

    def confirm(self, act: PressureSignal, now_s: float, queue: int) -> None:
        """Record that a signal from `evaluate` reached the control topic."""
        if act is PressureSignal.SLOW:
            if self._eased_at is not None:
                failed = now_s - self._eased_at < MIN_CALM_S
                self._patience = min(self._patience * 2, MAX_WAIT_S / MIN_PERIOD_S) if failed else 1.0
                self._eased_at = None
            self._steps += 1
            self._signalled_at_length = queue
        elif act is PressureSignal.EASE:
            self._steps -= 1
            self._eased_at = now_s
            self._low_since = now_s
        self._quiet_until = now_s + self._rules.sensitivity_s(queue, self._rate)
        self._unseen_until = now_s + MAX_WAIT_S


class Throttle:
    """Rate limit of a stage, set by signals of the stage below.

    Each signal carries the number of active steps, so lost or duplicate signals do no harm. The first one records the
    current rate, each step divides it once more, and without steps the limit is removed. The limit is computed from the
    number of steps, so it returns exactly to the first rate.
    """

    def __init__(self, divisor: float, lease_s: float = 10.0) -> None:
        """Create it.

        `lease_s`: the limit is released after this time without a signal.
        """
        self._divisor, self._lease_s = divisor, lease_s
        self._first: float | None = None
        self._steps = 0
        self._last_signal_s = 0.0

    @property
    def limit(self) -> float | None:
        """Records/s that the stage may take; None: no limit."""
        if self._first is None:
            return None
        return self._first / min(self._divisor**self._steps, MAX_DIVISION)

    def apply(self, steps: int, now_s: float, rate: float) -> None:
        """Apply a signal of any kind; `rate`: current input of the stage in records/s."""
        self._last_signal_s = now_s
        if not steps:
            self.release()
            return
        if self._first is None:
            self._first = max(rate, 1.0)
        self._steps = steps

    def release(self) -> None:
        """Remove the limit, because pressure ended or signals are unavailable."""
        self._first, self._steps = None, 0

    def check(self, now_s: float) -> bool:
        """Release an expired limit; return whether it was released."""
        if self._first is None or now_s - self._last_signal_s < self._lease_s:
            return False
        self.release()
        return True
