"""What every injector can do, and how the outcome of an act is settled."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from fault.errors import RemoteError, SignalRefused
from fault.identity import ProcessIdentity, Tokens
from fault.victims import executor_ids

# How long an act may take to show.
SETTLE_WITHIN_S = 5.0
# The first probes follow closely, since most acts show at once.
_FIRST_POLL_S, _LONGEST_POLL_S = 0.002, 0.02


class Presence(StrEnum):
    """What is found under a victim's pid; `other` is another process that was given the pid later."""

    ALIVE = "alive"
    STOPPED = "stopped"
    GONE = "gone"
    OTHER = "other"


class Delivery(StrEnum):
    """What is known right after a signal was sent; `unknown` until a probe settles it."""

    SENT = "sent"
    GONE = "gone"
    UNKNOWN = "unknown"


class Outcome(StrEnum):
    """How a fault ended."""

    EFFECTIVE = "effective"
    NO_EFFECT = "no-effect"
    MISSED_WINDOW = "missed-window"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Settlement:
    """An outcome and, in one line, what it rests on."""

    outcome: Outcome
    detail: str


class Injector(Protocol):
    """Finds the processes that a run may touch, and sends signals to those that were chosen and checked."""

    def find(self, victim: str, tokens: Tokens) -> tuple[ProcessIdentity, ...]:
        """The live candidates for a victim word (`fault.victims.select`), sorted.

        Raises VictimRefused when a needed token is missing, RemoteError when a host cannot tell.
        """
        ...

    def probe(self, victim: ProcessIdentity) -> Presence:
        """What is under the victim's pid now. Raises RemoteError when the host cannot tell."""
        ...

    def arm(self, victim: ProcessIdentity) -> None:
        """Does beforehand what the next signal to the victim would lose time with, checks included.

        Raises what `signal` raises. Arming is no duty, and harmless when no signal follows.
        """
        ...

    def signal(self, victim: ProcessIdentity, signum: int) -> Delivery:
        """Checks the identity once more, then sends `signum`, once.

        Raises IdentityMismatch when the pid is another process, SignalRefused when the system
        does not allow it, RemoteError when the host could not be used; then nothing was sent.
        """
        ...

    def stand_by(self, victim: ProcessIdentity, seconds: float) -> None:
        """Posts somebody on the victim's own host who continues it after so many seconds, whatever becomes of this
        process and of the way there. One that stands there already stays, and for one that is gone nobody is needed.

        Raises IdentityMismatch, NobodyStandsBy or RemoteError; then the victim is not to be stopped.
        """
        ...

    def stand_down(self, victim: ProcessIdentity) -> None:
        """Sends him home: the victim was continued. Harmless when nobody stands there."""
        ...


def executors_on(injector: Injector, node: str | None, tokens: Tokens) -> list[int]:
    """The ids of the run's executors that live on the Spark worker `node` (HOST:PORT), ascending."""
    return executor_ids(injector.find("executor", tokens), node) if node else []


def resume(injector: Injector, victim: ProcessIdentity, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Sends SIGCONT until a probe says that the victim is not stopped; what is gone needs none.

    Raises SignalRefused or RemoteError when it cannot be continued within `SETTLE_WITHIN_S` seconds.
    """
    deadline = time.monotonic() + SETTLE_WITHIN_S
    while True:
        try:
            if injector.probe(victim) is not Presence.STOPPED:
                return
            injector.signal(victim, signal.SIGCONT)
            if injector.probe(victim) is not Presence.STOPPED:
                return
        except RemoteError:
            if time.monotonic() >= deadline:
                raise
        if time.monotonic() >= deadline:
            raise SignalRefused(f"pid: {victim} is still stopped {SETTLE_WITHIN_S:g} s after SIGCONT")
        sleep(_LONGEST_POLL_S)


def settle(
    injector: Injector,
    victim: ProcessIdentity,
    wanted: Presence,
    delivery: Delivery,
    *,
    within_s: float = SETTLE_WITHIN_S,
    sleep: Callable[[float], None] = time.sleep,
) -> Settlement:
    """Probes until the act shows its effect, at most `within_s` seconds.

    `wanted`: GONE for an act that ends its victim, also when another process has its pid by now; STOPPED for
    one that holds it. An unacknowledged signal is settled by the same evidence; `unknown` stays only where
    no probe answers.
    """
    if delivery is Delivery.GONE:
        return Settlement(Outcome.NO_EFFECT, f"{victim} was already gone")
    began = time.monotonic()
    pause_s = _FIRST_POLL_S
    hint = " (the signal was not acknowledged)" if delivery is Delivery.UNKNOWN else ""
    while True:
        trouble: RemoteError | None = None
        presence: Presence | None = None
        try:
            presence = injector.probe(victim)
        except RemoteError as error:
            trouble = error
        elapsed = time.monotonic() - began
        gone = presence in (Presence.GONE, Presence.OTHER)
        if wanted is Presence.STOPPED:
            if presence is Presence.STOPPED:
                return Settlement(Outcome.EFFECTIVE, f"{victim} stopped within {elapsed:.3f} s{hint}")
            if gone:
                return Settlement(Outcome.NO_EFFECT, f"{victim} ended instead of stopping{hint}")
        elif gone:
            return Settlement(Outcome.EFFECTIVE, f"{victim} gone within {elapsed:.3f} s{hint}")
        if elapsed >= within_s:
            if trouble is not None:
                return Settlement(Outcome.UNKNOWN, f"{victim}: no probe answered within {within_s:g} s: {trouble}")
            return Settlement(Outcome.NO_EFFECT, f"{victim} is still {presence} after {within_s:g} s{hint}")
        sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_POLL_S)
