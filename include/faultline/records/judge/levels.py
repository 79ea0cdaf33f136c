"""Where a series changes its level: the edges of segments, by `ruptures`."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

# Price of a change, in variances of a value times the logarithm of their number.
PRICE = 4.0
# Values that a level must last.
LEAST = 3


def level_begins(values: npt.NDArray[np.float64], least: int = LEAST) -> list[int]:
    """Indices of the values with which a new level begins, ascending; none in a series without a change.

    Segments by least squares with a price for each (PELT, Killick and others 2012). The variance is that of a value
    against the one before it, so that a change of level does not count as noise. None for values that are not finite,
    and for fewer than twice `least`.
    """
    if len(values) < 2 * least or not np.isfinite(values).all():
        return []
    import ruptures  # half a second that only few need

    steps = np.diff(values)
    deviation = 1.4826 * float(np.median(np.abs(steps - np.median(steps)))) / math.sqrt(2)
    price = PRICE * math.log(len(values)) * max(deviation, 1e-9 * float(np.abs(values).max())) ** 2
    ends: list[int] = ruptures.Pelt(model="l2", min_size=least, jump=1).fit(values).predict(pen=price)
    return ends[:-1]
