"""Step-by-step back-pressure (Lu et al. 2020, algorithm 1): when a stage signals the one above, and what that does.

Both sides are state machines that are told the time, so that they can be held against any course of events.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

# Two signals never lie closer together than this, however full the queue is.
LEAST_PERIOD_S = 0.5
# A wait between two tries to ease the pressure under a load that does not change ends here at the latest.
LONGEST_WAIT_S = 60.0
# Pressure that comes back sooner than this after it was eased was eased too early.
CALM_S = 10 * LONGEST_WAIT_S
# A queue this many times as long as its shortest since the last signal grows, and does not only rise within a batch.
REGROWN = 1.25
# A stage of which less than this comes of a tuple is held by other things than the room below.
LEAST_FAN_OUT = 0.001
# A limit never falls below the first rate divided by this.
MOST_DIVISION = 64.0


class PressureSignal(StrEnum):
    """What a stage asks of the stage above it: slow down, go back a step, or stay as it is (a sign of life)."""

    SLOW = "slow"
    EASE = "ease"
    KEEP = "keep"


@dataclass(frozen=True)
class PressureRules:
    """`capacity`: tuples that the input queue may hold (QML). `load_factor`: the share of it, above a half, at which
    pressure begins; it ends at what is left to one. `divisor`: by which a signal divides the rate (v′), above 1.
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
        """Queue length below which it has room again."""
        return (1 - self.load_factor) * self.capacity

    def batch_most(self, fan_out: float) -> int:
        """Tuples that a stage may take in with one batch when it makes `fan_out` of each: what brings no pressure on an
        empty queue below.

        However a limit was eased, a batch that took in all that waits could overfill that queue by itself.
        """
        return max(1, int(self.high / max(fan_out, LEAST_FAN_OUT)))

    def sensitivity_s(self, queue: int, rate: float) -> float:
        """Equation 1: half the time until the queue is full at the rate that was sent before the pressure, tuples/s."""
        if rate <= 0:
            return LEAST_PERIOD_S
        return min(max((self.capacity - queue) / (2 * rate), LEAST_PERIOD_S), LONGEST_WAIT_S)


class PressureWatch:
    """One stage's look at its own input queue.

    Stages work in batches here: what a signal changed is seen in this queue once the stage above has ended the batch in
    work and another one, and this stage one of its own. Until then (LONGEST_WAIT_S at most) the rate is lowered no
    further and raised no further, however short the paper's sensitivity period (equation 1) is: it would answer
    the same excess, or the same room, again. Only an excess after a step back is a new one at once.

    The paper's algorithm tries a faster rate each time the queue has been short for a while. Under a load that stays
    too high that swings for ever, so here each try that failed doubles the wait before the next one, up to
    LONGEST_WAIT_S; a try that held takes the wait back. And as long as the queue shrinks, no further signal
    to slow down is sent: the last one suffices.
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

    def look(self, now_s: float, queue: int, rate: float, *, seen: bool = True) -> PressureSignal | None:
        """What to signal now; `rate`: tuples/s that the stage above sends; `seen`: whether what the last signal changed
        has come through to this queue. At most one signal a sensitivity period.

        Whoever sends the signal calls `sent` once it stands; a signal that could not be sent is due again.
        """
        rules = self._rules
        if not self._steps:
            self._rate = rate
        # A queue that shrank and grows again is another reason to signal, however long it once was.
        self._signalled_at_length = min(self._signalled_at_length, REGROWN * queue)
        self._low_since = None if queue >= rules.low else now_s if self._low_since is None else self._low_since
        seen = seen or now_s >= self._unseen_until
        if now_s < self._quiet_until or not (seen or self._eased_at is not None):
            return None
        slowest = rules.divisor**self._steps >= MOST_DIVISION
        if queue > rules.high and not slowest and (self._steps == 0 or queue > self._signalled_at_length):
            return PressureSignal.SLOW
        if seen and self._steps and self._low_since is not None:
            wait_s = min(rules.sensitivity_s(queue, self._rate) * self._patience, LONGEST_WAIT_S)
            if now_s - self._low_since >= wait_s:
                return PressureSignal.EASE
        return None

    def sent(self, act: PressureSignal, now_s: float, queue: int) -> None:
        """A signal from `look` reached the control topic."""
        if act is PressureSignal.SLOW:
            if self._eased_at is not None:
                failed = now_s - self._eased_at < CALM_S
                self._patience = min(self._patience * 2, LONGEST_WAIT_S / LEAST_PERIOD_S) if failed else 1.0
                self._eased_at = None
            self._steps += 1
            self._signalled_at_length = queue
        elif act is PressureSignal.EASE:
            self._steps -= 1
            self._eased_at = now_s
            self._low_since = now_s
        self._quiet_until = now_s + self._rules.sensitivity_s(queue, self._rate)
        self._unseen_until = now_s + LONGEST_WAIT_S


class Throttle:
    """What a stage's own rate is, by the signals of the stage below it.

    Each signal carries the number of steps that hold from then on, so one that is lost or comes twice does no harm. The
    first one notes the rate of that moment, each step divides it once more, and with no step left the limit is gone.
    The rate is computed from the number of steps, so it returns to the first one exactly.
    """

    def __init__(self, divisor: float, lease_s: float = 10.0) -> None:
        """`lease_s`: without a sign of life from below for so long, the limit is given up."""
        self._divisor, self._lease_s = divisor, lease_s
        self._first: float | None = None
        self._steps = 0
        self._heard_s = 0.0

    @property
    def limit(self) -> float | None:
        """Records/s that the stage may take in; None: as many as there are."""
        if self._first is None:
            return None
        return self._first / min(self._divisor**self._steps, MOST_DIVISION)

    def hear(self, steps: int, now_s: float, rate: float) -> None:
        """Applies a signal, of whatever act; `rate`: records/s that the stage takes in at this moment."""
        self._heard_s = now_s
        if not steps:
            self.release()
            return
        if self._first is None:
            self._first = max(rate, 1.0)
        self._steps = steps

    def release(self) -> None:
        """Gives the limit up: pressure ended, or nobody can say so any more."""
        self._first, self._steps = None, 0

    def check(self, now_s: float) -> bool:
        """Gives a limit up whose lease ran out; whether it did."""
        if self._first is None or now_s - self._heard_s < self._lease_s:
            return False
        self.release()
        return True
