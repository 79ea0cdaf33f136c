"""Monte Carlo driver: random numbers by seed and case, noise, and shares of hits.

Benchmarks that use it only compute, so their figures do not depend on the machine.
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
    """Figures by name, in order of computation."""

    def __init__(self, progress: Progress, seed: int) -> None:
        super().__init__()
        self._progress, self._seed, self._reported = progress, seed, 0

    def rng(self, case: int) -> np.random.Generator:
        """Return the random numbers of a case, independent of other cases."""
        return np.random.default_rng([self._seed, case])

    def count(self, name: str, hits: npt.ArrayLike) -> None:
        """Add the share of hits under this name."""
        self[name] = share(hits)

    def report(self) -> None:
        """Report the figures since the last call."""
        new, self._reported = list(self.items())[self._reported :], len(self)
        self._progress("\n".join(f"{name}: {_text(figure)}" for name, figure in new))


def _text(figure: BenchmarkFigure) -> str:
    return f"{figure.value:.1%}" if figure.unit == "share" else f"{figure.value:.4g} {figure.unit}"


def smoothed_draws(
    values: Sequence[float], size: int | tuple[int, ...], rng: np.random.Generator
) -> tuple[Floats, float]:
    """Return smoothed bootstrap draws and the bandwidth (Silverman).

    Smoothing avoids ties (equal values), which real repetitions do not have.
    """
    known = np.asarray(values)
    width = 0.9 * float(known.std(ddof=1)) * len(known) ** -0.2
    return rng.choice(known, size) + width * rng.standard_normal(size), width


def standard_noise(noise: str, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Return values of mean 0 and variance 1.

    `noise`: normal, heavy-tailed (t with 3 degrees of freedom) or skewed (log-normal).
    """
    if noise == "normal":
        return rng.standard_normal(shape)
    if noise == "skewed":
        return np.asarray((rng.lognormal(0.0, 0.5, shape) - math.exp(0.125)) / 0.604)
    return rng.standard_t(3, shape) / math.sqrt(3.0)
