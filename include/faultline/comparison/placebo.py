"""How far the recoveries of a page can be relied on: what the rule of the end says of controls, which broke nothing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from faultline.records.catalogue import value_of
from faultline.records.summary import Entry

# More controls than this share called unrecovered: the rule errs too often here.
MOST_UNRECOVERED = 0.05
# Instants of two clocks differ by less.
_CLOCKS_S = 0.01


@dataclass(frozen=True)
class Placebo:
    """Of `controls`, so many were called `unrecovered`; `macro_s` is the median of all (infinite where half were), and
    `resolution_s` how exactly it is known, None where none was called recovered."""

    controls: int
    unrecovered: int
    macro_s: float
    resolution_s: float | None

    @property
    def share(self) -> float:
        """Of controls that the rule calls unrecovered."""
        return self.unrecovered / self.controls

    @property
    def relied_on(self) -> bool:
        """Whether the rule finds nothing where nothing was, as far as these controls tell."""
        return (
            self.share <= MOST_UNRECOVERED
            and self.resolution_s is not None
            and self.macro_s <= self.resolution_s + _CLOCKS_S
        )


def placebo_among(entries: Sequence[Entry]) -> Placebo | None:
    """Over the valid controls among `entries`; None where none has a placebo."""
    asked = [entry for entry in entries if entry.sound and "placebo.recovered" in entry.metrics]
    if not asked:
        return None
    macros = [math.inf if (value := value_of(entry, "placebo.macro_s")) is None else value for entry in asked]
    blurs = [blur for entry in asked if (blur := value_of(entry, "placebo.resolution_s")) is not None]
    return Placebo(
        len(asked),
        sum(entry.metrics["placebo.recovered"] is False for entry in asked),
        statistics.median(macros),
        statistics.median(blurs) if blurs else None,
    )


def has_recoveries(entries: Sequence[Entry]) -> bool:
    """Whether a valid record of them holds a recovery."""
    return any(entry.sound and "recovery.recovered" in entry.metrics for entry in entries)
