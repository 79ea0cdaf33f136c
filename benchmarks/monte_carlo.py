"""The Monte Carlo driver: random numbers by seed and case, samples with a given scatter, and shares of what was said.

Benchmarks that use it compute only: they give the same figures on each machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from benchmarks.figure import BenchmarkFigure, share
from faultline.system.text import Progress

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class Study(dict[str, BenchmarkFigure]):
    """Figures by name, as they are found."""

    def __init__(self, say: Progress, seed: int) -> None:
        super().__init__()
        self._say, self._seed, self._reported = say, seed, 0

    def rng(self, case: int) -> np.random.Generator:
        """Return the random numbers of a case, which no other case changes."""
        return np.random.default_rng([self._seed, case])

    def count(self, name: str, hits: npt.ArrayLike) -> None:
        """Add the share of the draws in which something holds."""
        self[name] = share(hits)

    def report(self) -> None:
        """Say the figures since the last report."""
        new, self._reported = list(self.items())[self._reported :], len(self)
        self._say("\n".join(f"{name}: {_text(figure)}" for name, figure in new))


def _text(figure: BenchmarkFigure) -> str:
    return f"{figure.value:.1%}" if figure.unit == "share" else f"{figure.value:.4g} {figure.unit}"


def smoothed_draws(
    values: Sequence[float], size: int | tuple[int, ...], rng: np.random.Generator
) -> tuple[Floats, float]:
    """Draw with replacement and move each a little, since real repetitions are never equal to the digit; return the
    draws and the width of that move (Silverman)."""
    known = np.asarray(values)
    width = 0.9 * float(known.std(ddof=1)) * len(known) ** -0.2
    return rng.choice(known, size) + width * rng.standard_normal(size), width


def standard_noise(noise: str, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Draw values of mean 0 and variance 1: normal, heavy-tailed (t with 3 degrees of freedom) or skewed
    (log-normal)."""
    if noise == "normal":
        return rng.standard_normal(shape)
    if noise == "skewed":
        return np.asarray((rng.lognormal(0.0, 0.5, shape) - math.exp(0.125)) / 0.604)
    return rng.standard_t(3, shape) / math.sqrt(3.0)
