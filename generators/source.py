"""Source protocol, and the simplest sources: constant payloads, numbered jobs and lines of a text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from generators.counter_rng import blocks, stream_key
from generators.send_progress import InputError

# First number of preload records, above any schedule.
FIRST_PRELOAD_ID = 10**15


class Source(Protocol):
    """Payloads by record number; a pure function, so chunks and processes do not change the data."""

    def payloads(self, records: NDArray[np.uint64]) -> list[bytes]:
        """Return the payloads of the given records (numbers in the schedule, shape (n,))."""

    def preload(self, n: int) -> Iterator[bytes]:
        """Return the payloads of n preload records, sent before T0 to warm up the engine."""


@dataclass(frozen=True)
class ConstantLines:
    """A source of identical payloads: the simplest load of a broker benchmark."""

    payload: bytes

    def payloads(self, records: NDArray[np.uint64]) -> list[bytes]:
        """Return the same payload for each record."""
        return [self.payload] * len(records)

    def preload(self, n: int) -> Iterator[bytes]:
        """Return the same payload n times."""
        return repeat(self.payload, n)


@dataclass(frozen=True)
class Ids:
    """A source whose record k is `<k> <iterations>`: jobs that differ in their number only."""

    iterations: int

    def payloads(self, records: NDArray[np.uint64]) -> list[bytes]:
        """Return the numbers of the given records, each with the iterations."""
        return [b"%d %d" % (number, self.iterations) for number in records.tolist()]

    def preload(self, n: int) -> Iterator[bytes]:
        """Return the same jobs with reserved numbers."""
        return (b"%d %d" % (FIRST_PRELOAD_ID + number, self.iterations) for number in range(n))


# Lines of a real text, repeated cyclically.
#
# Normalisation: the text is lower-cased and split at all characters other than letters (Unicode), so `Don't` gives
# `don` and `t`. The words of all files are joined in order and split into lines of a constant number of words, so a
# rate in lines is a rate in words; only the last line may be shorter.


MOBY_DICK = "moby-dick"
_DATA = Path(__file__).parent / "data"
_WORD = re.compile(r"[^\W\d_]+")


def corpus_files(corpus: str) -> list[Path]:
    """Return the .txt files of a corpus, sorted by name: `moby-dick`, or a directory.

    Raises InputError if the directory is missing or has no .txt file.
    """
    directory = _DATA / MOBY_DICK if corpus == MOBY_DICK else Path(corpus)
    if not directory.is_dir():
        raise InputError(f"corpus: got {directory}; expected `{MOBY_DICK}` or a directory of .txt files")
    files = sorted(path for path in directory.glob("*.txt") if path.is_file())
    if not files:
        raise InputError(f"corpus: got {directory} without .txt files; expected at least one")
    return files


def read_words(path: Path) -> Iterator[str]:
    """Yield the normalised words of one file, in order.

    Raises InputError, naming file and line, if the file cannot be read or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise InputError(f"corpus: {path}, line {number}: got {error.reason}; expected UTF-8") from None
                yield from _WORD.findall(line.lower())
    except OSError as error:
        raise InputError(f"corpus: reading {path} failed: {error.strerror}") from None


class TextLines:
    """A source whose record k is line (offset + k) mod L, with the offset drawn from seed and repetition.

    The text is one block of bytes with an index, so it needs little more memory than its file.
    """

    def __init__(self, lines: list[bytes], offset: int) -> None:
        """Store `lines`, at least one; `offset` is the line of record 0."""
        if not lines:
            raise InputError("corpus: empty; expected at least one line")
        self.offset = offset % len(lines)
        self._ends = np.cumsum([len(line) for line in lines], dtype=np.int64)
        self._block = b"".join(lines)

    @classmethod
    def load(cls, corpus: str, words_per_line: int, seed: int, repetition: int) -> Self:
        """Read and split a corpus. Raises InputError, naming the directory, or file and line."""
        files = corpus_files(corpus)
        lines: list[bytes] = []
        line: list[str] = []
        for path in files:
            before = len(lines), len(line)
            for word in read_words(path):
                line.append(word)
                if len(line) == words_per_line:
                    lines.append(" ".join(line).encode())
                    line = []
            if (len(lines), len(line)) == before:
                raise InputError(f"corpus: {path}, line 1: got no words; fix: fill or remove the file")
        if line:
            lines.append(" ".join(line).encode())
        return cls(lines, stream_key("text", seed, repetition) % len(lines))

    def __len__(self) -> int:
        """Return the lines of one cycle."""
        return len(self._ends)

    def payloads(self, records: NDArray[np.uint64]) -> list[bytes]:
        """Return the lines of the given records (numbers in the schedule, shape (n,))."""
        numbers = ((records % np.uint64(len(self))) + np.uint64(self.offset)) % np.uint64(len(self))
        lines = numbers.astype(np.int64)
        ends = self._ends[lines]
        starts = np.where(lines > 0, self._ends[lines - 1], 0)
        block = self._block
        return [block[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def preload(self, n: int) -> Iterator[bytes]:
        """Yield the lines of the first n records."""
        for records in blocks(n):
            yield from self.payloads(records)
