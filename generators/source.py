"""What a source of records is, and the plainest: bytes that never change, numbered work, and lines of a text."""

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


# Lines of a real text, cycling for ever.
#
# Normalisation: the text is lower-cased and split on everything that is not a letter (Unicode), so `Don't` gives
# `don` and `t`, and blank lines give nothing. The words of all files are joined in order and cut into lines of a
# constant number of words, joined by one space, so a rate in lines is a rate in words; only the last line of the text
# may be shorter.


MOBY_DICK = "moby-dick"
_DATA = Path(__file__).parent / "data"
_WORD = re.compile(r"[^\W\d_]+")


def corpus_files(corpus: str) -> list[Path]:
    """The .txt files of a corpus, sorted by name: `moby-dick`, or a directory.

    Raises InputError when the directory is missing or holds no .txt file.
    """
    directory = _DATA / MOBY_DICK if corpus == MOBY_DICK else Path(corpus)
    if not directory.is_dir():
        raise InputError(f"corpus: {directory} is not a directory; give `{MOBY_DICK}` or a directory of .txt files")
    files = sorted(path for path in directory.glob("*.txt") if path.is_file())
    if not files:
        raise InputError(f"corpus: {directory} holds no .txt file; put the text there as UTF-8 .txt files")
    return files


def read_words(path: Path) -> Iterator[str]:
    """The normalised words of one file, in order.

    Raises InputError that names file and line when the file cannot be read or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise InputError(
                        f"corpus: {path}, line {number}: not UTF-8 ({error.reason}); convert the file to UTF-8"
                    ) from None
                yield from _WORD.findall(line.lower())
    except OSError as error:
        raise InputError(f"corpus: {path} cannot be read: {error.strerror}") from None


class TextLines:
    """A source whose record k is line (offset + k) mod L, with the offset drawn from seed and repetition.

    The text is one block of bytes with an index, so that it costs little more memory than its file.
    """

    def __init__(self, lines: list[bytes], offset: int) -> None:
        """`lines`: the cycle, at least one; `offset`: the line that record 0 gets."""
        if not lines:
            raise InputError("corpus: no line of text")
        self.offset = offset % len(lines)
        self._ends = np.cumsum([len(line) for line in lines], dtype=np.int64)
        self._block = b"".join(lines)

    @classmethod
    def load(cls, corpus: str, words_per_line: int, seed: int, repetition: int) -> Self:
        """Reads and cuts a corpus. Raises InputError that names the directory or file and line."""
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
                raise InputError(f"corpus: {path}, line 1: holds no word; fill the file or take it away")
        if line:
            lines.append(" ".join(line).encode())
        return cls(lines, stream_key("text", seed, repetition) % len(lines))

    def __len__(self) -> int:
        """Lines of one cycle."""
        return len(self._ends)

    def payloads(self, records: NDArray[np.uint64]) -> list[bytes]:
        """The lines of the given records (numbers in the schedule, shape (n,))."""
        numbers = ((records % np.uint64(len(self))) + np.uint64(self.offset)) % np.uint64(len(self))
        lines = numbers.astype(np.int64)
        ends = self._ends[lines]
        starts = np.where(lines > 0, self._ends[lines - 1], 0)
        block = self._block
        return [block[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def primer(self, n: int) -> Iterator[bytes]:
        """The lines of the first n records."""
        for records in blocks(n):
            yield from self.payloads(records)
