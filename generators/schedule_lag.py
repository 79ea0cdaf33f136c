"""Schedule lag of records as an HdrHistogram in microseconds.

Recording is one NumPy subtraction per burst; counting is done per block of records, in the bucket layout of the
histogram, and converted to an HdrHistogram at the end.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogWriter
from numpy.typing import NDArray

# Limit of the 99th percentile for records sent on schedule.
LATE_MS = 50.0
# Above this share of late records, the 99th percentile is late.
LATE_SHARE = 0.01
LOWEST_US = 1
HIGHEST_US = 3_600_000_000  # one hour; later records count as one hour
DIGITS = 3
# 3 significant digits need 2,048 sub-buckets: values below are exact, those above lose low bits.
_EXACT_BITS = 11
_SLOTS = 1 << _EXACT_BITS


def new_histogram() -> HdrHistogram:
    """Return an empty histogram with the range and precision used here."""
    return HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)


class ScheduleLag:
    """Exact counts of schedule lag per record, to the histogram's three digits, in constant memory."""

    def __init__(self) -> None:
        self._counts = np.zeros(64 * _SLOTS, dtype=np.int64)
        self._block = np.zeros(8192, dtype=np.int64)
        self._filled = 0
        self._largest_ns = 0

    def record(self, sent_ns: int, due_ns: NDArray[np.int64]) -> None:
        """Add the records of one burst, all sent by `sent_ns`; earlier than due counts as 0."""
        n = len(due_ns)
        if n > len(self._block):
            raise ValueError(f"burst: got {n} records; expected at most {len(self._block)}")
        if self._filled + n > len(self._block):
            self._count_block()
        if n:  # the first due record of a burst is the latest
            self._largest_ns = max(self._largest_ns, sent_ns - int(due_ns[0]))
        np.subtract(sent_ns, due_ns, out=self._block[self._filled : self._filled + n])
        self._filled += n

    def _count_block(self) -> None:
        us = np.clip(self._block[: self._filled] // 1000, 0, HIGHEST_US)
        # frexp gives the bit length of every value that a float64 holds exactly (up to 2^53).
        shift = np.maximum(np.frexp(us.astype(np.float64))[1].astype(np.int64) - _EXACT_BITS, 0)
        slots = shift * _SLOTS + (us >> shift)
        np.add.at(self._counts, slots, 1)
        self._filled = 0

    def count_late(self) -> int:
        """Return how many records were more than LATE_MS late, to the histogram's three digits."""
        self._count_block()
        late_us = int(LATE_MS * 1000)
        shift = max(late_us.bit_length() - _EXACT_BITS, 0)
        return int(self._counts[shift * _SLOTS + (late_us >> shift) + 1 :].sum())

    def take_largest_ms(self) -> float:
        """Return the largest schedule lag since the last call in milliseconds; 0 if none."""
        largest_ns, self._largest_ns = self._largest_ns, 0
        return round(largest_ns / 1e6, 3)

    def histogram(self) -> HdrHistogram:
        """Return all recorded lags in microseconds."""
        self._count_block()
        histogram = new_histogram()
        for slot in np.nonzero(self._counts)[0].tolist():
            shift, value = divmod(slot, _SLOTS)
            histogram.record_value(value << shift, int(self._counts[slot]))
        return histogram


def percentiles_ms(histogram: HdrHistogram) -> dict[str, float]:
    """Return `p50`, `p99` and `max` in milliseconds; zeros for an empty histogram."""
    if histogram.get_total_count() == 0:
        return {"p50": 0.0, "p99": 0.0, "max": 0.0}
    return {
        "p50": histogram.get_value_at_percentile(50) / 1000,
        "p99": histogram.get_value_at_percentile(99) / 1000,
        "max": histogram.get_max_value() / 1000,
    }


def write_log(path: Path, histogram: HdrHistogram, start_ms: int, end_ms: int) -> None:
    """Write `histogram` as an HdrHistogram V2 log of one interval (wall-clock milliseconds)."""
    with path.open("w", encoding="utf-8") as output:
        writer = HistogramLogWriter(output)
        writer.output_log_format_version()
        writer.output_comment("schedule lag, microseconds")
        # The library's output_start_time takes milliseconds for seconds and fails (hdrhistogram 0.10).
        writer.output_comment(f"[StartTime: {start_ms / 1000:.3f} (seconds since epoch)]")
        writer.output_legend()
        histogram.set_start_time_stamp(start_ms)
        histogram.set_end_time_stamp(end_ms)
        # The ratio only scales the log's readable maximum; 1 keeps it in microseconds.
        writer.output_interval_histogram(histogram, max_value_unit_ratio=1.0)
