"""Whether the wall clock kept step with the monotonic one during a run: latencies are differences of wall times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

# A process that loses its core between reading one clock and the other sees a difference that is none; so many
# samples in a row do not.
_ROW = 5


def jump_ms(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """By how many milliseconds the wall clock went furthest ahead (or back, negative) of where it was at first.

    `lines` of one process's journal, each with `wall_ns` and `mono_ns`. The least difference of each five lines
    counts. None for fewer than five lines.
    """
    pairs = [(line["wall_ns"], line["mono_ns"]) for line in lines if "wall_ns" in line and "mono_ns" in line]
    if len(pairs) < _ROW:
        return None
    first_wall, first_mono = pairs[0]
    # From the first line on, so that nanoseconds since 1970 do not lose digits.
    ahead: npt.NDArray[np.int64] = np.array([(wall - first_wall) - (mono - first_mono) for wall, mono in pairs])
    least = np.lib.stride_tricks.sliding_window_view(ahead, _ROW).min(axis=1)
    moved = least - least[0]
    return float(moved[np.abs(moved).argmax()]) / 1e6
