"""A source that replays data of the user's, over and over when the run is longer than the data."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from generators.chance import stream_key
from generators.data_files import Data, Headers
from generators.murmur2 import partition_of

# From one cycle to the next where all records have one time.
ALONE_MS = 1000


class Replay:
    """Record k is the one at place (offset + k) mod L of the data.

    Data without times begins at a place that is drawn from seed and repetition, as a text does; data with times begins
    at its beginning, and of each further cycle the times that values carry are moved by the length of one.
    """

    def __init__(self, data: Data, seed: int, repetition: int) -> None:
        """`data`: at least one record."""
        self._data = data
        self.offset = 0 if data.times_ms else stream_key("replay", seed, repetition) % len(data)
        self._partitions: dict[bytes, int] = {}

    def __len__(self) -> int:
        """Records of one cycle."""
        return len(self._data)

    @cached_property
    def cycle_ms(self) -> int:
        """How much later one cycle is than the one before, in the time of its records: one mean gap after its end."""
        times = self._data.times_ms
        if not times:
            return 0
        span = max(times) - min(times)
        return span + span // max(1, len(times) - 1) if span else ALONE_MS

    def payloads(self, records: NDArray[np.uint64]) -> list[bytes]:
        """The values of the given records (numbers in the schedule, shape (n,))."""
        cycles, places = self._places(records)
        values, shift = self._data.values, self._data.shift
        if shift is None or not cycles.any():
            return [values[place] for place in places.tolist()]
        return [
            values[place] if not cycle else shift(place, cycle * self.cycle_ms)
            for cycle, place in zip(cycles.tolist(), places.tolist(), strict=True)
        ]

    def keys(self, records: NDArray[np.uint64]) -> list[bytes | None] | None:
        """Their keys; None when the data has none."""
        keys = self._data.keys
        return [keys[place] for place in self._places(records)[1].tolist()] if keys else None

    def headers(self, records: NDArray[np.uint64]) -> list[Headers] | None:
        """Their headers; None when the data has none."""
        headers = self._data.headers
        return [headers[place] for place in self._places(records)[1].tolist()] if any(headers) else None

    def partition(self, key: bytes, partitions: int) -> int:
        """Where records with this key lie."""
        found = self._partitions.get(key)
        if found is None:
            found = self._partitions[key] = partition_of(key, partitions)
        return found

    def primer(self, n: int) -> Iterator[bytes]:
        """n values to get warm by. Of data with times all have the first one: what comes after is not late for it."""
        values = self._data.values
        return (values[0 if self._data.times_ms else number % len(values)] for number in range(n))

    def primer_key(self, number: int) -> bytes | None:
        """The key of the primer's record of this number."""
        keys = self._data.keys
        return keys[0 if self._data.times_ms else number % len(keys)] if keys else None

    def _places(self, records: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        cycles, places = np.divmod(records.astype(np.int64) + self.offset, len(self._data))
        return cycles, places
