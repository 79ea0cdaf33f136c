"""What every injector can do, and how the outcome of an act is settled."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from fault.errors import RemoteError
from fault.identity import ProcessIdentity

SETTLE_WITHIN_S = 5.0
_POLL_S = 0.02


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
    """Sends signals to checked victims on one host."""

    def probe(self, victim: ProcessIdentity) -> Presence:
        """What is under the victim's pid now. Raises RemoteError when the host cannot tell."""
        ...

    def signal(self, victim: ProcessIdentity, signum: int) -> Delivery:
        """Checks the identity once more, then sends `signum`, once.

        Raises IdentityMismatch when the pid is another process, SignalRefused when the system
        does not allow it, RemoteError when the host could not be used; then nothing was sent.
        """
        ...


def settle(
    injector: Injector,
    victim: ProcessIdentity,
    action: str,
    delivery: Delivery,
    *,
    within_s: float = SETTLE_WITHIN_S,
    sleep: Callable[[float], None] = time.sleep,
) -> Settlement:
    """Probes until the act shows its effect, at most `within_s` seconds.

    `kill` and `term` took effect when the process is gone, `pause` when it is stopped. An
    unacknowledged signal is settled by the same evidence; `unknown` stays only where no probe answers.
    """
    if delivery is Delivery.GONE:
        return Settlement(Outcome.NO_EFFECT, f"{victim} was already gone")
    began = time.monotonic()
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
        if action == "pause":
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
        sleep(_POLL_S)
