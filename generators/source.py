"""What a source of records is, and the two plainest: bytes that never change, and numbered work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

# Primer records get numbers from here on, which no schedule reaches.
FIRST_PRIMER_ID = 10**15


class Source(Protocol):
    """Payloads by record number; a pure function, so chunks and processes do not change the data."""

    def payloads(self, records: NDArray[np.uint64]) -> list[bytes]:
        """The payloads of the given records (numbers in the schedule, shape (n,))."""

    def primer(self, n: int) -> Iterator[bytes]:
        """The payloads of n records to be sent before the gate, with which the engine warms up."""


@dataclass(frozen=True)
class ConstantLines:
    """A source that sends the same bytes for ever: the plainest load of a broker benchmark."""

    payload: bytes

    def payloads(self, records: NDArray[np.uint64]) -> list[bytes]:
        """The same payload for each of the given records."""
        return [self.payload] * len(records)

    def primer(self, n: int) -> Iterator[bytes]:
        """The same payload n times."""
        return repeat(self.payload, n)


@dataclass(frozen=True)
class Ids:
    """A source whose record k is `<k> <iterations>`: work that differs in its number only, so none can be left out."""

    iterations: int

    def payloads(self, records: NDArray[np.uint64]) -> list[bytes]:
        """The numbers of the given records, each with the iterations."""
        return [b"%d %d" % (number, self.iterations) for number in records.tolist()]

    def primer(self, n: int) -> Iterator[bytes]:
        """The same work under numbers of their own."""
        return (b"%d %d" % (FIRST_PRIMER_ID + number, self.iterations) for number in range(n))
