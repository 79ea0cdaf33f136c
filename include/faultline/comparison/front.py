"""The front: the candidates that no other beats in CPU, recovery and latency at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from faultline.comparison.candidates import Candidate, draw
from faultline.comparison.effects import P99
from faultline.comparison.statistics.estimate import LEAST, Floats
from faultline.records.catalogue import CPU_TOTAL, MACRO

# In the order in which they are told.
FRONT = (CPU_TOTAL, MACRO, P99)
# In so many of the draws a dominance must hold to be certain.
CERTAIN = 0.95


@dataclass(frozen=True)
class Place:
    """A candidate with its figures in the order of `Front.keys`.

    `beaten_by`: the name of one that is no worse in any figure and better in one, by medians; None on the front.
    `sure`: in which share of the draws it is where it stands, on the front or behind that other one.
    """

    candidate: Candidate
    figures: tuple[float, ...]
    beaten_by: str | None
    sure: float

    @property
    def certain(self) -> bool:
        """Whether where it stands is certain; with fewer than five repetitions nothing is."""
        return self.sure >= CERTAIN and self.candidate.repetitions >= LEAST


@dataclass(frozen=True)
class Front:
    """All candidates whose figures are known, those on the front first, by CPU. `keys`: the figures, of FRONT."""

    keys: tuple[str, ...]
    places: tuple[Place, ...]

    @property
    def best(self) -> tuple[Place, ...]:
        """Those on the front."""
        return tuple(place for place in self.places if place.beaten_by is None)


def front_of(candidates: Sequence[Candidate]) -> Front:
    """The front by medians, and how sure it is. A figure that no candidate knows is left out, as recoveries of runs
    without a fault are; a candidate that lacks one of the others is, too."""
    keys = tuple(key for key in FRONT if any(one.figure(key) is not None for one in candidates))
    known = [one for one in candidates if keys and all(one.figure(key) is not None for key in keys)]
    if not known:
        return Front(keys, ())
    medians = np.array([[float(one.figure(key) or 0.0) for key in keys] for one in known])
    drawn = draw(known, keys)
    # (draw, candidate, figure)
    draws = np.stack([drawn.likely[key] for key in keys], axis=2)
    places = [_place(number, known, medians, draws) for number in range(len(known))]
    ordered = sorted(places, key=lambda place: (place.beaten_by is not None, place.figures))
    return Front(keys, tuple(ordered))


def beats(a: Floats, b: Floats) -> np.ndarray:
    """Whether a is no worse than b in any figure and better in one; over the last axis."""
    return np.asarray((a <= b).all(axis=-1) & (a < b).any(axis=-1))


def _place(number: int, known: Sequence[Candidate], medians: Floats, draws: Floats) -> Place:
    mine = medians[number]
    better = [other for other in range(len(known)) if other != number and bool(beats(medians[other], mine))]
    if better:
        # Of several the one that does so most often.
        shares = {other: float(beats(draws[:, other], draws[:, number]).mean()) for other in better}
        first = max(shares, key=lambda other: shares[other])
        return Place(known[number], tuple(map(float, mine)), known[first].name, shares[first])
    beaten = beats(draws, draws[:, number : number + 1]).any(axis=1)
    return Place(known[number], tuple(map(float, mine)), None, float(1 - beaten.mean()))
