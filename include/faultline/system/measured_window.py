"""Instants of one attempt: the start barrier, the measured window, and its end.

All instants are wall-clock nanoseconds since the epoch; `t_s` always means seconds after T0, the opening of the
barrier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from faultline.system.journal import Line, find_last

NS = 1_000_000_000
# Timestamps of Spark's logs and REST interface are cut to 1 ms; a file's mtime comes from the
# kernel's coarse clock, up to 10 ms late at 100 Hz. A difference below this says nothing.
CLOCK_RESOLUTION_NS = 10_000_000


@dataclass(frozen=True)
class Window:
    """T0, the measured window [start, end), and the nominal interval between commits."""

    t0_ns: int
    start_ns: int
    end_ns: int
    interval_ns: int

    @classmethod
    def of(
        cls,
        t0_ns: int,
        warmup_s: float,
        duration_s: float,
        checkpoint_interval_s: float,
        conductor: Sequence[Line] = (),
    ) -> Window:
        """Return the window of an attempt whose start barrier opened at `t0_ns`; durations in seconds.

        `conductor`: journal of the fault scheduler. If it records when the engine became steady, the window begins
        there; if it records when the last recovery ended, the window ends there; otherwise after fixed times.
        """
        begun, ended = (find_last(conductor, event=name) for name in ("measured_from", "measured_until"))
        start = t0_ns + round(warmup_s * NS) if begun is None else int(begun["wall_ns"])
        end = start + round(duration_s * NS) if ended is None else int(ended["wall_ns"])
        return cls(t0_ns, start, end, round(checkpoint_interval_s * NS))

    @property
    def watched_until_ns(self) -> int:
        """Instant of the last commit that counts: later time bins contain records of an idle generator."""
        return self.end_ns + self.interval_ns

    @property
    def duration_s(self) -> float:
        """Length of the measured window in seconds."""
        return (self.end_ns - self.start_ns) / NS

    def t_s(self, wall_ns: int) -> float:
        """Return seconds after T0."""
        return (wall_ns - self.t0_ns) / NS


# ---- Steps of the wall clock during a run: latencies are differences of wall times ----


# If a process is preempted between reading both clocks, the difference is too large; in five consecutive samples, at
# least one is correct.
_SAMPLES_PER_MINIMUM = 5


def clock_step_ms(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the largest change of wall clock minus monotonic clock since the start, in ms (negative: backwards).

    `lines`: lines of one process's journal, each with `wall_ns` and `mono_ns`; of each five consecutive instants
    the minimum counts. None for fewer than five instants.
    """
    # Lines of one instant are one sample.
    pairs = [
        *dict.fromkeys((line["wall_ns"], line["mono_ns"]) for line in lines if {"wall_ns", "mono_ns"} <= line.keys())
    ]
    if len(pairs) < _SAMPLES_PER_MINIMUM:
        return None
    first_wall, first_mono = pairs[0]
    # Relative to the first line, so that float64 keeps nanoseconds.
    import numpy as np  # slow to import, and few callers need it

    ahead = np.array([(wall - first_wall) - (mono - first_mono) for wall, mono in pairs])
    least = np.lib.stride_tricks.sliding_window_view(ahead, _SAMPLES_PER_MINIMUM).min(axis=1)
    moved = least - least[0]
    return float(moved[np.abs(moved).argmax()]) / 1e6
