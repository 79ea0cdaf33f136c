"""A source that replays data of the user's, over and over when the run is longer than the data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from generators.chance import stream_key
from generators.data_files import Data, Headers
from generators.xxhash64 import partition_of


class Replay:
    """Record k is the one at place (offset + k) mod L of the data.

    Data without times begins at a place that is drawn from seed and repetition, as a text does; data with times begins
    at its beginning, and of each further round the times that values carry are moved by the length of one.
    """

    def __init__(self, data: Data, seed: int, repetition: int) -> None:
        """`data`: at least one record."""
        self._data = data
        self.offset = 0 if data.times_ms else stream_key("replay", seed, repetition) % len(data)
        self._partitions: dict[bytes, int] = {}

    def __len__(self) -> int:
        """Records of one round."""
        return len(self._data)

    def payloads(self, records: NDArray[np.uint64]) -> list[Any]:
        """The values, bytes or None, of the given records (numbers in the schedule, shape (n,))."""
        rounds, places = self._places(records)
        return [self._data.value(place, round_) for round_, place in zip(rounds.tolist(), places.tolist(), strict=True)]

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

    def primer(self, n: int) -> Iterator[Any]:
        """n values to get warm by. Of data with times all have the first one: what comes after is not late for it."""
        values = self._data.values
        return (values[0 if self._data.times_ms else number % len(values)] for number in range(n))

    def primer_key(self, number: int) -> bytes | None:
        """The key of the primer's record of this number."""
        keys = self._data.keys
        return keys[0 if self._data.times_ms else number % len(keys)] if keys else None

    def _places(self, records: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        rounds, places = np.divmod(records.astype(np.int64) + self.offset, len(self._data))
        return rounds, places
