"""A journal's numbers as columns of differences: the same content, several times smaller after compression.

Lines that differ only in their numbers have one shape. Each number of a shape is a column, stored as differences
between lines. Counters that grow evenly become small, repeated integers. The ids of a process belong to the shape, so
each process has its own columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

# Above what a float's text has; a bundle from elsewhere could ask for any.
_MOST_PLACES = 30
# Numbers of a JSON text without exponents. Those left out stay in the text of a shape.
_NUMBER = re.compile(
    r'(?<!"pid":)(?<!"create_time":)(?<=[:,\[])'
    rf"(-?(?:0|[1-9]\d{{0,{_MOST_PLACES}}})(?:\.\d{{1,{_MOST_PLACES}}})?)(?=[,}}\]])"
)
_BROKEN = (ValueError, KeyError, TypeError, IndexError, StopIteration, AttributeError, RecursionError)


def to_columns(journal: bytes) -> bytes:
    """Return a journal in UTF-8 as columns. Raises UnicodeDecodeError for any other content."""
    shapes: dict[tuple[str, ...], list[Sequence[str]]] = {}
    numbers: dict[tuple[str, ...], int] = {}
    order = []
    for line in journal.decode().split("\n"):
        parts = _NUMBER.split(line)
        texts = tuple(parts[::2])
        shapes.setdefault(texts, []).append(parts[1::2])
        order.append(numbers.setdefault(texts, len(numbers)))
    found = [[texts, [_column(one) for one in zip(*rows, strict=True)]] for texts, rows in shapes.items()]
    return json.dumps({"order": order, "shapes": found}, separators=(",", ":")).encode()


def from_columns(content: bytes, most_bytes: int) -> bytes:
    """Return the journal of which `to_columns` made this. Raises ValueError for other content or a longer journal."""
    try:
        stored = json.loads(content)
        shapes = [(texts, _rows(columns)) for texts, columns in stored["shapes"]]
        lines, size = [], 0
        for number in stored["order"]:
            texts, rows = shapes[number]
            values = next(rows)
            line = "".join(text + value for text, value in zip(texts, (*values, ""), strict=True))
            size += len(line) + 1
            if size > most_bytes:
                raise ValueError(f"expected at most {most_bytes} bytes")
            lines.append(line)
        return "\n".join(lines).encode()
    except _BROKEN as error:
        raise ValueError(f"expected the columns of a journal ({error!r})") from None


def _column(texts: Sequence[str]) -> list[Any]:
    """Return decimal places and differences, or the texts if these do not give the same texts again."""
    places = max(len(text.partition(".")[2]) for text in texts)
    values = [_scaled(text, places) for text in texts]
    if [_text(value, places) for value in values] != list(texts):
        return list(texts)
    return [places, *(value - before for before, value in zip((0, *values[:-1]), values, strict=True))]


def _rows(columns: Sequence[Sequence[Any]]) -> Iterator[tuple[str, ...]]:
    """Yield the texts of each line of a shape; endlessly for a shape without numbers."""
    while not columns:
        yield ()
    yield from zip(*map(_texts, columns), strict=True)


def _texts(column: Sequence[Any]) -> Iterator[str]:
    if isinstance(column[0], str):
        yield from column
        return
    places, *differences = column
    if not 0 <= places <= _MOST_PLACES:
        raise ValueError(f"got {places} decimal places; expected at most {_MOST_PLACES}")
    value = 0
    for difference in differences:
        value += difference
        yield _text(value, places)


def _scaled(text: str, places: int) -> int:
    whole, _, fraction = text.partition(".")
    return int(whole + fraction.ljust(places, "0"))


def _text(value: int, places: int) -> str:
    """Return a number as JSON does: an integer, or a float without closing zeros."""
    if not places:
        return str(value)
    digits = f"{abs(value):0{places + 1}d}"
    sign = "-" if value < 0 else ""
    return f"{sign}{digits[:-places]}.{digits[-places:].rstrip('0') or '0'}"
